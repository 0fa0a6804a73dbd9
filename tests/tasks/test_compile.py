"""``task=compile`` and ``verify.backend=artifact`` on the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.runs import ROOT, run

TINY = (
    "model=12b",
    "tp=2",
    "model.layers=6",
    "model.hidden_size=32",
    "model.embedding_scale=5.65625",
    "model.vocab_size=128",
    "model.attention.sliding_attention.head_dim=8",
    "model.attention.full_attention.head_dim=16",
    "model.mlp.intermediate_size=32",
    "shapes.kv_length=32",
    "shapes.prefill_buckets=[12]",
)


def report(directory: Path | None) -> dict[str, Any]:
    assert directory is not None
    read: dict[str, Any] = json.loads((directory / "compile.json").read_text())
    return read


def statuses(directory: Path | None) -> dict[str, str]:
    return {unit["name"]: unit["status"] for unit in report(directory)["units"]}


def test_what_is_there_is_not_made_again(tmp_path: Path) -> None:
    first = run(*TINY, "task=compile", cwd=tmp_path)
    assert first.exit_code == 0, first.err
    assert statuses(first.directory) == {"prefill_12": "built", "decode": "built"}
    assert report(first.directory)["backend"] == "export"
    assert "not done: nothing was compiled for the device" in first.out
    assert "not done: no rank files were cut and nothing was loaded: there is no checkpoint=DIR" in first.out
    second = run(*TINY, "task=compile", "compile.explain=true", "shapes.prefill_buckets=[16]", cwd=tmp_path)
    assert statuses(second.directory) == {"prefill_16": "built", "decode": "reused"}
    differs = next(unit["differs"] for unit in report(second.directory)["units"] if unit["status"] == "built")
    assert any(line.startswith("graphs.prefill_16: none there") for line in differs)
    assert "not the nearest artifact: graphs.prefill_16" in second.out


def test_a_kill_costs_the_graph_it_came_in(tmp_path: Path) -> None:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "gemma4cfg", *TINY, "task=compile"]
    running = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.DEVNULL)
    artifacts = tmp_path / "outputs" / "artifacts"
    deadline = time.monotonic() + 100
    while not list(artifacts.glob("*/[0-9a-f]*/manifest.json")):
        assert running.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    (kept,) = artifacts.glob("*/[0-9a-f]*/manifest.json")
    written = kept.stat().st_mtime_ns
    again = run(*TINY, "task=compile", cwd=tmp_path)
    assert again.exit_code == 0, again.err
    assert statuses(again.directory) == {"prefill_12": "reused", "decode": "built"}
    assert kept.stat().st_mtime_ns == written
    assert not list(artifacts.glob("*/.*.part")), "what the killed run left is gone"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        pytest.param(
            ("compile.backend=sdk",), "no torch_neuronx and no neuronx_distributed is installed here", id="no_sdk"
        ),
        pytest.param(("output=s3://bucket/x",), "compile.mirror=s3://bucket/x", id="remote_output"),
        pytest.param(("output=file",), "output=file: cannot be a directory", id="output_is_a_file"),
        pytest.param(("compile.workdir=s3://b/w",), "compile.workdir=s3://b/w", id="remote_workdir"),
        pytest.param(
            ("compile.mirror=file/in",), "compile.mirror=file/in: cannot be a directory", id="mirror_in_a_file"
        ),
        pytest.param(("compile.mirror=nosuch://x/y",), "compile.mirror=nosuch://x/y: cannot be read", id="mirror"),
        pytest.param(("task=plan", "compile.explain=true"), "compile.explain is never read: task=plan", id="unread"),
    ],
)
def test_a_mistake_is_a_sentence(words: tuple[str, ...], told: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = run(*TINY, "task=compile", *words, cwd=tmp_path)
    assert result.exit_code == 2
    assert told in result.err
    assert result.plan is None
    assert not list(tmp_path.rglob("program.pt2"))


def test_a_refused_graph_leaves_no_script(tmp_path: Path) -> None:
    words = ("attention.implementation=sdpa", "model.attention.sliding_attention.window=1024", "shapes.kv_length=1024")
    result = run(*TINY, *words, "task=compile", cwd=tmp_path)
    assert result.exit_code == 2
    assert "layer 0: graph prefill_12, aten.scaled_dot_product_attention" in result.err
    assert result.directory is not None
    assert {path.name for path in result.directory.iterdir() if path.is_file()} == {"result.json"}


@pytest.mark.parametrize("asked", ["auto", "sdk"])
def test_an_sdk_that_does_not_import_is_none(asked: str, tmp_path: Path) -> None:
    """Such as the placeholders of these names on the public index."""
    for name in ("torch_neuronx", "neuronx_distributed"):
        (tmp_path / f"{name}.py").touch()
    words = (
        "recipe=model_builder",
        "model.layers=1",
        "model.layer_pattern=[full_attention]",
        f"compile.backend={asked}",
    )
    result = run(*TINY, *words, "task=compile", cwd=tmp_path)
    why = "neuronx_distributed.NxDParallelState does not import: AttributeError"
    if asked == "sdk":
        assert result.exit_code == 2
        assert f"compile.backend=sdk: {why}" in result.err
    else:
        assert result.exit_code == 0, result.err
        assert f"not done: nothing was compiled for the device: {why}" in result.out


def test_vllm_compiles_nothing(tmp_path: Path) -> None:
    result = run("experiment=e2b-g5g-2xlarge", "task=compile", cwd=tmp_path)
    assert result.exit_code == 2
    assert "recipe=vllm compiles nothing ahead" in result.err


def test_programs_are_proved_as_they_are_read_back(tmp_path: Path) -> None:
    words = ("model=12b", "model.layers=6", "tp=2", "task=verify", "verify.backend=artifact", "verify.steps=3")
    result = run(*words, cwd=tmp_path)
    assert result.exit_code == 0, result.err
    assert result.directory is not None
    proof = json.loads((result.directory / "verify.json").read_text())
    assert proof["holds"]
    assert [check["name"] for check in proof["checks"]] == ["reference", "prefill_logits", "decode_logits", "tokens"]
    again = run(*words, "offload.sampling=device", cwd=tmp_path)
    assert again.exit_code == 2
    assert "offload.sampling=host" in again.err


def test_doctor_refuses_a_machine_without_the_sdk(tmp_path: Path) -> None:
    result = run("model=12b", "tp=2", "task=doctor", cwd=tmp_path)
    assert result.exit_code == 2
    assert "hard needs are missing: package, compiler, cores" in result.err
    assert "neuronx-cc: not on PATH" in result.out
    assert result.plan is None
    assert result.directory is not None
    assert json.loads((result.directory / "doctor.json").read_text())["lines"]

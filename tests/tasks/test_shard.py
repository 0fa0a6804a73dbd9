"""``task=shard`` on the command line, with a small model of each shape that Gemma 4 has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gemma4cfg.architecture.huggingface import architecture_from_config
from gemma4cfg.architecture.inventory import PREFIX, inventory
from sharding import merge
from tests.checkpoints import published_config
from tests.sharding.synthetic import read_tensors, write_parts

SMALL = {
    "vocab_size": 64,
    "vocab_size_per_layer_input": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "num_experts": 4,
    "top_k_experts": 2,
    "head_dim": 8,
    "global_head_dim": 16,
    "num_attention_heads": 8,
}


def small_config(model: str) -> dict[str, Any]:
    """A published configuration with small widths; head counts, layer types and sharing stay, so that the plan does."""
    config = published_config(model)
    text = config["text_config"]
    text.update({key: value for key, value in SMALL.items() if text.get(key)})
    if text.get("hidden_size_per_layer_input"):
        text["hidden_size_per_layer_input"] = 8
    return config


@pytest.fixture(params=["e2b", "26b-a4b"])
def checkpoint(request, tmp_path: Path) -> Path:
    """A text-only checkpoint in two parts, with the tensors that nothing reads."""
    config = small_config(request.param)
    facts = inventory(architecture_from_config(config))
    tensors = {
        name.replace(PREFIX, "model.", 1): (fact.shape, "BF16") for name, fact in facts.items() if fact.status != "tied"
    }
    names = sorted(tensors)
    directory = write_parts(tmp_path / "in", [{name: tensors[name] for name in names[part::2]} for part in (0, 1)])
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def run(directory: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gemma4cfg", *overrides, "hydra.run.dir=run"]
    root = str(Path(__file__).parents[2])
    return subprocess.run(
        command, cwd=directory, env={**os.environ, "PYTHONPATH": root}, capture_output=True, text=True, check=False
    )


def result(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "run" / "result.json").read_text())


def shards(directory: Path) -> Path:
    (found,) = (directory / "outputs" / "shards").iterdir()
    return found


def test_shard_check_and_merge(checkpoint, tmp_path):
    command = ("task=shard", f"checkpoint={checkpoint}", "tp=2")

    ended = run(tmp_path, *command, "shard.digests=true")

    assert ended.returncode == 0, ended.stderr
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert shards(tmp_path).name == plan["placement_id"]
    assert result(tmp_path)["status"] == "done"
    assert "GB/s, peak memory" in ended.stdout
    held = read_tensors(shards(tmp_path) / "tp1_sharded_checkpoint.safetensors")
    assert set(held) == {entry["local_name"] for entry in plan["tensors"].values() if entry["home"] == "device"} | set(
        plan["rank_tensors"]
    )

    again = run(tmp_path, *command)
    assert (again.returncode, "0 files written (0.0 MB), 3 kept" in again.stdout) == (0, True), again.stdout
    checked = run(tmp_path, *command, "shard.check=true")
    assert (checked.returncode, "every file is as the manifest" in checked.stdout) == (0, True), checked.stderr

    merge(shards(tmp_path), tmp_path / "back")
    unused = {name.replace(PREFIX, "model.", 1) for name, entry in plan["tensors"].items() if entry["home"] == "unused"}
    source, back = ({}, {})
    for directory, tensors in ((checkpoint, source), (tmp_path / "back", back)):
        for part in directory.glob("*.safetensors"):
            tensors |= read_tensors(part)
    assert back == {name: value for name, value in source.items() if name not in unused}


@pytest.mark.parametrize("checkpoint", ["26b-a4b"], indirect=True)
def test_what_is_wrong_exits_with_2(checkpoint, tmp_path):
    command = ("task=shard", f"checkpoint={checkpoint}", "tp=2", "output=out")
    assert run(tmp_path, *command).returncode == 0
    damaged = tmp_path / "out" / "tp1_sharded_checkpoint.safetensors"
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)

    checked = run(tmp_path, *command, "shard.check=true")
    assert checked.returncode == 2
    assert "out/tp1_sharded_checkpoint.safetensors: its checksum" in checked.stderr
    assert [finding["code"] for finding in result(tmp_path)["findings"]] == ["rank_file"]
    assert not (tmp_path / "run" / "plan.json").exists()

    unlike = run(tmp_path, *command[:2], "tp=4", "output=out", "shard.check=true")
    assert (unlike.returncode, "made by another plan" in unlike.stderr) == (2, True), unlike.stderr

    other = run(tmp_path, *command[:2], "tp=4", "output=out")
    assert other.returncode == 2
    assert "tp (2, now 4)" in other.stderr
    assert [finding["code"] for finding in result(tmp_path)["findings"]] == ["shard"]


def test_without_a_checkpoint(tmp_path):
    ended = run(tmp_path, "task=shard", "model=e2b")
    assert ended.returncode == 2
    assert "task=shard needs the weights: checkpoint=DIR" in ended.stderr


@pytest.mark.parametrize("checkpoint", ["26b-a4b"], indirect=True)
def test_an_io_failure_exits_with_1(checkpoint, tmp_path):
    ended = run(tmp_path, "task=shard", f"checkpoint={checkpoint}", f"output={'x' * 300}")
    assert ended.returncode == 1
    assert "OSError: [Errno 36]" in ended.stderr


@pytest.mark.parametrize("checkpoint", ["26b-a4b"], indirect=True)
@pytest.mark.parametrize("key,value", [("output", "file"), ("output", "file/out"), ("shard.mirror", "file")])
def test_a_file_where_a_directory_is_needed_is_a_mistake(key, value, checkpoint, tmp_path):
    (tmp_path / "file").write_text("")
    ended = run(tmp_path, "task=shard", f"checkpoint={checkpoint}", f"{key}={value}")
    assert ended.returncode == 2
    assert f"error {value}: file is a file, where a directory is needed" in ended.stderr

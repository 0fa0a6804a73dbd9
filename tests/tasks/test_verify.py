"""``task=verify`` on the command line: exit codes, what is written, mistakes, and ranks under torchrun."""

from __future__ import annotations

import io
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

from gemma4cfg import load_config
from gemma4cfg.errors import DisprovedError, UserError
from gemma4cfg.plan.encode import to_plain
from gemma4cfg.runtime.graphs import RankModule
from gemma4cfg.tasks import verify
from gemma4cfg.verify import matrix
from gemma4cfg.verify.drills import catalogue
from gemma4cfg.verify.drills.records import NOTHING, Drill
from gemma4cfg.verify.drills.run import DrillResult
from gemma4cfg.verify.faults import NO_FAULT
from gemma4cfg.verify.subject import prompt_lengths, subject_of
from gemma4cfg.verify.weights import write_checkpoint
from gemma4cfg.views.matrix import proof_page
from gemma4cfg.views.proof import show_drills
from tests.cli.runs import ROOT, run
from tests.trained import trained
from tests.verify.shortened import SHORT, short_config

DRILLED = ("task=verify", "verify.inject=all")
E2B = ("model=e2b", *SHORT["e2b"], "task=verify", "verify.steps=4")


def test_a_plan_that_holds(tmp_path: Path) -> None:
    done = run(*E2B, "tp=2", cwd=tmp_path)
    assert done.exit_code == 0, done.err
    assert done.directory is not None
    proof = json.loads((done.directory / "verify.json").read_text())
    assert proof["holds"]
    assert proof["plan_id"] == json.loads((done.directory / "plan.json").read_text())["plan_id"]
    assert {check["name"] for check in proof["checks"]} >= {
        "reference",
        "prefill_logits",
        "decode_logits",
        "tokens",
        "slots",
    }
    assert done.result == {"status": "done", "exit_code": 0, "findings": done.result["findings"]}  # type: ignore[index]
    assert "a tiny twin of custom, tp 2, float32, 2 CPU ranks" in done.out
    assert "\nproved (" in done.out


def test_a_planted_fault_exits_with_3_and_says_what_found_it(tmp_path: Path) -> None:
    done = run(*E2B, "verify.inject=v_norm_dropped", cwd=tmp_path)
    assert done.exit_code == 3
    assert done.err.startswith("error verify.inject=v_norm_dropped is detected: prefill_logits: ")
    assert done.result is not None
    assert (done.result["status"], done.result["exit_code"]) == ("disproved", 3)
    assert done.result["findings"][0]["code"] == "verify.v_norm_dropped"
    assert done.directory is not None
    report = json.loads((done.directory / "verify.json").read_text())
    assert (report["detected"], report["total"]) == (1, 1)


@pytest.mark.parametrize(
    ("overrides", "message"),
    (
        (("verify.steps=4",), "verify.steps is never read: task=plan; add task=verify, or leave it out"),
        (("task=verify", "verify.layers=2"), "verify.layers is never read: a tiny twin has all layers"),
        (("task=verify", "verify.inject=softcap_droped"), "did you mean 'softcap_dropped'?"),
        (("task=verify", "verify.transport=gloo"), "each rank is a process that torchrun starts; e.g. torchrun"),
        (("task=verify", "verify.steps=0"), "verify.steps=0"),
        (("task=verify", "verify.matrix=full", "tp=4"), "tp is never read: verify.matrix=full goes through its own"),
        (
            ("task=verify", "verify.matrix=full", "verify.dtype=bfloat16"),
            "verify.dtype is never read: verify.matrix=full",
        ),
        (("task=verify", "verify.matrix=full", "lm_head.partition=replicate"), "lm_head.partition is never read"),
        (("task=verify", "verify.matrix=full", "objective=memory"), "objective is never read: verify.matrix=full"),
        (("task=verify", "target=g5g.2xlarge"), "recipe=vllm: task=verify needs a recipe with graphs"),
        ((*DRILLED, "target=g5g.2xlarge"), "recipe=vllm: task=verify needs a recipe with graphs"),
        ((*DRILLED, "verify.layers=2"), "verify.layers is never read: a tiny twin has all layers"),
        (
            (*DRILLED, "verify.dtype=bfloat16"),
            "verify.inject in bfloat16: rounding would hide faults that are small; leave",
        ),
        ((*DRILLED, "verify.spmd=true"), "verify.spmd is never read: verify.inject exports no graph"),
        ((*DRILLED, "verify.steps=9"), "verify.steps=9: with verify.inject at most 8 are decoded"),
        (
            ("task=verify", "verify.inject=half_a_head"),
            "verify.inject=half_a_head needs two ranks or more and attention",
        ),
        (("task=verify", "verify.inject=value_after_k_norm"), "value_after_k_norm needs keys that double as values"),
        (("task=verify", "verify.inject=packed_cut_as_one"), "packed_cut_as_one needs a model with experts"),
    ),
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_mistake_is_a_sentence(tmp_path: Path, overrides: tuple[str, ...], message: str) -> None:
    done = run("model=e2b", *overrides, cwd=tmp_path)
    assert done.exit_code == 2
    assert message in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("choices", "message"),
    (
        (
            ("verify.inject=all",),
            "verify.inject in bfloat16: rounding would hide faults that are small; add dtype=float32",
        ),
        (
            ("verify.inject=all", "shapes.kv_length=8"),
            "verify.steps=8 leaves no room for a prompt in shapes.kv_length=8",
        ),
        (("verify.inject=window_plus_one", "dtype=float32"), "window_plus_one needs a prompt longer than the window"),
    ),
)
def test_what_a_checkpoint_cannot_be_drilled_with(tmp_path: Path, choices: tuple[str, ...], message: str) -> None:
    """Its window is 8, and a drill decodes 8 tokens."""
    short = ("shapes.kv_length=16", "shapes.prefill_buckets=[4]")
    with pytest.raises(UserError, match=message):
        verified(tmp_path, f"checkpoint={trained('e2b')}", *short, *choices)
    assert not (tmp_path / "verify.json").exists()


def verified(directory: Path, *overrides: str) -> str:
    """What is printed."""
    file = io.StringIO()
    verify.run(load_config(["task=verify", *overrides]), directory, Console(file=file, width=160))
    return file.getvalue()


def test_a_drill_that_is_missed_is_refused_by_its_name_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drill without a fault, run with another layout than the user's."""
    ring = (("shapes.kv_layout", "ring"),)
    drill = Drill("none", "plan", "", lambda plan: NO_FAULT, NOTHING, ring)  # noqa: ARG005
    monkeypatch.setitem(catalogue.DRILLS, "none", drill)
    with pytest.raises(DisprovedError, match=r"^not detected: none$") as caught:
        verified(tmp_path, *E2B, "verify.inject=none", "shapes.kv_layout=linear")
    assert [finding.code for finding in caught.value.findings] == ["verify.none"]
    report = json.loads((tmp_path / "verify.json").read_text())
    assert (report["detected"], report["total"]) == (0, 1)
    assert report["drills"][0]["choices"] == ["shapes.kv_layout=ring"]


def test_the_table_says_what_a_drill_was_run_with() -> None:
    file = io.StringIO()
    result = DrillResult("one", "plan", "", ("moe.partition=experts",), True, True, ("layers",), 1.0, "layers: off")
    show_drills({"drills": [to_plain(result)], "detected": 1, "total": 1}, Console(file=file, width=160))
    assert "one    plan, moe.partition=experts  detected  layers: off" in file.getvalue()


def test_a_plan_that_does_not_hold_is_disproved_and_not_drilled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its logits are no numbers, which JSON does not have."""
    made = RankModule._head
    monkeypatch.setattr(RankModule, "_head", lambda module, hidden: made(module, hidden) * torch.nan)
    failed = r"prefill_logits, decode_logits, tokens"
    with pytest.raises(DisprovedError, match=rf"does not hold without a fault \({failed}\)") as caught:
        verified(tmp_path, *E2B, "verify.inject=v_norm_dropped")
    assert [finding.code for finding in caught.value.findings][:2] == ["verify.prefill_logits", "verify.decode_logits"]
    assert not (tmp_path / "verify.json").exists()
    with pytest.raises(DisprovedError, match=f"the plan is disproved: {failed}$"):
        verified(tmp_path, *E2B)
    proof = json.loads((tmp_path / "verify.json").read_text(), parse_constant=pytest.fail)
    assert proof["streams"][0]["max_absolute"] is None


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A Hugging Face directory of a small 31B: two repetitions of its pattern."""
    subject = subject_of(short_config("31b", "model.layers=12"))
    assert subject.twin is not None
    write_checkpoint(tmp_path / "checkpoint", subject.twin, 0)
    return tmp_path / "checkpoint"


CHECKPOINT = (
    "task=verify",
    "tp=2",
    "dtype=float32",
    "shapes.kv_length=40",
    "shapes.prefill_buckets=[12]",
    "verify.steps=4",
)


def test_real_weights(tmp_path: Path, checkpoint: Path) -> None:
    """Of a batch of one, prompts run one after the other on the same streams."""
    done = run(f"checkpoint={checkpoint}", *CHECKPOINT, cwd=tmp_path)
    assert done.exit_code == 0, done.err
    assert done.directory is not None
    proof = json.loads((done.directory / "verify.json").read_text())
    assert proof["subject"] == str(checkpoint)
    assert [stream["prompt_tokens"] for stream in proof["streams"]] == [1, 7, 8, 9, 12, 13, 16]
    assert len(proof["layers"]) == 12


def test_the_first_layers_of_real_weights(tmp_path: Path, checkpoint: Path) -> None:
    done = run(f"checkpoint={checkpoint}", *CHECKPOINT, "verify.layers=6", cwd=tmp_path)
    assert done.exit_code == 0, done.err
    assert done.directory is not None
    assert len(json.loads((done.directory / "verify.json").read_text())["layers"]) == 6
    refused = run(f"checkpoint={checkpoint}", *CHECKPOINT, "verify.layers=7", cwd=tmp_path)
    assert refused.exit_code == 2
    assert "verify.layers=7: transformers makes the last layer a full one" in refused.err
    assert "verify.layers=6" in refused.err


def test_prompts_are_where_windows_and_buckets_end() -> None:
    assert prompt_lengths(8, (12,), 10**9) == (1, 7, 8, 9, 12, 13, 16)
    assert prompt_lengths(8, (20, 40), 40) == (1, 7, 8, 9, 16, 20, 21, 40)
    assert prompt_lengths(512, (128,), 100) == (1,)


def test_ranks_under_torchrun_give_the_same_proof(tmp_path: Path) -> None:
    """Gloo between processes that torchrun started; only the first reports."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "-m", "gemma4cfg", *E2B, "tp=2"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("\nproved (") == 1
    (path,) = tmp_path.glob("outputs/runs/*/verify.json")
    assert json.loads(path.read_text())["holds"]


def test_the_process_count_of_torchrun_is_the_tp_degree(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "-m", "gemma4cfg", *E2B, "tp=4"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "tp=4 under torchrun with 2 processes" in done.stderr


@pytest.mark.parametrize(("model", "layers"), (("31b", 1.0e9), ("26b-a4b", 1.5e9)))
def test_real_widths(tmp_path: Path, model: str, layers: float) -> None:
    """One sliding and one full layer at their real sizes on eight ranks; the vocabulary is cut."""
    cut = (
        "model.layers=2",
        "model.layer_pattern=[sliding_attention,full_attention]",
        "model.vocab_size=4096",
        "tp=8",
        "dtype=float32",
        "shapes.kv_length=48",
        "shapes.prefill_buckets=[16]",
    )
    config = load_config([f"model={model}", *cut])
    write_checkpoint(tmp_path / "checkpoint", config.model, 0, "bfloat16")
    stored = (tmp_path / "checkpoint" / "model.safetensors").stat().st_size
    assert stored > 2 * layers
    done = run(
        f"checkpoint={tmp_path / 'checkpoint'}", *cut[3:], "task=verify", "verify.steps=2", cwd=tmp_path, timeout=900
    )
    assert done.exit_code == 0, done.err
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 < 20 * 2**30


@pytest.mark.parametrize("model", ["26b-a4b", "31b"])
def test_a_matrix_needs_no_plan_of_its_own(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither fits a machine at TP degree 1, which is the default."""
    every = matrix.cases
    monkeypatch.setattr(matrix, "cases", lambda models, extent: every(models, extent)[:1])
    config = load_config([f"model={model}", "task=verify", "verify.matrix=full", "verify.steps=4"])
    assert verify.run(config, tmp_path, Console(quiet=True)) == ()
    report = json.loads((tmp_path / "verify.json").read_text())
    assert report["of"] == len(report["cases"]) == 1
    (case,) = report["cases"]
    assert (case["holds"], case["steps"]) == (True, 4)
    assert ["model", model] in case["features"]
    assert {path.name for path in tmp_path.iterdir()} == {"verify.json"}
    assert f"## {model}\n" in proof_page([report])

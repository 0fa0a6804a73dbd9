"""``task=doctor`` on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gemma4cfg import cli
from tests.cli.runs import run
from tests.doctor.test_needs import fit

Examined = Callable[..., tuple[int, dict[str, dict[str, str]]]]


@pytest.fixture
def examined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Examined:
    """The command on the fit machine: its exit code, and the last line of each need."""

    def doctor(*words: str) -> tuple[int, dict[str, dict[str, str]]]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # as the command line sets it, here until the test ends
        monkeypatch.setattr("gemma4cfg.tasks.doctor.read_machine", lambda _sdk, _directories: fit())
        monkeypatch.setattr("sys.argv", ["gemma4cfg", "task=doctor", "hydra.run.dir=run", *words])
        exit_code = cli.run()
        lines = json.loads(Path("run/doctor.json").read_text())["lines"]
        return exit_code, {line["need"]: line for line in lines}

    return doctor


def test_a_machine_that_passes(examined: Examined) -> None:
    """With nothing left open but what there is none of."""
    exit_code, lines = examined("model=12b", "tp=2", "target=inf2.8xlarge")
    assert exit_code == 0
    assert {need: line["status"] for need, line in lines.items() if line["status"] != "ok"} == {
        "tokenizer": "not looked at"
    }
    result = json.loads(Path("run/result.json").read_text())
    assert (result["status"], result["exit_code"]) == ("done", 0)
    assert not [finding for finding in result["findings"] if finding["code"].startswith("doctor.")]
    doctor, plan = (json.loads(Path(f"run/{name}.json").read_text()) for name in ("doctor", "plan"))
    assert doctor["plan_id"] == plan["plan_id"]


def test_a_plan_for_another_machine(examined: Examined) -> None:
    exit_code, lines = examined("model=12b", "tp=4", "target=trn2.3xlarge", "sdk=neuron-2.28")
    assert exit_code == 2
    assert lines["instance type"]["remedy"] == "run on trn2.3xlarge"
    assert lines["cores"]["found"] == "2 of 2 cores free, the plan takes 4", "its own are counted"


def test_output_is_what_compile_takes(tmp_path: Path) -> None:
    result = run("model=12b", "tp=2", "task=doctor", "output=s3://bucket/x", cwd=tmp_path)
    assert result.exit_code == 2
    assert "output=s3://bucket/x: the compiler writes to local directories" in result.err
    assert "free" not in result.out

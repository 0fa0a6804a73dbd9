"""``task=doctor`` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gemma4cfg import cli
from tests.cli.runs import run
from tests.doctor.test_needs import fit


def test_output_is_what_compile_takes(tmp_path: Path) -> None:
    result = run("model=12b", "tp=2", "task=doctor", "output=s3://bucket/x", cwd=tmp_path)
    assert result.exit_code == 2
    assert "output=s3://bucket/x: the compiler writes to local directories" in result.err
    assert "free" not in result.out


def test_a_machine_that_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 0, with nothing but what cannot be looked at here left open."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # as the command line sets it, here until the test ends
    monkeypatch.setattr("gemma4cfg.tasks.doctor.read_machine", lambda _sdk, _directories: fit())
    words = ["gemma4cfg", "model=12b", "tp=2", "target=inf2.8xlarge", "task=doctor", "hydra.run.dir=run"]
    monkeypatch.setattr("sys.argv", words)
    assert cli.run() == 0
    result = json.loads(Path("run/result.json").read_text())
    assert (result["status"], result["exit_code"]) == ("done", 0)
    assert not [finding for finding in result["findings"] if finding["code"].startswith("doctor.")]
    plan = json.loads(Path("run/plan.json").read_text())
    doctor = json.loads(Path("run/doctor.json").read_text())
    assert doctor["plan_id"] == plan["plan_id"]
    assert {line["need"]: line["status"] for line in doctor["lines"] if line["status"] != "ok"} == {
        "tokenizer": "not looked at"
    }
    assert "cores" in {line["need"] for line in doctor["lines"]}

"""Run directories: unique, sortable, and never half written."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from gemma4cfg import Plan
from gemma4cfg.findings import Finding
from gemma4cfg.tasks import job
from tests.cli.runs import read_job, run

STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d-\d{6}")


def names(directory: Path) -> list[str]:
    """Everything but Hydra's own record of the configuration."""
    return sorted(path.name for path in directory.iterdir() if path.name != ".hydra")


def test_two_runs_in_a_row(tmp_path: Path) -> None:
    first, second = (run("model=26b-a4b", "tp=8", cwd=tmp_path).directory for _ in range(2))
    runs = tmp_path / "outputs" / "runs"
    assert first is not None and second is not None
    assert first.parent == second.parent == runs
    assert first.name < second.name
    assert sorted(path.name for path in runs.iterdir()) == [first.name, second.name]
    assert all(STAMP.fullmatch(path.name) for path in (first, second))


def test_a_plan_and_its_result(tmp_path: Path) -> None:
    done = run("model=26b-a4b", "tp=8", cwd=tmp_path)
    assert done.exit_code == 0, done.err
    assert done.err == ""
    assert done.directory is not None and done.plan is not None and done.result is not None
    assert {"plan.json", "result.json"} <= set(names(done.directory))
    assert not [name for name in names(done.directory) if name.startswith(".")]
    assert (done.result["status"], done.result["exit_code"]) == ("done", 0)
    assert done.result["findings"] == done.plan["findings"]
    assert Plan.from_json(done.plan).to_json() == done.plan
    assert str(done.directory / "plan.json") in done.out


def test_sweeps_lie_apart(tmp_path: Path) -> None:
    done = run("-m", "model=e2b", "tp=1,2", cwd=tmp_path)
    assert done.directory is not None
    assert done.directory.parent == tmp_path / "outputs" / "sweeps"
    assert STAMP.fullmatch(done.directory.name)
    assert [job.directory.name for job in done.jobs] == ["0", "1"]
    assert not (tmp_path / "outputs" / "runs").exists()


@pytest.mark.parametrize(
    "mistake",
    [
        pytest.param("tp=0", id="value"),
        pytest.param("model=nothing", id="composition"),
        pytest.param("output=${nothing}", id="interpolation"),
        pytest.param("target=inf2.xlarge", id="fit"),
    ],
)
def test_a_refused_run_leaves_no_plan_of_an_earlier_one(mistake: str, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "plan.json").write_text("{}")
    (here / "result.json").write_text(json.dumps({"status": "done", "exit_code": 0, "findings": []}))
    done = run("model=31b", "tp=2", "hydra.run.dir=here", mistake, cwd=tmp_path)
    assert done.exit_code == 2, done.err
    left = read_job(here)
    assert left.plan is None
    assert left.result is not None and left.result["status"] == "refused"
    assert done.directory is None


def test_a_directory_of_the_users_own(tmp_path: Path) -> None:
    done = run("model=26b-a4b", "tp=8", "hydra.run.dir=deep/down/here", cwd=tmp_path)
    assert done.exit_code == 0, done.err
    assert done.directory is None
    left = read_job(tmp_path / "deep" / "down" / "here")
    assert left.plan is not None
    assert left.result is not None and left.result["exit_code"] == 0


def test_a_place_that_cannot_be_written_is_no_mistake_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run("model=26b-a4b", "tp=8", "hydra.run.dir=file/below", cwd=tmp_path)
    assert done.exit_code == 1
    assert "Traceback" in done.err and "NotADirectoryError" in done.err


def test_a_defect_is_recorded_and_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def defective(*_: object) -> tuple[Finding, ...]:
        raise KeyError("a defect")

    chosen = SimpleNamespace(settings=SimpleNamespace(task="plan"))
    monkeypatch.setattr("gemma4cfg.tasks.plan.run", defective)
    monkeypatch.setattr(job, "config_from_plain", lambda *_: chosen)
    with pytest.raises(KeyError, match="a defect"):
        job.run_job({}, (), tmp_path, Console(file=StringIO()))
    left = read_job(tmp_path)
    assert left.result is not None
    assert (left.result["status"], left.result["exit_code"]) == ("failed", 1)
    assert left.told.startswith("KeyError")


def test_output_that_cannot_show_every_character(tmp_path: Path) -> None:
    done = run("model=26b-a4b", "tp=8", cwd=tmp_path, env={"PYTHONIOENCODING": "ascii"})
    assert done.exit_code == 0, done.err

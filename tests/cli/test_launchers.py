"""Hydra's other launchers and a sweeper, where they are installed: the jobs are the same, and so is the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.runs import Result, run


def jobs(done: Result) -> list[dict[str, Any]]:
    assert done.exit_code == 0, done.err
    assert "Traceback" not in done.err
    assert done.directory is not None
    told: list[dict[str, Any]] = json.loads((done.directory / "sweep.json").read_text())["jobs"]
    return told


@pytest.mark.parametrize(
    ("launcher", "plugin"),
    [
        pytest.param("joblib", "hydra_plugins.hydra_joblib_launcher.joblib_launcher", id="joblib"),
        pytest.param("submitit_local", "hydra_plugins.hydra_submitit_launcher.submitit_launcher", id="submitit"),
    ],
)
def test_launcher(launcher: str, plugin: str, tmp_path: Path) -> None:
    pytest.importorskip(plugin)
    words = ("model=e2b,31b", "tp=1,2")
    (tmp_path / "basic").mkdir()
    (tmp_path / "other").mkdir()
    basic = run("-m", *words, cwd=tmp_path / "basic")
    other = run("-m", *words, f"hydra/launcher={launcher}", cwd=tmp_path / "other")
    assert jobs(other) == jobs(basic)
    assert [job["status"] for job in jobs(other)] == ["done", "done", "refused", "refused"]
    assert "4 jobs: 2 done, 2 refused" in other.out


def test_optuna_minimises_the_objective(tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper.optuna_sweeper")
    grid = ("hydra/sweeper=optuna", "hydra/sweeper/sampler=grid", "hydra.sweeper.n_jobs=1")
    done = run("-m", *grid, "model=e2b", "target=inf2.xlarge", "objective=latency", "tp=choice(1,2,4)", cwd=tmp_path)
    table = jobs(done)
    assert sorted(job["reason"] or "" for job in table) == ["", "", "nothing_left"]
    assert done.directory is not None
    found = yaml.safe_load((done.directory / "optimization_results.yaml").read_text())
    best = next(job for job in table if job["tp"] == 2)
    assert found["best_params"] == {"tp": 2}
    assert found["best_value"] == pytest.approx(1e3 / best["decode_tokens_per_s"]["low"], rel=1e-5)

"""Sweeps: every job is classified, and a user's mistake in one of them stops none of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4cfg.config.catalog import choices
from tests.cli.runs import Job, run


def codes(jobs: list[Job]) -> list[int]:
    return [job.result["exit_code"] if job.result else -1 for job in jobs]


def test_a_plan_that_does_not_fit_is_a_row(tmp_path: Path) -> None:
    done = run("-m", "model=e2b,31b", "tp=1,2", cwd=tmp_path)
    assert done.exit_code == 0, done.err
    assert "Traceback" not in done.err
    assert codes(done.jobs) == [0, 0, 2, 2]
    for job in done.jobs[:2]:
        assert job.result is not None and job.result["status"] == "done"
        assert job.plan is not None and job.plan["model"] == "e2b"
    for job in done.jobs[2:]:
        assert job.plan is None
        assert job.result is not None and job.result["status"] == "refused"
        assert "weights alone are" in job.told
        assert "tp=4 target=" in job.told


def test_a_wrong_type_is_a_row(tmp_path: Path) -> None:
    done = run("-m", "model=e2b", "tp=eight,1", cwd=tmp_path)
    assert done.exit_code == 0
    assert codes(done.jobs) == [2, 0]
    assert "tp=eight: expected a whole number" in done.jobs[0].told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        pytest.param(("model=e2b,e2c",), ("model=e2c", *choices("model")), id="choice"),
        pytest.param(("model=e2b", "tpp=1,2"), ("tpp", "did you mean 'tp'"), id="key"),
        pytest.param(("model=e2b", "tp=1,{"), ("tp=1,{", "not an override"), id="grammar"),
    ],
)
def test_what_cannot_be_composed_aborts_before_any_job(
    words: tuple[str, ...], told: tuple[str, ...], tmp_path: Path
) -> None:
    done = run("-m", *words, cwd=tmp_path)
    assert done.exit_code == 2
    assert "Traceback" not in done.err
    assert all(word in done.err for word in told)
    assert done.directory is not None and done.directory.parent.name == "sweeps"
    assert done.jobs == []
    assert done.result is not None and done.result["exit_code"] == 2


def test_verbose_and_a_swept_key(tmp_path: Path) -> None:
    """Case 90."""
    done = run("-m", "model=e2b", "tp=1,2", "hydra.verbose=true", cwd=tmp_path)
    assert (done.exit_code, codes(done.jobs)) == (0, [0, 0]), done.err


def test_a_key_of_one_model_only(tmp_path: Path) -> None:
    """Case 86: a documented sweep over a key that some of the models never read."""
    done = run("-m", "model=e2b,26b-a4b", "moe.partition=intermediate,experts", "tp=8", cwd=tmp_path)
    assert done.exit_code == 0, done.err
    assert codes(done.jobs) == [2, 2, 0, 0]
    for job in done.jobs[:2]:
        assert "moe.partition is never read: e2b has no experts; leave it out" in job.told
    partitions = [job.plan["layers"][0]["moe"]["partition"] for job in done.jobs if job.plan]
    assert partitions == ["intermediate", "experts"]


def test_values_that_are_mappings(tmp_path: Path) -> None:
    """Case 87, where each is the only word for its key: as many jobs as there are values."""
    layers = "attention.layers={full_attention:replicate},{full_attention:group}"
    done = run("-m", "model=31b", "tp=8", layers, cwd=tmp_path)
    assert (done.exit_code, codes(done.jobs)) == (0, [0, 0]), done.err
    modes = [{layer["attention"]["mode"] for layer in job.plan["layers"][5::6]} for job in done.jobs if job.plan]
    assert modes == [{"replicate"}, {"group"}]

"""Sweeps: every job is classified, and a user's mistake in one of them stops none of the others."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from gemma4cfg.config.catalog import choices
from tests.cli.runs import ROOT, Job, run


def codes(jobs: list[Job]) -> list[int]:
    return [job.result["exit_code"] if job.result else -1 for job in jobs]


def test_a_plan_that_does_not_fit_is_a_row(tmp_path: Path) -> None:
    done = run("-m", "model=e2b,31b", "tp=1,2", cwd=tmp_path)
    assert done.exit_code == 0, done.err
    assert "Traceback" not in done.err
    assert codes(done.jobs) == [0, 0, 2, 2]
    assert "4 jobs: 2 done, 2 refused" in done.out
    assert "does_not_fit: 31b at tp=1" in done.out
    assert "prefill_512" not in done.out, "plans are lines of the table"
    assert done.directory is not None and (done.directory / "sweep.csv").is_file()
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
        pytest.param(("model=e2b", "tp=1,2", "tp=4"), ("tp is given twice", "tp=1,2,4"), id="twice"),
        pytest.param(("model=glob(zz*)",), ("model=glob(zz*): a sweep over nothing", *choices("model")), id="glob"),
        pytest.param(("model=e2b", "hydra.mode=MULTIRUN", "tp=1,2", "tp=4"), ("tp is given twice",), id="mode"),
        pytest.param(
            ("model=e2b", "tp=1,2", "hydra.sweep.subdir=same"),
            ("jobs that differ in tp would share", "hydra.sweep.subdir='${tp}'"),
            id="one-directory",
        ),
        pytest.param(
            ("model=e2b,31b", "tp=1,2", "hydra.sweep.subdir=tp${tp}"),
            ("jobs that differ in model would share", "'${tp}-${model}'"),
            id="shared-directories",
        ),
        pytest.param(
            ("model=e2b", "tp=1,2", "hydra.output_subdir=null", "hydra.sweep.subdir=tp${tp}"),
            ("hydra.output_subdir=null: a sweep's table", "leave hydra.output_subdir out"),
            id="no-records",
        ),
        pytest.param(
            ("model=e2b,26b-a4b", "model.moe.top_k=4"), ("as model=auto first", "++model.moe.top_k"), id="default-first"
        ),
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


def test_the_documented_way_over_a_key_of_one_model(tmp_path: Path) -> None:
    """Case 86: what the message about the default configuration says works."""
    done = run("-m", "model=e2b,26b-a4b", "++model.moe.top_k=4", "tp=8", cwd=tmp_path)
    assert (done.exit_code, codes(done.jobs)) == (0, [2, 0]), done.err
    assert "e2b has no experts; leave model.moe.top_k out" in done.jobs[0].told
    plan = done.jobs[1].plan
    assert plan is not None and plan["layers"][0]["moe"]["top_k"] == 4


def test_a_glob_that_matches(tmp_path: Path) -> None:
    done = run("-m", "model=glob(e*)", "tp=2", cwd=tmp_path)
    assert (done.exit_code, codes(done.jobs)) == (0, [0, 0]), done.err


def test_a_flag_in_the_first_word_too(tmp_path: Path) -> None:
    """Case 87 as published: mappings under one key, twice."""
    twice = ("attention={policy:split},{policy:group}", "attention={implementation:eager},{implementation:sdpa}")
    done = run("-m", "model=31b", "tp=8", *twice, cwd=tmp_path)
    assert done.exit_code == 2
    assert "attention is given twice" in done.err
    assert done.jobs == []


@pytest.mark.parametrize("words", [("-m", "model=mine,e2b", "tp=1,2"), ("model=mine",)], ids=["swept", "single"])
def test_a_model_that_chooses_the_launcher(words: tuple[str, ...], tmp_path: Path) -> None:
    """Case 89: a file that is read when the launcher has been chosen."""
    mine, launcher = tmp_path / "mine" / "model", tmp_path / "mine" / "hydra" / "launcher"
    mine.mkdir(parents=True)
    launcher.mkdir(parents=True)
    (launcher / "other.yaml").write_text("_target_: hydra._internal.core_plugins.basic_launcher.BasicLauncher\n")
    own = "defaults:\n  - e2b@model\n  - override /hydra/launcher: other\n"
    (mine / "mine.yaml").write_text(f"# @package _global_\n{own}")
    (mine / "nested.yaml").write_text(own)
    done = run("--config-dir", "mine", *words, cwd=tmp_path)
    told = "hydra/launcher=other stands in a file of the configuration"
    if len(words) == 1:
        assert (done.exit_code, told in done.err) == (2, True), done.err
    else:
        assert (done.exit_code, codes(done.jobs)) == (0, [2, 2, 0, 0]), done.err
        assert told in done.jobs[0].told
    nested = run("--config-dir", "mine", "model=nested", cwd=tmp_path)
    assert (nested.exit_code, "hydra/launcher=… stands in a file" in nested.err) == (2, True), nested.err
    said = run("--config-dir", "mine", "-m", "model=mine", "hydra/launcher=other", cwd=tmp_path)
    assert (said.exit_code, codes(said.jobs)) == (0, [0]), said.err


def test_an_earlier_sweep_in_the_same_directory_is_not_counted(tmp_path: Path) -> None:
    there = "hydra.sweep.dir=outputs/sweeps/mine"
    assert run("-m", "model=e2b", "tp=1,2,4", there, cwd=tmp_path).exit_code == 0
    done = run("-m", "model=e4b", "tp=1,2", there, cwd=tmp_path)
    table = json.loads((tmp_path / "outputs/sweeps/mine/sweep.json").read_text())["jobs"]
    assert [(job["job"], job["model"]) for job in table] == [(0, "e4b"), (1, "e4b")]
    assert "2 jobs: 2 done" in done.out


def test_directories_of_other_names(tmp_path: Path) -> None:
    named = "hydra.sweep.subdir=${hydra.job.override_dirname}"
    done = run("-m", "model=e2b", "tp=2,1", named, cwd=tmp_path)
    assert done.exit_code == 0 and done.directory is not None
    table = json.loads((done.directory / "sweep.json").read_text())["jobs"]
    assert [(job["job"], job["overrides"]) for job in table] == [(0, ["model=e2b", "tp=2"]), (1, ["model=e2b", "tp=1"])]


def test_directories_by_a_swept_key(tmp_path: Path) -> None:
    done = run("-m", "model=e2b", "tp=2,1", "hydra.sweep.subdir=tp${tp}", cwd=tmp_path)
    assert done.exit_code == 0 and done.directory is not None, done.err
    table = json.loads((done.directory / "sweep.json").read_text())["jobs"]
    assert [(job["job"], job["tp"]) for job in table] == [(0, 2), (1, 1)]


@pytest.mark.parametrize(
    ("plant", "told"),
    [
        pytest.param("raise RuntimeError('planted')", "RuntimeError: planted", id="defect"),
        pytest.param("raise OSError(28, 'No space left on device')", "No space left on device", id="io"),
    ],
)
def test_a_job_that_fails_is_a_row(plant: str, told: str, tmp_path: Path) -> None:
    """The jobs after it run, the table is written, and the exit code says it."""
    (tmp_path / "sitecustomize.py").write_text(
        f"import gemma4cfg.tasks.plan as task\nbuild = task.build_plan\n"
        f"def planted(config):\n    if config.settings.tp == 2: {plant}\n    return build(config)\n"
        "task.build_plan = planted\n"
    )
    path = {"PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}
    done = run("-m", "model=e2b", "tp=1,2,4", cwd=tmp_path, env=path)
    assert (done.exit_code, codes(done.jobs)) == (1, [0, 1, 0]), done.err
    assert "Traceback" in done.err and told in done.err
    assert done.directory is not None
    table = json.loads((done.directory / "sweep.json").read_text())["jobs"]
    assert [(job["status"], job["reason"]) for job in table] == [("done", None), ("failed", "defect"), ("done", None)]
    assert told in table[1]["message"]
    assert "3 jobs: 2 done, 1 failed" in done.out


def test_a_directory_that_cannot_be_used_is_a_row(tmp_path: Path) -> None:
    (tmp_path / "outputs/sweeps/mine/0/plan.json").mkdir(parents=True)
    done = run("-m", "model=e2b", "tp=1,2", "hydra.sweep.dir=outputs/sweeps/mine", cwd=tmp_path)
    assert (done.exit_code, codes(done.jobs)) == (1, [1, 0]), done.err
    assert "0    tp=1       failed  defect: " in done.out


def test_a_table_that_cannot_be_written_is_no_silence(tmp_path: Path) -> None:
    """Hydra would make a warning of it."""
    (tmp_path / "outputs/sweeps/mine/sweep.csv").mkdir(parents=True)
    done = run("-m", "model=e2b", "hydra.sweep.dir=outputs/sweeps/mine", cwd=tmp_path)
    assert done.exit_code == 1
    assert "IsADirectoryError" in done.err or "Is a directory" in done.err
    shutil.rmtree(tmp_path / "outputs")

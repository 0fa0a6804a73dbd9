"""``python -m gemma4cfg.report``: what it takes, where it writes, and what a user may get wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gemma4cfg import UserError, build_plan, load_config, sweep
from gemma4cfg.report import run as report
from gemma4cfg.sweeps.files import write_sweep
from gemma4cfg.tasks.files import write_json
from tests.cli.runs import run


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_json(tmp_path / "run" / "plan.json", build_plan(load_config(["model=e2b"])).to_json())
    write_sweep(tmp_path / "sweep", sweep(["model=e2b,31b", "tp=1"]))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "sweep.json").write_text('{"jobs": [{"job": 0}]}', encoding="utf-8")
    rows = json.loads((tmp_path / "sweep" / "sweep.json").read_text(encoding="utf-8"))["jobs"]
    older = [{key: value for key, value in row.items() if key != "device_bytes"} for row in rows]
    write_json(tmp_path / "older" / "sweep.json", {"jobs": older})
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "written", "title"),
    [
        pytest.param(["run"], "run/report.html", "e2b on inf2.xlarge, tp 1", id="run"),
        pytest.param(["run/plan.json"], "run/report.html", "e2b on inf2.xlarge, tp 1", id="file"),
        pytest.param(["model=e2b tp=2"], "report.html", "e2b on inf2.xlarge, tp 2", id="overrides"),
        pytest.param(["sweep"], "sweep/report.html", "sweep of 2 jobs", id="sweep"),
        pytest.param(["sweep/sweep.json", "-o", "out/s.html"], "out/s.html", "sweep of 2 jobs", id="output"),
        pytest.param(["--diff", "run", "model=e2b tp=2"], "report.html", "e2b tp 1 to e2b tp 2", id="diff"),
        pytest.param(["run", "-o", "plan.svg"], "plan.svg", "e2b on inf2.xlarge, tp 1: KV heads", id="picture"),
    ],
)
def test_inputs(words: list[str], written: str, title: str, runs: Path) -> None:
    assert report(words) == Path(written)
    assert f"<title>{title}" in (runs / written).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        pytest.param([], "nothing to show: name a plan.json", id="nothing"),
        pytest.param(["empty"], "empty: holds no plan.json", id="empty"),
        pytest.param(["broken"], "broken/sweep.json: no sweep", id="broken-sweep"),
        pytest.param(["older"], "older/sweep.json: no sweep .job 0 has no device_bytes", id="older-sweep"),
        pytest.param(["zzz"], "zzz: nothing there, and no overrides", id="absent"),
        pytest.param(["run", "--diff", "run", "run"], "--diff A B names both plans", id="both"),
        pytest.param(["sweep", "-o", "x.svg"], "only a plan has a picture", id="picture-of-sweep"),
        pytest.param(["--diff", "run", "run", "-o", "x.svg"], "only a plan has a picture", id="picture-of-diff"),
        pytest.param(["run", "-o", "empty"], "empty: a directory", id="directory"),
    ],
)
def test_mistakes(words: list[str], told: str, runs: Path) -> None:
    with pytest.raises(UserError, match=told):
        report(words)
    assert not list(runs.rglob("*.html")) + list(runs.rglob("*.svg"))


def test_the_command(tmp_path: Path) -> None:
    done = run("model=e2b", cwd=tmp_path, module="gemma4cfg.report")
    assert (done.exit_code, done.out, done.err) == (0, "report.html\n", "")
    refused = run("model=e3b", cwd=tmp_path, module="gemma4cfg.report")
    assert refused.exit_code == 2
    assert "Traceback" not in refused.err


def test_equal_plans_give_equal_pages(runs: Path) -> None:
    report(["run", "-o", "a.html"])
    report(["run", "-o", "b.html"])
    assert (runs / "a.html").read_bytes() == (runs / "b.html").read_bytes()
    assert json.loads((runs / "run" / "plan.json").read_text())["plan_id"] in (runs / "a.html").read_text("utf-8")

"""``python -m gemma4cfg.diff``: its sides, its exit codes, its JSON, and what a user may get wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gemma4cfg import apply_diff, build_plan, load_config
from gemma4cfg.diff import run as compare
from gemma4cfg.errors import UserError
from gemma4cfg.plan.encode import canonical
from gemma4cfg.tasks.files import write_json
from tests.cli.runs import ROOT, run

E2B, RING = ["model=e2b"], ["model=e2b", "shapes.kv_layout=ring"]


def plan(overrides: list[str]) -> dict[str, Any]:
    return build_plan(load_config(overrides)).to_json()


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A run, a sweep of two jobs, a run that was refused, and a file that is no plan."""
    write_json(tmp_path / "run" / "plan.json", plan(E2B))
    write_json(tmp_path / "sweep" / "0" / "plan.json", plan(E2B))
    write_json(tmp_path / "sweep" / "1" / "plan.json", plan(RING))
    refused = {"severity": "error", "code": "plan", "layer": None, "message": "31b does not fit", "fix": ""}
    write_json(tmp_path / "refused" / "result.json", {"status": "refused", "exit_code": 2, "findings": [refused]})
    (tmp_path / "text.json").write_text("no JSON", encoding="utf-8")
    (tmp_path / "list.json").write_text("[1]", encoding="utf-8")
    (tmp_path / "empty").mkdir()
    for number, text in enumerate(("x", "[]", '{"findings":[{"severity":"error"}]}')):
        (tmp_path / f"broken{number}").mkdir()
        (tmp_path / f"broken{number}" / "result.json").write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        pytest.param("run/plan.json", "run", 0, id="file-and-run"),
        pytest.param("run", "sweep/0", 0, id="job"),
        pytest.param("run", "sweep/1", 1, id="other-job"),
        pytest.param("run", "model=e2b", 0, id="overrides"),
        pytest.param("model=e2b 'shapes.kv_layout=ring'", "sweep/1", 0, id="quoted"),
        pytest.param("model=e2b", "model=e2b tp=2", 1, id="two-overrides"),
    ],
)
def test_sides(
    old: str, new: str, code: int, runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(runs)
    assert compare([old, new]) == code
    assert ("same: nothing to rebuild" in capsys.readouterr().out) == (code == 0)


@pytest.mark.parametrize(
    ("side", "told"),
    [
        pytest.param("absent.json", "absent.json: nothing there, and no overrides; expected a plan.json", id="absent"),
        pytest.param("", "(empty): nothing there", id="empty"),
        pytest.param("model=e2b tp", "model=e2b tp: nothing there, and no overrides", id="half"),
        pytest.param("model='e2b", "No closing quotation", id="quote"),
        pytest.param("text.json", "text.json: not JSON", id="text"),
        pytest.param("list.json", "list.json: no plan", id="list"),
        pytest.param("empty", "empty: holds no plan.json", id="no-plan"),
        pytest.param("refused", "refused: this run has no plan: 31b does not fit", id="refused"),
        *(
            pytest.param(f"broken{n}", f"broken{n}: this run has no plan: its result.json cannot be read")
            for n in range(3)
        ),
        pytest.param("sweep", "name one of its 2 directories that do, e.g. sweep/0", id="sweep"),
        pytest.param("model=e3b", "model=e3b: no such choice", id="choice"),
        pytest.param("model=31b tp=2 target=inf2.8xlarge", "does not fit inf2.8xlarge", id="no-fit"),
    ],
)
def test_trouble(side: str, told: str, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs)
    for sides in ([side, "run"], ["run", side]):
        with pytest.raises(UserError) as refused:
            compare(sides)
        assert told in str(refused.value)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        pytest.param(lambda plan: plan.update(tp=2), "the plan was changed after it was made", id="tampered"),
        pytest.param(lambda plan: plan.update(format_version="0.9"), "this version reads 1.0", id="stale"),
        pytest.param(lambda plan: plan.update(extra=1), "unknown key plan.extra", id="key"),
        pytest.param(lambda plan: plan.pop("graphs"), "plan.graphs is missing", id="missing"),
    ],
)
def test_a_changed_plan_is_refused(
    change: Callable[[dict[str, Any]], Any], told: str, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(runs)
    plain = json.loads(canonical(plan(E2B)))
    change(plain)
    write_json(runs / "changed.json", plain)
    with pytest.raises(UserError) as refused:
        compare(["run", "changed.json"])
    assert str(refused.value).startswith("changed.json: ")
    assert told in str(refused.value)


def test_json_is_the_difference(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(["model=e2b", " ".join(RING), "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert canonical(apply_diff(plan(E2B), printed)) == canonical(plan(RING))


@pytest.mark.parametrize(
    ("new", "code", "told"),
    [
        pytest.param("model=e2b", 0, "as expected: the same", id="same"),
        pytest.param("model=e2b shapes.kv_layout=ring", 1, "expected the same plan, but ", id="different"),
    ],
)
def test_expected_to_be_the_same(new: str, code: int, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(["model=e2b", new, "--expect", "same"]) == code
    assert told in capsys.readouterr().err


def test_the_command(tmp_path: Path) -> None:
    """Exit codes of a process, and nothing written."""
    same = run("model=e2b", "model=e2b", cwd=tmp_path, module="gemma4cfg.diff")
    assert (same.exit_code, same.err) == (0, "")
    assert same.out.splitlines()[-1] == "same: nothing to rebuild"
    trouble = run("model=e2b", "model=e3b", cwd=tmp_path, module="gemma4cfg.diff")
    assert (trouble.exit_code, trouble.out) == (2, "")
    assert trouble.err.startswith("error model=e3b: no such choice")
    usage = run("model=e2b", cwd=tmp_path, module="gemma4cfg.diff")
    assert usage.exit_code == 2 and "usage: python -m gemma4cfg.diff" in usage.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "code", "results"),
    [
        pytest.param(["gemma4cfg.diff", "model=e2b", "model=31b tp=8", "--json"], 1, 0, id="json"),
        pytest.param(["gemma4cfg.diff", "model=e2b", "model=31b tp=8"], 1, 0, id="diff"),
        pytest.param(["gemma4cfg", "model=31b", "tp=8"], 0, 1, id="plan"),
        pytest.param(["gemma4cfg", "-m", "model=31b", "tp=4,8"], 0, 2, id="sweep"),
    ],
)
def test_a_reader_that_leaves(words: list[str], code: int, results: int, tmp_path: Path) -> None:
    """As ``head`` does: not a word, and the run comes to its end."""
    command, path = [sys.executable, "-m", *words], {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, env=path) as ran:
        assert ran.stdout is not None and ran.stderr is not None
        ran.stdout.close()
        assert ran.stderr.read() == b""
    assert ran.returncode == code
    ended = [json.loads(path.read_text())["status"] for path in tmp_path.rglob("result.json")]
    assert ended == ["done"] * results


def test_a_defect_is_trouble(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """1 would say that the plans differ."""
    from gemma4cfg import diff

    def fail(_: str) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(diff, "plan_of", fail)
    monkeypatch.setattr("sys.argv", ["diff", "a", "b"])
    with pytest.raises(SystemExit) as ended:
        diff.main()
    assert ended.value.code == 2
    assert "RuntimeError: a defect" in capsys.readouterr().err

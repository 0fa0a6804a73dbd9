"""Equal inputs give byte-equal plans but for provenance, wherever and whenever they are made."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4cfg.plan.encode import canonical
from tests.cli.runs import Result, run

COMMAND = ("model=26b-a4b", "tp=8", "moe.partition=experts")


def without_provenance(done: Result) -> bytes:
    assert done.exit_code == 0, done.err
    assert done.plan is not None
    return canonical({key: value for key, value in done.plan.items() if key != "provenance"}).encode()


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return run(*COMMAND, cwd=tmp_path_factory.mktemp("first"), env={"PYTHONHASHSEED": "0", "TZ": "UTC"})


@pytest.mark.parametrize(
    ("below", "env"),
    [
        pytest.param("deep/down", {"TZ": "Asia/Kathmandu"}, id="directory-and-time-zone"),
        pytest.param(
            ".", {"PYTHONHASHSEED": "4242", "LANG": "C", "LC_ALL": "C", "COLUMNS": "40"}, id="hash-seed-and-locale"
        ),
    ],
)
def test_the_same_plan(below: str, env: dict[str, str], first: Result, tmp_path: Path) -> None:
    place = tmp_path / below
    place.mkdir(parents=True, exist_ok=True)
    assert without_provenance(run(*COMMAND, cwd=place, env=env)) == without_provenance(first)


def test_twice_in_one_directory(first: Result) -> None:
    assert first.directory is not None
    again = run(*COMMAND, cwd=first.directory.parents[2])
    assert again.directory is not None and again.directory > first.directory
    assert again.plan == first.plan, "the provenance too"


def test_provenance_alone_tells_paths(first: Result, tmp_path: Path) -> None:
    """Where rank files go is no part of what they hold; the order of words is none either."""
    other = run(*reversed(COMMAND), f"output={tmp_path}", cwd=tmp_path)
    assert without_provenance(other) == without_provenance(first)
    assert other.plan is not None and first.plan is not None
    assert other.plan["provenance"]["output"] == str(tmp_path)
    assert other.plan["provenance"] != first.plan["provenance"]

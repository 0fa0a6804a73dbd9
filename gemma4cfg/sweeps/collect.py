"""The rows of a sweep that Hydra ran, from what its jobs left."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from gemma4cfg.sweeps.directories import RECORDS
from gemma4cfg.sweeps.row import Row, compared, row_of_plan, row_without_plan
from gemma4cfg.tasks.files import PLAN_FILE, RESULT_FILE

_NO_RESULT = {
    "severity": "error",
    "code": "no_result",
    "message": f"the job left no {RESULT_FILE}: it was killed, or its directory is not to be seen from here",
    "fix": "run it alone, or look into its log",
}

Marks = Mapping[Path, int]


def marks(directory: Path) -> Marks:
    """Each job directory under ``directory`` with the time of its newest record, to know later which jobs are new."""
    found: dict[Path, int] = {}
    for path in (*directory.rglob(f"{RECORDS}/overrides.yaml"), *directory.rglob(RESULT_FILE)):
        job = path.parent.parent if path.parent.name == RECORDS else path.parent
        if job != directory:
            found[job] = max(found.get(job, 0), path.stat().st_mtime_ns)
    return found


def collect(directory: Path, before: Marks) -> tuple[Row, ...]:
    """A row for every job under ``directory`` but those of an earlier sweep (``before``), in the order of their numbers."""
    jobs = [job for job, time in marks(directory).items() if before.get(job) != time]
    return compared(_row(number, job) for number, job in sorted((_number(job), job) for job in jobs))


def _number(job: Path) -> int:
    if job.name.isdecimal():
        return int(job.name)
    recorded = yaml.safe_load((job / RECORDS / "hydra.yaml").read_text(encoding="utf-8"))
    return int(recorded["hydra"]["job"]["num"])


def _row(number: int, job: Path) -> Row:
    listed = job / RECORDS / "overrides.yaml"
    words = yaml.safe_load(listed.read_text(encoding="utf-8")) if listed.is_file() else []
    result = _read(job / RESULT_FILE)
    if result is None:
        return row_without_plan(number, words, "failed", [_NO_RESULT])
    plan = _read(job / PLAN_FILE)
    if result["status"] == "done" and plan is not None:
        return row_of_plan(number, words, plan)
    return row_without_plan(number, words, result["status"], result["findings"])


def _read(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return read

"""A sweep's table as files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from gemma4cfg.plan.encode import to_plain
from gemma4cfg.plan.records import HbmBudget, Span
from gemma4cfg.sweeps.row import Row
from gemma4cfg.tasks.files import write_json, write_text

SWEEP_JSON, SWEEP_CSV = "sweep.json", "sweep.csv"

_PARTS: dict[str, tuple[str, ...]] = {
    "hbm_per_rank": tuple(field.name for field in fields(HbmBudget)),
    **dict.fromkeys(
        ("decode_tokens_per_s", "prefill_ms", "usd_per_million_tokens"), tuple(field.name for field in fields(Span))
    ),
}
"""Columns that hold a record: one for each of its fields in CSV."""


def write_sweep(directory: Path, rows: Sequence[Row]) -> None:
    """``sweep.json`` (an object a job) and ``sweep.csv`` (a line a job, dotted names, words and graph ids by spaces)."""
    jobs = [to_plain(row) for row in rows]
    write_json(directory / SWEEP_JSON, {"jobs": jobs})
    write_text(directory / SWEEP_CSV, _csv(jobs))


def _csv(jobs: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([name for field in fields(Row) for name in _columns(field.name)])
    writer.writerows([cell for key, value in job.items() for cell in _cells(key, value)] for job in jobs)
    return text.getvalue()


def _columns(key: str) -> list[str]:
    return [f"{key}.{part}" for part in _PARTS[key]] if key in _PARTS else [key]


def _cells(key: str, value: Any) -> Iterator[Any]:
    if key in _PARTS:
        yield from (value[part] if value else "" for part in _PARTS[key])
    else:
        yield " ".join(value) if isinstance(value, list) else "" if value is None else value

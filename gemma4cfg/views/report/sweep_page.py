"""What the page of a sweep shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gemma4cfg.views.report import pareto
from gemma4cfg.views.sweep import common_words

JsonRow = Mapping[str, Any]


def sweep_context(rows: Sequence[JsonRow]) -> dict[str, Any]:
    """The names that ``sweep.html`` reads, of a sweep's rows in JSON form."""
    common = common_words(rows)
    done = [row for row in rows if row["plan_id"] is not None]
    reasons: dict[str, list[JsonRow]] = {}
    for row in rows:
        if row["plan_id"] is None:
            reasons.setdefault(row["reason"] or row["status"], []).append(row)
    return {
        "title": f"sweep of {len(rows)} jobs",
        "common": common,
        "jobs": rows,
        "done": [(row, _words(row, common)) for row in done],
        "reasons": {reason: [(row, _words(row, common)) for row in members] for reason, members in reasons.items()},
        "plots": pareto.plots(rows),
        "drawing": pareto,
    }


def _words(row: JsonRow, common: Sequence[str]) -> str:
    return " ".join(word for word in row["overrides"] if word not in common)

"""A sweep on the terminal: a line for every job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

from gemma4cfg.views.sizes import gigabytes
from gemma4cfg.views.tables import plain_table

JsonRow = Mapping[str, Any]


def show_sweep(rows: Sequence[JsonRow], console: Console) -> None:
    """Print the rows of a sweep in JSON form: what differs between the jobs, and what each comes to or why it cannot be."""
    common = common_words(rows)
    counts = Counter(row["status"] for row in rows)
    told = ", ".join(f"{count} {status}" for status, count in counts.items())
    shared = "".join(f", {escape(word)}" for word in common)
    console.print(f"\n[bold]{len(rows)} jobs[/]: {told}{shared}", soft_wrap=True)
    planned = plain_table(
        "job", "overrides", "plan", "weights", "device, a rank", "tokens/s", "$/M tokens", "recompiles", "rank files"
    )
    others = plain_table("job", "overrides", "status", "why not")
    for row in rows:
        words = escape(" ".join(word for word in row["overrides"] if word not in common))
        if row["plan_id"] is not None:
            planned.add_row(str(row["job"]), words, *_figures(row))
        else:
            why = "" if row["reason"] is None else f"[bold]{row['reason']}[/]: {escape(row['message'])}"
            others.add_row(str(row["job"]), words, row["status"], why)
    for table in (planned, others):
        if table.row_count:
            console.print(table)


def common_words(rows: Sequence[JsonRow]) -> list[str]:
    """The overrides that every job has."""
    return [word for word in (rows[0]["overrides"] if rows else ()) if all(word in row["overrides"] for row in rows)]


def _figures(row: JsonRow) -> Iterator[str]:
    hbm = row["hbm_per_rank"]
    yield f"{row['model']} tp {row['tp']} {row['target']}"
    yield gigabytes(hbm["weights"])
    yield f"{gigabytes(hbm['total'])} of {gigabytes(hbm['limit'])}"
    yield _span(row["decode_tokens_per_s"])
    yield _span(row["usd_per_million_tokens"])
    yield f"{row['recompiles']} of {len(row['graphs'])}"
    yield "new" if row["rank_files_of"] == row["job"] else f"of job {row['rank_files_of']}"


def _span(span: Mapping[str, float] | None) -> str:
    return "-" if span is None else f"{span['low']:.3g}-{span['high']:.3g}"

"""A proof on the terminal, from its JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

STREAM_TITLES = {
    "prompt_tokens": "prompt",
    "steps": "decoded",
    "left_out": "left out",
    "prefill_relative": "prefill error",
    "decode_relative": "decode error",
    "max_absolute": "max abs",
    "smallest_margin": "smallest top-2 margin",
}


def show_proof(proof: Mapping[str, Any], console: Console) -> None:
    """Print ``proof``: what was run, a line for each check, each stream, and where the time went."""
    versions = proof["reference"]["versions"]
    console.print(
        f"[bold]{escape(proof['subject'])}[/], tp {proof['tp']}, {proof['dtype']}, {proof['tp']} CPU ranks against "
        f"{proof['reference']['class_name']} of transformers {versions['transformers']}"
    )
    table = Table(box=None, pad_edge=False)
    for title in ("check", "", "figure", "limit", "what was seen"):
        table.add_column(title, overflow="fold")
    for check in proof["checks"]:
        mark = "[green]holds[/]" if check["passed"] else "[bold red]FAILS[/]"
        table.add_row(check["name"], mark, _figure(check["figure"]), _figure(check["limit"]), escape(check["detail"]))
    console.print()
    console.print(table)
    rows = Table(box=None, pad_edge=False)
    left_out = ["left_out"] if any(stream["left_out"] for stream in proof["streams"]) else []
    counts = ("prompt_tokens", "steps", *left_out)
    figures = ("prefill_relative", "decode_relative", "max_absolute", "smallest_margin")
    for key in (*counts, *figures):
        rows.add_column(STREAM_TITLES[key], justify="right")
    for stream in proof["streams"]:
        rows.add_row(*(str(stream[key]) for key in counts), *(_figure(stream[key]) for key in figures))
    console.print()
    console.print(rows)
    seconds = ", ".join(f"{part} {value:.1f} s" for part, value in proof["seconds"].items())
    console.print(f"\n{'proved' if proof['holds'] else 'disproved'} ({seconds})")


def show_drills(report: Mapping[str, Any], console: Console) -> None:
    """Print which planted faults were detected, and by what."""
    table = Table(box=None, pad_edge=False)
    for title in ("drill", "planted in", "", "what gave it away"):
        table.add_column(title, overflow="fold")
    for drill in report["drills"]:
        planted = escape(", ".join((drill["room"], *drill["choices"])))
        if drill["applies"]:
            mark = "[green]detected[/]" if drill["detected"] else "[bold red]MISSED[/]"
            table.add_row(drill["name"], planted, mark, escape(drill["evidence"]))
        else:
            table.add_row(drill["name"], planted, "[dim]n/a[/]", f"[dim]{escape(drill['evidence'])}[/]")
    console.print(table)
    console.print(f"\n{report['detected']}/{report['total']} detected")


def show_case(case: Mapping[str, Any], number: int, of: int, console: Console) -> None:
    """Print one line of a matrix."""
    mark = "[green]holds[/]" if case["holds"] else f"[bold red]FAILS[/] {', '.join(case['failed'])}"
    figures = " ".join(_figure(case[key]) for key in ("prefill_relative", "decode_relative"))
    console.print(
        f"{number:>3}/{of} {mark} {figures} (limit {_figure(case['limit'])}, {case['tokens']} tokens, {case['seconds']:.0f} s) "
        + escape(" ".join(case["overrides"])),
        soft_wrap=True,
    )


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"

"""A search on the terminal: the best, what nothing beats by everything, and why the others lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape

from gemma4cfg.plan.reasons import Reason
from gemma4cfg.views.sizes import gigabytes
from gemma4cfg.views.tables import plain_table


def show_search(search: Mapping[str, Any], console: Console) -> None:
    """Print a search in JSON form."""
    objective, best = search["objective"], search["best"]
    bounds = [
        f"{key.replace('_', ' ')} {objective[key]:g}"
        for key in objective
        if key[:4] in ("max_", "min_") and objective[key]
    ]
    console.print(
        f"[bold]least {objective['minimise']}[/]{''.join(f', {bound}' for bound in bounds)}: best of {search['fitting']:,} "
        f"plans that fit, from {search['combinations']:,} combinations"
    )
    console.print(f"  {best['overrides']}", soft_wrap=True)
    front = plain_table("front", "ms a token", "$ a million tokens", "device memory", "$ an hour")
    for choice in search["front"]:
        figures = choice["figures"]
        mark = "* " if choice["overrides"] == best["overrides"] else "  "
        front.add_row(
            mark + choice["overrides"],
            f"{figures['latency_ms']:.4g}",
            _dollars(figures["usd_per_million_tokens"]),
            gigabytes(figures["device_bytes"]),
            _dollars(figures["usd_per_hour"]),
        )
    console.print()
    console.print(front)
    lost = plain_table("not chosen", "because", "the best there is with it, or how far it came")
    for loss in search["lost"]:
        lost.add_row(loss["choice"], Reason.sentence_of(loss["reason"]), f"[dim]{escape(loss['detail'])}[/]")
    console.print()
    console.print(lost)
    console.print(
        "  Speeds are the low end of estimates: bytes read, collectives, and what crosses between host and device.\n",
        style="dim",
    )


def _dollars(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"

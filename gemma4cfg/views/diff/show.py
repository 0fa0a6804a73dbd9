"""The whole difference on the terminal; plain text in a pipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape

from gemma4cfg.decode import decode
from gemma4cfg.difference.edits import Edit
from gemma4cfg.views.diff.choices import show_choices
from gemma4cfg.views.diff.figures import show_figures, show_findings
from gemma4cfg.views.diff.graphs import show_calls, show_host, show_rebuild
from gemma4cfg.views.diff.layers import show_layers
from gemma4cfg.views.diff.tensors import show_tensors
from gemma4cfg.views.diff.words import of_part, plural, value_words
from gemma4cfg.views.tables import plain_table


def show_diff(diff: Mapping[str, Any], console: Console, every_tensor: bool = False) -> None:
    """Print a difference in JSON form. ``!`` marks what changes results by more than the order of sums."""
    _heading(diff, console)
    changes = diff["changes"]
    show_choices(changes, console)
    show_layers(changes, console)
    show_tensors(diff["tensors"], console, every_tensor)
    show_rank_tensors(changes, console)
    show_host(changes, console)
    show_calls(changes, console)
    show_figures(changes, console)
    show_findings(changes, console)
    if changes:
        show_rebuild(diff, console)
    console.print(total(diff))


def total(diff: Mapping[str, Any]) -> str:
    """One line: how much differs, and what is to be made again."""
    if not diff["changes"]:
        return "same: nothing to rebuild"
    totals, rebuild = diff["totals"], diff["rebuild"]
    named = ((key, totals[key]) for key in ("layers", "tensors", "calls", "findings"))
    parts = ", ".join(plural(count, key.removesuffix("s")) for key, count in named if count)
    results = f"{totals['numerics']:,} may change results" if totals["numerics"] else "none may change results"
    graphs = sum(graph["action"] != "drop" for graph in rebuild["graphs"])
    files = {"write": "write the rank files anew", "keep": "keep the rank files", "unused": "no rank files"}
    where = f": in {parts}" if parts else ""
    span = rebuild["compile_s"]
    seconds = f" (all: {span['low']:,.0f}-{span['high']:,.0f} s)" if span else ""
    return (
        f"{plural(totals['values'], 'value')} differ, {results}{where}. To rebuild: compile {totals['graphs']} of "
        f"{plural(graphs, 'graph')}{seconds}, {files[rebuild['rank_files']['action']]}"
    )


def _heading(diff: Mapping[str, Any], console: Console) -> None:
    for sign, key, style in (("-", "old", "red"), ("+", "new", "green")):
        side = diff[key]
        words = f"  ({' '.join(side['overrides'])})" if side["overrides"] else ""
        console.print(
            f"[{style}]{sign}[/] [bold]{side['model']}[/] on {side['target']}, tp {side['tp']}, {side['dtype']}, "
            f"{side['recipe']} ({side['sdk']}), plan {side['plan_id'][:12]}{escape(words)}"
        )
    console.print()


def show_rank_tensors(changes: list[Mapping[str, Any]], console: Console) -> None:
    """Tensors that differ by rank and are in no checkpoint: how many came, went or changed."""
    table = plain_table(" ", "rank tensors", "number", "")
    for edit in of_part(changes, "rank_tensors"):
        table.add_row("", edit["path"][1], value_words(decode(Edit, edit).count), edit["op"])
    if table.row_count:
        console.print(table)
        console.print()

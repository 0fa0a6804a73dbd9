"""A machine's examination, on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

_STYLE = {"ok": "green", "warning": "yellow", "missing": "bold red", "not looked at": "dim"}


def show_examination(lines: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print a line for each need."""
    table = Table(box=None, pad_edge=False)
    for title in ("need", "", "found", "remedy"):
        table.add_column(title, overflow="fold")
    for line in lines:
        style = _STYLE[line["status"]]
        table.add_row(line["need"], f"[{style}]{line['status']}[/]", escape(line["found"]), escape(line["remedy"]))
    console.print(table)

"""Tables without lines, and arguments of calls in one glance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table


def plain_table(*columns: str) -> Table:
    """Columns under bold titles, two spaces apart; long cells go on below."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def argument(value: Any) -> str:
    """An argument of a call: references as ``@path``, long lists and mappings by their first members."""
    if isinstance(value, Mapping):
        if "ref" in value:
            inner = "".join(f".{v}" for k, v in value.items() if k == "attribute")
            return f"@{value['ref']}{inner}"
        return "{" + _few([f"{key}: {argument(item)}" for key, item in value.items()]) + "}"
    if isinstance(value, list):
        return "[" + _few([argument(item) for item in value]) + "]"
    return str(value)


def _few(shown: list[str]) -> str:
    """At most six of them, and how many there are."""
    return ", ".join(shown if len(shown) <= 6 else [*shown[:4], f"… {len(shown)}"])

"""Tables without lines, which read well in a pipe."""

from __future__ import annotations

from rich.table import Table


def plain_table(*columns: str) -> Table:
    """An empty table with a header; what is too wide for a cell is folded."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table

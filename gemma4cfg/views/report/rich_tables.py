"""The terminal's tables as plain data, so that a page says what the terminal says."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    strong: bool


@dataclass(frozen=True, slots=True)
class Section:
    """A table: its columns' titles, the rows' cells."""

    titles: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


class _Collector(Console):
    """Keeps what is printed."""

    def __init__(self) -> None:
        super().__init__(file=io.StringIO())
        self.printed: list[Any] = []

    def print(self, *objects: Any, **_: Any) -> None:
        self.printed += objects


def sections(show: Callable[[Console], None]) -> Iterator[Section]:
    """The tables that ``show`` prints."""
    collector = _Collector()
    show(collector)
    return (_section(printed) for printed in collector.printed if isinstance(printed, Table))


def _section(table: Table) -> Section:
    columns = [[_cell(str(cell)) for cell in column.cells] for column in table.columns]
    return Section(tuple(str(column.header) for column in table.columns), tuple(zip(*columns, strict=True)))


def _cell(markup: str) -> Cell:
    text = Text.from_markup(markup)
    return Cell(text.plain, any("bold" in str(span.style) for span in text.spans))

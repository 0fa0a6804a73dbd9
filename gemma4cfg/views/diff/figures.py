"""Bytes, speed, cost and findings, before and after."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape

from gemma4cfg.views.diff.words import JsonEdit, cut, of_part, value_words
from gemma4cfg.views.sizes import gigabytes
from gemma4cfg.views.tables import plain_table

_MESSAGE = 110
"""Characters of what a gone finding said."""


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _size(value: int) -> str:
    return gigabytes(value) if value >= 1e6 else _number(value)


_PARTS: dict[tuple[str, str], tuple[str, Callable[[Any], str]]] = {
    ("budget", "hbm_per_rank"): ("device, a rank", gigabytes),
    ("budget", "maximum_context"): ("longest context", _number),
    ("budget", "host"): ("host", gigabytes),
    ("estimate", "decode_tokens_per_s"): ("decode tokens/s (estimate)", _number),
    ("estimate", "prefill_ms_by_bucket"): ("prefill ms, bucket (estimate)", _number),
    ("estimate", "bytes_per_token_per_rank"): ("bytes a token, a rank", _size),
    ("estimate", "usd_per_million_tokens"): ("$/M tokens (estimate)", _number),
    ("estimate", "compile_s"): ("compile s (estimate)", _number),
}
"""What is told, by its place in a plan: its name, and how its numbers are shown. A plan's ``prefill_ms`` is not among them:
the two sides' largest buckets may be different ones."""


class _Row(NamedTuple):
    """What changed, of each side its value, or both ends of a range; null for none."""

    what: tuple[str, ...]
    old: tuple[Any, ...]
    new: tuple[Any, ...]


def show_figures(changes: Sequence[JsonEdit], console: Console) -> None:
    table = plain_table(" ", "figures", "", "old", "new", "change")
    last = None
    for part, (name, show) in _PARTS.items():
        for row in _ranges(row for edit in of_part(changes, *part) for row in _rows(edit)):
            what = " ".join(row.what).replace("_", " ")
            table.add_row("", "" if name == last else name, what, *_cells(row, show), _relative(row))
            last = name
    if table.row_count:
        console.print(table)
        console.print()


def _rows(edit: JsonEdit) -> Iterator[_Row]:
    """Its one value; of a record that only one side has each of the record's."""
    start = [edit.get("numbers", "") if part == "{}" else part for part in edit["path"][2:]]
    old, new = edit.get("old"), edit.get("new")
    record = old or new
    if not isinstance(record, Mapping):
        yield _Row(tuple(start), (old,), (new,))
        return
    for key in record:
        before, after = ((side[key] if side else None,) for side in (old, new))
        if before != after:
            yield _Row((*start, key), before, after)


def _ranges(rows: Iterable[_Row]) -> Iterator[_Row]:
    """The rows, a ``low`` and the ``high`` after it in one."""
    held: _Row | None = None
    for row in rows:
        if held and row.what == (*held.what[:-1], "high"):
            yield _Row(row.what[:-1], held.old + row.old, held.new + row.new)
            held = None
            continue
        if held:
            yield held
        held = row if row.what[-1:] == ("low",) else None
        if not held:
            yield row
    if held:
        yield held


def _cells(row: _Row, show: Callable[[Any], str]) -> Iterator[str]:
    sides = (row.old, row.new)
    numbers = all(map(_is_number, (*row.old, *row.new)))
    if numbers and len({tuple(map(show, side)) for side in sides}) == 1:
        show = _number  # they differ in what is left out
    for side in sides:
        told = [show(value) if _is_number(value) else value_words(value) for value in side if value is not None]
        yield "-".join(told) or "-"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _relative(row: _Row) -> str:
    """By how much each end changed, once where they did alike."""
    pairs = zip(row.old, row.new, strict=True)
    told = [f"{(new - old) / old:+.2%}" for old, new in pairs if _is_number(old) and _is_number(new) and old]
    return ", ".join(dict.fromkeys(told))


def show_findings(changes: Sequence[JsonEdit], console: Console) -> None:
    """New findings in full, gone ones by their beginning, changed ones by what changed."""
    shown = False
    for edit in of_part(changes, "findings"):
        if edit["op"] == "add":
            new = edit["new"]
            fix = f" -> {new['fix']}" if new["fix"] else ""
            console.print(f"[green]+[/] {_heading(new)} {escape(new['message'] + fix)}")
        elif edit["op"] == "remove":
            old = edit["old"]
            console.print(f"[red]-[/] {_heading(old)} {escape(cut(old['message'], shown=_MESSAGE))}")
        elif edit["op"] == "change":
            console.print(f"  {edit['path'][1]}: {edit['path'][2]} {edit['old']} -> {edit['new']}")
        shown |= edit["op"] != "move"
    if shown:
        console.print()


def _heading(finding: JsonEdit) -> str:
    where = f" layer {finding['layer']}:" if finding["layer"] is not None else ""
    return f"{finding['severity']} {finding['code']}:{where}"

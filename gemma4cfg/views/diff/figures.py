"""Bytes, speed and findings, before and after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

from gemma4cfg.views.diff.words import JsonEdit, cut, of_part
from gemma4cfg.views.sizes import gigabytes
from gemma4cfg.views.tables import plain_table

_NAMES = {
    ("budget", "hbm_per_rank"): "device, a rank",
    ("budget", "host"): "host",
    ("estimate", "decode_tokens_per_s"): "decode tokens/s (estimate)",
    ("estimate", "prefill_ms"): "prefill ms (estimate)",
    ("estimate", "bytes_per_token_per_rank"): "bytes a token, a rank",
}
_MESSAGE = 110
"""Characters of what a gone finding said."""


def show_figures(changes: Sequence[JsonEdit], console: Console) -> None:
    table = plain_table(" ", "figures", "", "old", "new", "change")
    last = None
    for part, name in _NAMES.items():
        for edit in of_part(changes, *part):
            if not (_is_number(edit.get("old")) and _is_number(edit.get("new"))):
                continue  # words about figures, e.g. which machine could compile
            old, new = edit["old"], edit["new"]
            show = _number if part[0] == "estimate" and part[1] != "bytes_per_token_per_rank" else gigabytes
            if edit["path"][2:] == ["kv"] and part[0] == "estimate":
                show = _number  # a few thousand bytes
            if show(old) == show(new):
                show = _number  # they differ in what is left out
            what = " ".join(edit["path"][2:]).replace("_", " ")
            table.add_row("", "" if name == last else name, what, show(old), show(new), _relative(old, new))
            last = name
    if table.row_count:
        console.print(table)
        console.print()


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _relative(old: float, new: float) -> str:
    return f"{(new - old) / old:+.2%}" if old else ""


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

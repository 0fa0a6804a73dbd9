"""Layers that changed alike, told once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

from gemma4cfg.runs import expand, short_runs
from gemma4cfg.views.diff.words import JsonEdit, because, both, mark, of_part, value_words
from gemma4cfg.views.tables import plain_table


def show_layers(changes: Sequence[JsonEdit], console: Console) -> None:
    table = plain_table(" ", "layers", "what", "old", "new", "because")
    groups: dict[tuple[str, str], list[JsonEdit]] = {}
    for edit in of_part(changes, "layers"):
        if edit["op"] == "move":
            table.add_row("", "all", "order", "", "", "another pattern of layer types")
        else:
            groups.setdefault((edit["path"][1], edit.get("numbers", "")), []).append(edit)
    for edits in groups.values():
        told = ""
        for place, edit in enumerate(edits):
            reason = because(*edit.get("reasons", ()))
            table.add_row(mark(edit), "" if place else _which(edit), *_what(edit), "" if reason == told else reason)
            told = reason
    if table.row_count:
        console.print(table)
        console.print()


def _which(edit: JsonEdit) -> str:
    """``25 sliding (0-4,6-10,…)``; indices where both plans have the same pattern."""
    kinds = ", ".join(f"{count} {kind.removesuffix('_attention')}" for kind, count in edit["layers"].items())
    member = edit["path"][1]
    numbers = expand(edit["numbers"]) if "numbers" in edit else [int(member.rpartition(".")[2])]
    return kinds if "." in member else f"{kinds} ({short_runs(numbers)})"


def _what(edit: JsonEdit) -> tuple[str, str, str]:
    if len(edit["path"]) > 2:
        old, new = both(edit)
        return ".".join(edit["path"][2:]), escape(old), escape(new)
    if edit["op"] == "add":
        return "new layers", "-", _whole(edit["new"])
    return "gone layers", _whole(edit["old"]), "-"


def _whole(layer: dict[str, Any]) -> str:
    """A layer in one cell."""
    kv, moe, ple = layer["kv"], layer["moe"], layer["ple"]
    told = [
        f"{layer['q_heads']}/{layer['kv_heads']} x {layer['head_dim']}, {layer['attention']['mode']}",
        f"KV {value_words(kv['shape'], 'shape')} {kv['layout']}" if kv["writes"] else f"KV of layer {kv['owner']}",
        f"MLP {layer['mlp']['intermediate']}",
    ]
    if moe:
        told.append(f"{moe['experts']} experts x {moe['intermediate']}")
    if ple:
        told.append(f"PLE {ple['width']}")
    return ", ".join(told)

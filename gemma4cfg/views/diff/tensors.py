"""Tensors that lie elsewhere: a line a role, or with everything that is known of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from gemma4cfg.runs import expand, short_runs
from gemma4cfg.views.diff.words import because, plural, value_words
from gemma4cfg.views.sizes import gigabytes
from gemma4cfg.views.tables import plain_table

Change = Mapping[str, Any]

_ROLES = 10
"""Lines, unless all are asked for."""


def show_tensors(changes: Sequence[Change], console: Console, every: bool) -> None:
    """``every``: each group of tensors that changed alike; otherwise the roles that moved most bytes."""
    if not changes:
        return
    console.print(_every(changes) if every else _by_role(changes))
    roles = len({change["name"] for change in changes})
    if not every and roles > _ROLES:
        console.print(f"   and {plural(roles - _ROLES, 'role')} with fewer bytes: --tensors", style="dim")
    console.print()


def _by_role(changes: Sequence[Change]) -> Any:
    roles: dict[str, list[Change]] = {}
    for change in changes:
        roles.setdefault(change["name"], []).append(change)
    moved = sorted(roles.items(), key=lambda item: -max(_bytes(item[1], "old"), _bytes(item[1], "new")))
    table = plain_table(" ", "tensors", "number", "old", "new", "bytes, old", "bytes, new", "because")
    for name, members in moved[:_ROLES]:
        table.add_row(
            "[bold yellow]![/]" if any(map(_is_numeric, members)) else "",
            _name(name),
            str(sum(member["count"] for member in members)),
            _kinds(members, "old"),
            _kinds(members, "new"),
            _size(members, "old"),
            _size(members, "new"),
            because(*(member["reason"] for member in members)),
        )
    table.columns[1].no_wrap = True
    return table


def _every(changes: Sequence[Change]) -> Any:
    table = plain_table(" ", "tensors", "layers", "number", "old", "new", "bytes, old", "bytes, new", "because")
    for change in changes:
        table.add_row(
            "[bold yellow]![/]" if _is_numeric(change) else "",
            _name(change["name"]),
            short_runs(expand(change["layers"])),
            str(change["count"]),
            _lies(change, "old"),
            _lies(change, "new"),
            _size([change], "old"),
            _size([change], "new"),
            because(change["reason"]),
        )
    table.columns[1].no_wrap = True
    return table


def _name(name: str) -> str:
    return name.removeprefix("model.language_model.").removeprefix("layers.{}.")


def _kinds(members: Sequence[Change], side: str) -> str:
    """Where they lie; a line for each layer type where two types differ in that."""
    types: dict[str, set[str]] = {}
    for member in members:
        if member[side] is not None:
            types.setdefault(_lies(member, side), set()).update(member["types"])
    kinds = list(types) or ["-"]
    if len(kinds) > 2:
        return f"{kinds[0]}, … {plural(len(kinds), 'kind')}"
    alone = [kind for of in types.values() if len(of) == 1 for kind in of]
    if len(set(alone)) == len(kinds) == 2:
        return ",\n".join(f"{of.removesuffix('_attention')} {kind}" for of, kind in zip(alone, kinds, strict=True))
    return ", ".join(kinds)


def _lies(change: Change, which: str) -> str:
    """What differs of a tensor: where it is, the dimension that is cut, the part that a rank holds. Of a tensor that only one
    plan has: that part."""
    side = change[which]
    if side is None:
        return "-"
    alone = change["old"] is None or change["new"] is None
    shape = value_words(side.get("local_shape") or side.get("shape") or [], "shape")
    told = [] if side["home"] == "device" else [str(side["home"])]
    if "dim" in side and not told and not alone:
        told.append("whole" if side["dim"] is None else f"dim {side['dim']}")
    told += [] if shape == "none" or side["home"] == "unused" else [shape]
    if "ranges" in side:
        told.append(f"{which} ranges")
    if not alone:
        told += [f"{key} {value_words(side[key])}" for key in ("dtype", "kind", "local_name", "source") if key in side]
    return " ".join(told) or "as before"


def _is_numeric(change: Change) -> bool:
    return change["old"] is None or change["new"] is None or "shape" in change["old"] or "dtype" in change["old"]


def _bytes(members: Sequence[Change], side: str) -> int:
    return sum(member[side]["bytes"] if member[side] else 0 for member in members)


def _size(members: Sequence[Change], side: str) -> str:
    size = _bytes(members, side)
    return gigabytes(size) if size else "-"

"""Edits made to a plan in JSON form."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from gemma4cfg.difference.edits import Edit
from gemma4cfg.difference.members import is_record_list, member_names
from gemma4cfg.errors import ConfigError
from gemma4cfg.plan.encode import canonical


class _Members(dict[str, Any]):
    """A list of records while it is edited: the members by their names, and what its order will be."""

    order: list[str] | None = None

    def __init__(self, members: Iterable[tuple[str, Any]]) -> None:
        super().__init__(members)
        self.added: list[tuple[int, str]] = []

    def closed(self) -> list[Any]:
        added = {name for _, name in self.added}
        names = self.order or [name for name in self if name not in added]
        for at, name in sorted(self.added):
            names.insert(at, name)
        return [_closed(self[name]) for name in names]


def apply_edits(plain: Mapping[str, Any], edits: Iterable[Edit]) -> dict[str, Any]:
    """``plain`` as it is after ``edits``; it is left as it was.

    Raises ConfigError where a place does not hold what an edit is made for.
    """
    edits = list(edits)
    layers_by_type = any(edit.path[:1] == ("layers",) and "." in "".join(edit.path[1:2]) for edit in edits)
    opened = _opened((), json.loads(canonical(plain)), layers_by_type)
    for edit in edits:
        for single in edit.each():
            _apply(opened, single)
    result: dict[str, Any] = _closed(opened)
    return result


def _apply(opened: Any, edit: Edit) -> None:
    *above, last = edit.path
    place = opened
    for part in (*above, last) if edit.op == "move" else above:
        place = place.get(part) if isinstance(place, dict) else None
    if edit.op == "move" and isinstance(place, _Members) and set(edit.new) <= set(place):
        place.order = list(edit.new)
        return
    present = isinstance(place, dict) and last in place
    if not isinstance(place, dict) or edit.op == "move" or present == (edit.op == "add"):
        raise _other_plan(edit)
    if edit.op != "add" and canonical(_closed(place[last])) != canonical(edit.old):
        raise _other_plan(edit)
    if edit.op == "remove":
        del place[last]
        return
    place[last] = edit.new
    if isinstance(place, _Members) and edit.op == "add":
        place.added.append((int(edit.at), last))


def _other_plan(edit: Edit) -> ConfigError:
    return ConfigError(
        f"this difference is from another plan: {'.'.join(edit.path)} does not hold what it would {edit.op}; "
        "apply it to the plan that was compared first"
    )


def _opened(path: tuple[str, ...], value: Any, layers_by_type: bool) -> Any:
    if isinstance(value, dict):
        return {key: _opened((*path, key), item, layers_by_type) for key, item in value.items()}
    if isinstance(value, list) and is_record_list(path):
        names = member_names(path, value, layers_by_type)
        return _Members(
            (name, _opened((*path, name), item, layers_by_type)) for name, item in zip(names, value, strict=True)
        )
    return value


def _closed(value: Any) -> Any:
    if isinstance(value, _Members):
        return value.closed()
    if isinstance(value, dict):
        return {key: _closed(item) for key, item in value.items()}
    return value

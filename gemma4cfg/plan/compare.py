"""What differs between two plans, value by value; equal differences over layers are one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import takewhile
from operator import itemgetter
from typing import Any

from gemma4cfg.plan.encode import canonical
from gemma4cfg.plan.fold import number_of, template
from gemma4cfg.runs import index_runs

ABSENT = object()
"""Stands for the value of a key that one of the plans lacks."""

_IDENTITIES = ("index", "name", "what", "id", "code", "choice")
"""Keys by which records of a list are told apart, the first that all have and none shares."""

_SHOWN = 60
"""Characters of a value in words."""


@dataclass(frozen=True, slots=True)
class Change:
    """One place, or the same place of several layers or slots: ``{}`` in ``path`` is each of ``numbers``, whose values are
    ``old`` and ``new``, in that order. ``ABSENT`` is no value."""

    path: str
    numbers: tuple[int, ...]
    old: tuple[Any, ...]
    new: tuple[Any, ...]

    def __str__(self) -> str:
        members = index_runs(self.numbers)
        if self.path.startswith("layers.{}"):
            where = f"layers {members}{self.path[9:].replace('.', ': ', 1)}"
        else:
            where = self.path.replace("{}", f"{{{members}}}" if len(self.numbers) > 1 else members)
        if self.old[0] is ABSENT:
            return f"{where} added: {_cut(_text(self.new))}"
        if self.new[0] is ABSENT:
            return f"{where} removed: {_cut(_text(self.old))}"
        old, new = _text(self.old), _text(self.new)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))
        return f"{where} {_cut(old, same)} -> {_cut(new, same)}"


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """Every difference of two plans in JSON form, ``provenance`` aside; none if and only if they are equal."""
    groups: dict[tuple[str, ...], list[tuple[int, Any, Any]]] = {}
    bare = [{key: value for key, value in plan.items() if key != "provenance"} for plan in (old, new)]
    for path, before, after in _walk((), bare[0], bare[1]):
        where, number = _numbered(path)
        values = (repr(v) if v is ABSENT else canonical(template(v, path[-1])[0]) for v in (before, after))
        groups.setdefault((where, *values), []).append((number, before, after))
    found = []
    for (where, *_), members in groups.items():
        numbers, before, after = zip(*sorted(members, key=itemgetter(0)), strict=True)
        found.append(Change(where, () if numbers[0] < 0 else numbers, before, after))
    return found


def describe(found: Sequence[Change]) -> str:
    """A line for every change, and their number."""
    places = sum(len(change.old) for change in found)
    total = f"{places} differences" if places > 1 else "1 difference" if places else "no difference"
    return "\n".join([*map(str, found), total])


def _walk(path: tuple[str, ...], old: Any, new: Any) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Path and both values of each place that differs, as deep as both are mappings or lists of records."""
    if old is not ABSENT and new is not ABSENT and canonical(old) == canonical(new):
        return
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys((*old, *new)):
            yield from _walk((*path, key), old.get(key, ABSENT), new.get(key, ABSENT))
        return
    if not (_are_records(old) and _are_records(new)):
        yield path, old, new
        return
    identity = next((key for key in _IDENTITIES if _tells_apart(key, old) and _tells_apart(key, new)), None)
    if identity:
        before, after = ({str(record[identity]): record for record in records} for records in (old, new))
        yield from _walk(path, before, after)
        order = [[name for name in side if name in before and name in after] for side in (before, after)]
        if order[0] != order[1]:
            yield (*path, "order"), order[0], order[1]
        return
    for kind, a, b, c, d in SequenceMatcher(None, [*map(canonical, old)], [*map(canonical, new)], False).get_opcodes():
        if kind == "replace" and b - a == d - c:
            for position in range(a, b):
                yield from _walk((*path, str(position)), old[position], new[position - a + c])
        elif kind != "equal":
            yield from (((*path, str(position)), old[position], ABSENT) for position in range(a, b))
            yield from (((*path, str(position)), ABSENT, new[position]) for position in range(c, d))


def _are_records(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, Mapping) for item in value)


def _tells_apart(key: str, records: Sequence[Mapping[str, Any]]) -> bool:
    return len({str(record[key]) for record in records if key in record}) == len(records)


def _numbered(path: tuple[str, ...]) -> tuple[str, int]:
    """The path in dots with ``{}`` for the number of its last numbered part, and that number; -1 if it has none."""
    for at in range(len(path) - 1, -1, -1):
        found = ("{}", int(path[at])) if path[at].isdecimal() else number_of(path[at])
        if found:
            return ".".join((*path[:at], found[0], *path[at + 1 :])), found[1]
    return ".".join(path), -1


def _text(values: Sequence[Any]) -> str:
    """The one value of all; of different numbers their runs, of anything else the first."""
    first = values[0]
    if any(value != first for value in values):
        return index_runs(values) if all(type(value) is int for value in values) else f"{_text([first])}, …"
    if type(first) is int:
        return f"{first:,}"
    return first if isinstance(first, str) else canonical(first)


def _cut(text: str, same: int = 0) -> str:
    """As much of a long text as a line takes, from a little before the place where it differs."""
    if len(text) <= _SHOWN:
        return text
    start = min(max(0, same - _SHOWN // 4), len(text) - _SHOWN // 4)
    end = start + _SHOWN
    return f"{'…' * (start > 0)}{text[start:end]}{'…' * (end < len(text))}"

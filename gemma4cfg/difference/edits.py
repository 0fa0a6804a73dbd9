"""What differs between two plans in JSON form, value by value; equal differences over layers are one edit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from gemma4cfg.difference.members import by_type, is_record_list, member_names
from gemma4cfg.plan.encode import canonical, to_plain
from gemma4cfg.plan.fold import escaped, joined, member, number_of, template
from gemma4cfg.runs import expand, index_runs

Operation = Literal["change", "add", "remove", "move"]


@dataclass(frozen=True, slots=True)
class Edit:
    """One place of a plan, or the same place of several layers, slots or buckets.

    ``path`` holds keys of mappings and names of a list's members (``members``). Without ``numbers`` it and the values are
    as they are; with ``numbers`` (runs, of two or more) they are templates as ``plan.fold`` writes them: ``{}`` is each of
    the numbers in its turn, ``{runs}`` another number, in the same order.

    ``change``: ``old`` becomes ``new``. ``add`` and ``remove``: there is only the one; ``at`` is the place of an added member
    in the new list, or their runs. ``move``: the members that stay in the list under ``path``, in their order.

    ``numerics``: what the model computes may differ by more than the order of its sums. ``reasons``: of the closed list,
    why the new plan has it so; empty where none is known. ``layers``: how many of each type an edit of layers is of.
    """

    op: Operation
    path: tuple[str, ...]
    numbers: str = ""
    at: str = ""
    old: Any = None
    new: Any = None
    numerics: bool = False
    reasons: tuple[str, ...] = ()
    layers: Mapping[str, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many places it is of."""
        return len(expand(self.numbers)) or 1

    def each(self) -> Iterator[Edit]:
        """The edits of a single place that it stands for, in the order of their numbers."""
        if not self.numbers:
            yield self
            return
        at = expand(self.at)
        for place, number in enumerate(expand(self.numbers)):
            yield Edit(
                self.op,
                tuple(str(member(part, place, number)) for part in self.path),
                at=str(at[place]) if at else "",
                old=member(self.old, place, number),
                new=member(self.new, place, number),
            )

    def to_json(self) -> dict[str, Any]:
        """Plain data without what says nothing: no ``new`` of a removed value, no empty annotation."""
        absent = {"add": "old", "remove": "new"}.get(self.op)
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {
            key: to_plain(value)
            for key, value in values.items()
            if key != absent and (value or key in ("op", "path", "old", "new"))
        }


class _Place(NamedTuple):
    """An edit of one place."""

    op: Operation
    path: tuple[str, ...]
    old: Any
    new: Any
    at: int | None = None


def find_edits(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Edit]:
    """Every difference of two plans in JSON form; none if and only if they are equal."""
    layers_by_type = by_type(old.get("layers", ()), new.get("layers", ()))
    groups: dict[tuple[str, ...], list[tuple[int, _Place]]] = {}
    for place in _walk((), old, new, layers_by_type):
        path, number = _numbered(place.path)
        values = (canonical(template(value, place.path[-1])[0]) for value in (place.old, place.new))
        groups.setdefault((place.op, *path, *values), []).append((number, place))
    return [_grouped(members) for members in groups.values()]


def is_equal(old: Any, new: Any) -> bool:
    """Whether two values are written alike: 1, 1.0 and true are not."""
    return bool(old == new) and canonical(old) == canonical(new)


def _grouped(members: list[tuple[int, _Place]]) -> Edit:
    if len(members) == 1:
        place = members[0][1]
        return Edit(place.op, place.path, "", "" if place.at is None else str(place.at), place.old, place.new)
    members.sort(key=itemgetter(0))
    numbers, places = [number for number, _ in members], [place for _, place in members]
    first = places[0]
    return Edit(
        first.op,
        _numbered(first.path)[0],
        index_runs(numbers),
        "" if first.at is None else index_runs(place.at for place in places if place.at is not None),
        joined([place.old for place in places], numbers, first.path[-1]),
        joined([place.new for place in places], numbers, first.path[-1]),
    )


def _walk(path: tuple[str, ...], old: Any, new: Any, layers_by_type: bool) -> Iterator[_Place]:
    """Each place that differs, as deep as both sides are mappings or lists whose members have names."""
    if is_equal(old, new):
        return
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        yield from _walk_mappings(path, old, new, layers_by_type)
    elif isinstance(old, list) and isinstance(new, list) and is_record_list(path):
        yield from _walk_records(path, old, new, layers_by_type)
    else:
        yield _Place("change", path, old, new)


def _walk_mappings(
    path: tuple[str, ...], old: Mapping[str, Any], new: Mapping[str, Any], layers_by_type: bool
) -> Iterator[_Place]:
    for key in dict.fromkeys((*old, *new)):
        if key not in new:
            yield _Place("remove", (*path, key), old[key], None)
        elif key not in old:
            yield _Place("add", (*path, key), None, new[key])
        else:
            yield from _walk((*path, key), old[key], new[key], layers_by_type)


def _walk_records(path: tuple[str, ...], old: list[Any], new: list[Any], layers_by_type: bool) -> Iterator[_Place]:
    before, after = (member_names(path, records, layers_by_type) for records in (old, new))
    olds, news = dict(zip(before, old, strict=True)), dict(zip(after, new, strict=True))
    for name in olds:
        if name in news:
            yield from _walk((*path, name), olds[name], news[name], layers_by_type)
        else:
            yield _Place("remove", (*path, name), olds[name], None)
    for at, name in enumerate(after):
        if name not in olds:
            yield _Place("add", (*path, name), None, news[name], at)
    stay = [name for name in before if name in news], [name for name in after if name in olds]
    if stay[0] != stay[1]:
        yield _Place("move", path, *stay)


_INTEGER = re.compile("0|[1-9][0-9]*")


def _numbered(path: Sequence[str]) -> tuple[tuple[str, ...], int]:
    """The path as a template of its last part that has a number, and that number; -1 if none has."""
    for at in range(len(path) - 1, -1, -1):
        found = ("{}", int(path[at])) if _INTEGER.fullmatch(path[at]) else number_of(path[at])
        if found:
            return (*map(escaped, path[:at]), found[0], *map(escaped, path[at + 1 :])), found[1]
    return tuple(map(escaped, path)), -1

"""Equal parts of a plan written once, without loss.

Entries of a mapping whose names differ in one number, and records of a list, are one entry if they are equal but for
their numbers. The number's place takes the run of them; inside, ``{}`` is the entry's own number and ``{runs}`` another
number, given in the same order::

    {"layers.0.norm": {"shape": [8], "local_name": "0.norm"}, "layers.1.norm": {"shape": [8], "local_name": "1.norm"}}
    {"layers.{0-1}.norm": {"shape": [8], "local_name": "{}.norm"}}

    [{"index": 0, "slot": 3}, {"index": 1, "slot": 7}, {"index": 2, "slot": 8}, {"index": 3, "slot": null}]
    {"{0-2}": {"index": "{}", "slot": "{3,7-8}"}, "{3}": {"index": 3, "slot": null}}

Parts of a name are what ``.`` and ``_`` separate. A part that begins with a brace of its own gets a second one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gemma4cfg.plan.encode import canonical
from gemma4cfg.runs import expand, index_runs

NUMBERED = frozenset(("index", "layer", "owner", "slot", "name", "local_name"))
"""Keys under which equal entries may differ: by an integer, or by the number in a name."""

_INTEGERS = (
    re.compile(r"(?<![^.])(?:0|[1-9][0-9]*)(?![^.])"),  # layers.5.norm_1 is of 5
    re.compile(r"(?<![^._])(?:0|[1-9][0-9]*)(?![^._])"),
)
_RUNS = re.compile(r"(?<![^._])\{([0-9,-]*)\}(?![^._])")
_BRACE = re.compile(r"(?<![^._])\{")
_TWO_BRACES = re.compile(r"(?<![^._])\{\{")


def fold(plain: Any) -> Any:
    """``plain`` (JSON data with numbers, strings, lists and mappings) with equal entries written once."""
    if isinstance(plain, Mapping):
        return _fold_mapping(plain)
    if isinstance(plain, list):
        return _fold_list(plain)
    return escaped(plain) if isinstance(plain, str) else plain


def unfold(folded: Any) -> Any:
    """What was folded: ``unfold(fold(plain)) == plain``."""
    if isinstance(folded, list):
        return [unfold(item) for item in folded]
    if isinstance(folded, str):
        return _unescaped(folded)
    if not isinstance(folded, Mapping):
        return folded
    members: dict[Any, Any] = {}
    of_list = False
    for key, value in folded.items():
        match = _RUNS.search(key)
        numbers = expand(match[1]) if match else [0]
        of_list = match is not None and match[0] == key
        for place, number in enumerate(numbers):
            name = number if of_list else _unescaped(_RUNS.sub(str(number), key))
            alone = match is None or len(numbers) == 1
            members[name] = unfold(value) if alone else member(value, place, number)
    return [members[position] for position in sorted(members)] if of_list else members


def number_of(name: str) -> tuple[str, int] | None:
    """A name with ``{}`` in the place of its number, and the number: its one integer between dots, or if there is none its
    one integer part (``layers.5.norm_1``: 5; ``key_3``: 3). None for other names, and for one that is only an integer."""
    for pattern in _INTEGERS:
        found = pattern.findall(name)
        if len(found) == 1 and found[0] != name:
            before, after = pattern.split(name)
            return f"{escaped(before)}{{}}{escaped(after)}", int(found[0])
        if found:
            return None
    return None


def template(value: Any, key: str = "") -> tuple[Any, list[int]]:
    """``value``, found under ``key``, with ``{}`` for every number under a numbered key, and those numbers by sorted keys."""
    found: list[int] = []
    return _template(value, key, found), found


def _template(value: Any, key: str, found: list[int]) -> Any:
    if isinstance(value, Mapping):
        return {escaped(name): _template(value[name], name, found) for name in sorted(value)}
    if isinstance(value, list):
        return [_template(item, "", found) for item in value]
    if key in NUMBERED and type(value) is int and value >= 0:
        found.append(value)
        return "{}"
    if key in NUMBERED and isinstance(value, str) and (numbered := number_of(value)):
        found.append(numbered[1])
        return numbered[0]
    return escaped(value) if isinstance(value, str) else value


def _fold_mapping(plain: Mapping[str, Any]) -> dict[str, Any]:
    groups: dict[tuple[str, str], list[tuple[int, str]]] = {}
    folded = {}
    for key, value in plain.items():
        numbered = number_of(key)
        if numbered:
            groups.setdefault((numbered[0], canonical(template(value)[0])), []).append((numbered[1], key))
        else:
            folded[escaped(key)] = fold(value)
    for (name, _), members in groups.items():
        members.sort()
        numbers = [number for number, _ in members]
        if len(members) == 1:
            folded[escaped(members[0][1])] = fold(plain[members[0][1]])
        else:
            folded[_RUNS.sub(f"{{{index_runs(numbers)}}}", name)] = joined([plain[key] for _, key in members], numbers)
    return folded


def _fold_list(plain: list[Any]) -> Any:
    if not all(isinstance(item, Mapping) for item in plain):
        return [fold(item) for item in plain]
    groups: dict[str, list[int]] = {}
    for position, item in enumerate(plain):
        groups.setdefault(canonical(template(item)[0]), []).append(position)
    if len(groups) == len(plain):
        return [fold(item) for item in plain]
    return {
        f"{{{index_runs(at)}}}": joined([plain[n] for n in at], at) if len(at) > 1 else fold(plain[at[0]])
        for at in groups.values()
    }


def joined(members: Sequence[Any], numbers: list[int], key: str = "") -> Any:
    """Members of one template, found under ``key``, as that template with every place filled: a constant as it is, else
    ``{}`` where it is the member's own of ``numbers``, else their runs."""
    templates, rows = zip(*(template(member, key) for member in members), strict=True)
    return _filled(templates[0], (_filler(list(column), numbers) for column in zip(*rows, strict=True)))


def _filler(column: list[int], numbers: list[int]) -> int | str:
    if len(set(column)) == 1:
        return column[0]
    return "{}" if column == numbers else f"{{{index_runs(column)}}}"


def _filled(common: Any, fillers: Iterator[int | str]) -> Any:
    if isinstance(common, Mapping):
        return {name: _filled(value, fillers) for name, value in common.items()}
    if isinstance(common, list):
        return [_filled(item, fillers) for item in common]
    if not isinstance(common, str) or not _RUNS.search(common):
        return common
    filler = next(fillers)
    return filler if common == "{}" else _RUNS.sub(str(filler), common)


def member(value: Any, place: int, number: int) -> Any:
    """The entry number ``number``, the ``place``-th of those that ``value``, made by ``joined``, stands for."""
    if isinstance(value, Mapping):
        return {_unescaped(name): member(item, place, number) for name, item in value.items()}
    if isinstance(value, list):
        return [member(item, place, number) for item in value]
    if not isinstance(value, str):
        return value
    match = _RUNS.search(value)
    if not match:
        return _unescaped(value)
    own = expand(match[1])[place] if match[1] else number
    return own if match[0] == value else _unescaped(_RUNS.sub(str(own), value))


def escaped(text: str) -> str:
    """A name that is no template, as a part of one."""
    return _BRACE.sub("{{", text)


def _unescaped(text: str) -> str:
    return _TWO_BRACES.sub("{", text)

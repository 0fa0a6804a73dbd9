"""Names for the members of a plan's lists of records, so that two lists are compared member by member."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]

_NAMED_BY: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("layers",): ("index",),
    ("decisions",): ("id",),
    ("decisions", "*", "over"): ("choice",),
    ("graphs",): ("name",),
    ("graphs", "*", "inputs"): ("name",),
    ("graphs", "*", "outputs"): ("name",),
    ("graphs", "*", "state"): ("name",),
    ("host",): ("what",),
    ("findings",): ("code",),
    ("calls",): ("api",),
    ("budget", "lines"): ("part", "what"),
    ("budget", "graphs"): ("graph",),
    ("budget", "on_chip"): ("graph", "layers", "what"),
    ("estimate", "alternatives"): ("choice", "option"),
}
"""A list of records, by its path with ``*`` for a member, and the keys that tell its members apart."""


def is_record_list(path: Sequence[str]) -> bool:
    """Whether what lies under ``path`` is a list whose members have names; any other list is one value."""
    return _pattern(path) in _NAMED_BY


def _pattern(path: Sequence[str]) -> tuple[str, ...]:
    return (path[0], "*", path[2]) if len(path) == 3 else tuple(path)


def by_type(old: Sequence[Record], new: Sequence[Record]) -> bool:
    """Whether layers of two plans are to be told apart within their type, as their patterns are different."""
    return any(before["type"] != after["type"] for before, after in zip(old, new, strict=False))


def member_names(path: Sequence[str], records: Sequence[Record], layers_by_type: bool) -> list[str]:
    """A name for every one of ``records``, which lie under ``path``; a name met again is ``name#2``.

    A layer is its index or, ``layers_by_type``, ``type.number`` counted within the type. A decision about heads keeps its
    name under another policy. A call is named by the graphs it is about too.
    """
    keys = _NAMED_BY[_pattern(path)]
    if keys == ("index",):
        return _by_type(records) if layers_by_type else [str(position) for position in range(len(records))]
    if keys == ("api",):
        return _numbered(
            " ".join((call["api"], *graphs)) for call, graphs in zip(records, _graphs_of(records), strict=True)
        )
    if keys == ("id",):
        return _numbered(".".join(record["id"].split(".")[:2]) for record in records)
    return _numbered(" ".join(str(record[key]) for key in keys) for record in records)


def _by_type(layers: Sequence[Record]) -> list[str]:
    seen: Counter[str] = Counter()
    names = []
    for layer in layers:
        names.append(f"{layer['type']}.{seen[layer['type']]}")
        seen[layer["type"]] += 1
    return names


def _graphs_of(calls: Sequence[Record]) -> list[list[str]]:
    """For each call the graphs that it is about: those that its arguments refer to, lists aside, or the one whose file it
    names, or those of the first call that it refers to."""
    found: list[list[str]] = []
    for call in calls:
        refs = list(_references(call["args"]))
        known = {graph for graphs in found for graph in graphs}
        graphs = [ref.split("/")[1] for ref in refs if ref.startswith("graphs/")]
        graphs = graphs or [stem for stem in (str(call["args"].get("f")).partition(".")[0],) if stem in known]
        earlier = (found[int(ref.partition("/")[2])] for ref in refs if ref.startswith("calls/"))
        found.append(list(dict.fromkeys(graphs)) or next(filter(None, earlier), []))
    return found


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key == "ref":
                yield item
            else:
                yield from _references(item)


def _numbered(names: Iterable[str]) -> list[str]:
    seen: Counter[str] = Counter()
    found = []
    for name in names:
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return found

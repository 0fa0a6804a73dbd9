"""Names for the members of a plan's lists of records, so that two lists are compared member by member."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]

_NAMED_BY = {
    ("layers",): "index",
    ("decisions",): "id",
    ("decisions", "over"): "choice",
    ("graphs",): "name",
    ("graphs", "inputs"): "name",
    ("graphs", "outputs"): "name",
    ("graphs", "state"): "name",
    ("host",): "what",
    ("findings",): "code",
    ("calls",): "api",
}
"""A list of records, by its path without the names of the members it passes, and the key that tells its members apart."""


def is_record_list(path: Sequence[str]) -> bool:
    """Whether what lies under ``path`` is a list whose members have names; any other list is one value."""
    return len(path) in (1, 3) and tuple(path[::2]) in _NAMED_BY


def by_type(old: Sequence[Record], new: Sequence[Record]) -> bool:
    """Whether layers of two plans are to be told apart within their type, as their patterns are different."""
    return any(before["type"] != after["type"] for before, after in zip(old, new, strict=False))


def member_names(path: Sequence[str], records: Sequence[Record], layers_by_type: bool) -> list[str]:
    """A name for every one of ``records``, which lie under ``path``; a name met again is ``name#2``.

    A layer is its index or, ``layers_by_type``, ``type.number`` counted within the type. A decision about heads keeps its
    name under another policy. A call is named by the graphs it is about too.
    """
    key = _NAMED_BY[tuple(path[::2])]
    if key == "index":
        return _by_type(records) if layers_by_type else [str(position) for position in range(len(records))]
    if key == "api":
        return _numbered(
            " ".join((call[key], *graphs)) for call, graphs in zip(records, _graphs_of(records), strict=True)
        )
    if key == "id":
        return _numbered(".".join(record[key].split(".")[:2]) for record in records)
    return _numbered(str(record[key]) for record in records)


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

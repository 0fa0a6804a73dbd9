"""What changes beside the weights: the host's part, the calls, and what is to be compiled and cut again."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

from gemma4cfg.decode import decode
from gemma4cfg.difference.edits import Edit
from gemma4cfg.views.diff.words import JsonEdit, because, both, cut, of_part, plural, value_words
from gemma4cfg.views.sizes import gigabytes
from gemma4cfg.views.tables import argument, plain_table

_TO_CALL = re.compile(r"calls/\d+")
_ARGUMENTS = 100
"""Characters of the arguments of a call that came or went."""


def show_host(changes: Sequence[JsonEdit], console: Console) -> None:
    table = plain_table(" ", "host", "what", "old", "new", "because")
    for edit in of_part(changes, "host"):
        what = edit["path"][2:]
        if what == ["reason"] or edit["op"] == "move":
            continue  # the decision's
        if what:
            old, new = (gigabytes(edit[side]) for side in ("old", "new")) if what == ["bytes"] else both(edit)
        else:
            old, new = (_host_part(edit[side]) if side in edit else "-" for side in ("old", "new"))
        table.add_row("", edit["path"][1], ".".join(what) or "all", old, new, because(*edit.get("reasons", ())))
    if table.row_count:
        console.print(table)
        console.print()


def _host_part(part: Mapping[str, Any]) -> str:
    return gigabytes(part["bytes"]) if part["bytes"] else "a step"


def show_calls(changes: Sequence[JsonEdit], console: Console) -> None:
    table = plain_table(" ", "call", "arguments that differ")
    renumbered = 0
    calls: dict[str, list[JsonEdit]] = {}
    for edit in of_part(changes, "calls"):
        if edit["op"] != "move":
            calls.setdefault(edit["path"][1].replace("{}", f"{{{edit.get('numbers')}}}"), []).append(edit)
    for name, edits in calls.items():
        if all(_is_renumbered(edit) for edit in edits):
            renumbered += 1
        elif len(edits[0]["path"]) == 2:
            new = edits[0]["op"] == "add"
            given = cut(_arguments(edits[0]["new" if new else "old"]), shown=_ARGUMENTS)
            table.add_row("[green]+[/]" if new else "[red]-[/]", escape(name), escape(given))
        else:
            table.add_row("", escape(name), escape("; ".join(map(_argument, edits))))
    if renumbered:
        table.add_row("", plural(renumbered, "more call"), "the numbers of the calls they refer to")
    if table.row_count:
        console.print(table)
        console.print()


def _arguments(call: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={argument(value)}" for key, value in call["args"].items())


def _argument(edit: JsonEdit) -> str:
    name = ".".join(edit["path"][3:] if edit["path"][2] == "args" else edit["path"][2:])
    return f"{name} {' -> '.join(both(edit))}"


def _is_renumbered(edit: JsonEdit) -> bool:
    return all(isinstance(edit.get(side), str) and _TO_CALL.fullmatch(edit[side]) for side in ("old", "new"))


def show_rebuild(diff: Mapping[str, Any], console: Console) -> None:
    """A line for every graph and one for the rank files; what is kept is named too."""
    table = plain_table(" ", "to rebuild", "", "old", "new", "what changed at its edges")
    edits = [single for edit in of_part(diff["changes"], "graphs") for single in decode(Edit, edit).each()]
    for graph in diff["rebuild"]["graphs"]:
        table.add_row("", f"graph {graph['name']}", _verb(graph["action"]), *_ids(graph), _edges(edits, graph["name"]))
    files = diff["rebuild"]["rank_files"]
    table.add_row("", "rank files", _verb(files["action"]), *_ids(files), "")
    console.print(table)
    console.print()


def _verb(action: str) -> str:
    """An action, bold where it is work."""
    return f"[bold]{action}[/]" if action in ("compile", "write") else action


def _ids(entry: Mapping[str, Any]) -> tuple[str, str]:
    return (entry["old"] or "-")[:12], (entry["new"] or "-")[:12]


def _edges(edits: Sequence[Edit], name: str) -> str:
    """What differs of a graph's inputs, outputs, state and collectives."""
    told: list[str] = []
    state: set[str] = set()
    for edit in edits:
        part = edit.path[2:]
        if edit.path[1:2] != (name,) or part in ((), ("id",)):
            continue
        if part[0] == "state":
            state |= {*part[1:2]}
        elif edit.op in ("add", "remove"):
            port = edit.old or edit.new
            shape = value_words(port["shape"], "shape")
            told.append(f"{'+' if edit.op == 'add' else '-'} {port['name']} {shape} {port['dtype']}")
        elif edit.op == "change":
            told.append(f"{'.'.join(part)} {' -> '.join(both(edit.to_json()))}")
    if state:
        told.append(plural(len(state), "state tensor"))
    return escape("; ".join(told))

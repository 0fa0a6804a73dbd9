"""The plan's headline values and decisions, old and new."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from gemma4cfg.views.diff.words import JsonEdit, because, both, mark, of_part, value_words
from gemma4cfg.views.tables import plain_table

_HEADLINE = ("model", "target", "sdk", "recipe", "tp", "dtype", "weight_copies")
_DECISION_OF = {"shapes.kv_layout": "kv.layout", "shapes.prompt_chunking": "prompt_chunking"} | {
    name: name for name in ("target", "sdk", "recipe", "dtype")
}
"""Values of the plan that a decision's choice repeats."""


def show_choices(changes: Sequence[JsonEdit], console: Console) -> None:
    table = plain_table(" ", "plan", "old", "new", "because")
    decisions: dict[str, list[JsonEdit]] = {}
    for edit in of_part(changes, "decisions"):
        if edit["op"] != "move" or edit["path"][1:]:
            decisions.setdefault(edit["path"][1], []).append(edit)
    told: set[str] = set()
    for part in (*_HEADLINE, "shapes", "numerics"):
        for edit in of_part(changes, part):
            name = ".".join(edit["path"])
            decision = _DECISION_OF.get(name, "")
            told.add(decision)
            why = _because(edit, _by_key(decisions.get(decision, ())).get("reason"))
            table.add_row(mark(edit), name, *map(escape, both(edit)), why)
    for name, edits in decisions.items():
        for row in _decision(name, edits, name in told):
            table.add_row(*row)
    if table.row_count:
        console.print(table)
        console.print()


def _because(edit: JsonEdit, reason: JsonEdit | None) -> str:
    """Why the new value, and why the old one where that was another reason."""
    return because(*edit.get("reasons", ())) + (f" (was: {because(reason['old'])})" if reason else "")


def _by_key(edits: Sequence[JsonEdit]) -> dict[str, JsonEdit]:
    """A decision's edits by the key they change; of the whole decision under the empty key."""
    return {(edit["path"][2:] or [""])[0]: edit for edit in edits if len(edit["path"]) < 4}


def _decision(name: str, edits: Sequence[JsonEdit], told: bool) -> list[tuple[str, ...]]:
    """Rows of one decision: its choice, unless that is ``told``, its reason, and the options whose reason changed that were
    not chosen either time."""
    by_key = _by_key(edits)
    rows: list[tuple[str, ...]] = []
    reason, choice = by_key.get("reason"), by_key.get("choice")
    if whole := by_key.get(""):
        old, new = (value_words(whole[side]["choice"]) if side in whole else "-" for side in ("old", "new"))
        rows.append((mark(whole), f"decision {name}", old, new, because(*whole.get("reasons", ()))))
    if choice and not told:
        rows.append((mark(choice), f"decision {name}", *both(choice), _because(choice, reason)))
    elif reason and not told:
        rows.append(("", f"why {name}", because(reason["old"]), because(reason["new"]), ""))
    chosen = {str(choice[side]) for side in ("old", "new")} if choice else set()
    options = [edit for edit in edits if edit["path"][2:3] == ["over"] and edit["path"][3:]]
    words: dict[str, list[str]] = {}
    for edit in options:
        if edit["path"][3] not in chosen:
            words.setdefault(_turned_down(edit), []).append(edit["path"][3])
    if words:
        why = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in words.items())
        rows.append(("", f"turned down for {name}", "", "", why))
    return rows


def _turned_down(edit: JsonEdit) -> str:
    if edit["path"][4:]:
        return f"{because(edit['old'])} -> {because(edit['new'])}"
    return because(edit["new"]["reason"]) if "new" in edit else "no longer an option"

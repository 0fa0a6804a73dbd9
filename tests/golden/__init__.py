"""Golden plans: a file beside this one for each plan, folded, without provenance.

``python -m tests.golden`` compares, ``python -m tests.golden --write`` regenerates; both say the difference in words.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gemma4cfg import build_plan, load_config
from gemma4cfg.config.catalog import choices
from gemma4cfg.difference.edits import Edit, find_edits
from gemma4cfg.errors import PlanError
from gemma4cfg.plan.encode import readable
from gemma4cfg.plan.fold import fold, unfold
from gemma4cfg.views.diff.words import both, plural

DIRECTORY = Path(__file__).parent

CASES: dict[str, list[str]] = {
    **{f"{model}-tp{tp}": [f"model={model}", f"tp={tp}"] for model in choices("model") for tp in (1, 2, 4, 8)},
    **{f"experiment-{name}": [f"experiment={name}"] for name in choices("experiment")},
}
"""A golden's name to its overrides. One that fits no machine has no golden."""


def made(name: str) -> str | None:
    """What the golden of a case should hold; None where the planner refuses the case because it does not fit."""
    try:
        plan = build_plan(load_config(CASES[name])).to_json()
    except PlanError:
        return None
    return readable(fold({key: value for key, value in plan.items() if key != "provenance"}))


def stored(name: str) -> str | None:
    """What the golden of a case holds; None where it is missing."""
    path = DIRECTORY / f"{name}.json"
    return path.read_text(encoding="utf-8") if path.is_file() else None


def difference(old: str | None, new: str | None) -> str:
    """From one golden's text to another's, in words; empty where they are equal. None is no plan."""
    if old == new:
        return ""
    if old is None:
        return "a plan without a golden"
    if new is None:
        return "a golden without a plan: the planner refuses it"
    found = find_edits(plan_of(old), plan_of(new))
    if not found:
        return "the same plan in another spelling"
    return "\n".join([*map(_words, found), plural(sum(edit.count for edit in found), "difference")])


def _words(edit: Edit) -> str:
    where = ".".join(edit.path).replace("{}", f"{{{edit.numbers}}}")
    return f"{where} {' -> '.join(both(edit.to_json()))}" + (" in order" if edit.op == "move" else "")


def plan_of(golden: str) -> dict[str, Any]:
    """The plan that a golden's text holds."""
    plan: dict[str, Any] = unfold(json.loads(golden))
    return plan


def strangers() -> list[Path]:
    """Files that are no case's golden."""
    return sorted(path for path in DIRECTORY.glob("*.json") if path.stem not in CASES)

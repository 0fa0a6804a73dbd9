"""Two plans compared: the record that JSON, text and pictures are made from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from gemma4cfg.decode import decode
from gemma4cfg.difference.apply import apply_edits
from gemma4cfg.difference.edits import Edit, find_edits
from gemma4cfg.difference.meaning import explained, is_aside
from gemma4cfg.difference.rebuild import Rebuild, plan_rebuild
from gemma4cfg.difference.tensors import TensorChange, tensor_changes
from gemma4cfg.plan.encode import to_plain
from gemma4cfg.plan.records import Plan


@dataclass(frozen=True, slots=True)
class Side:
    """Which plan was compared; ``overrides`` are the words it was made from."""

    plan_id: str
    model: str
    target: str
    sdk: str
    recipe: str
    tp: int
    dtype: str
    overrides: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Totals:
    """``values``: places that changed, equal ones of several layers counted each. The others count members of which any
    value changed, came or went; ``tensors`` those of ``PlanDiff.tensors``, ``graphs`` those to compile."""

    values: int
    numerics: int
    layers: int
    tensors: int
    graphs: int
    calls: int
    findings: int


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """From one plan to another.

    ``changes`` and ``aside`` together are exact and minimal: made to the first plan's JSON they give the second's, and none
    holds a value that is equal on both sides. ``aside`` is what no reader acts on: origin, plan and placement ids, reworded
    details. ``tensors``, ``rebuild`` and ``totals`` follow from the two plans and say it in other terms.
    """

    old: Side
    new: Side
    changes: tuple[Edit, ...]
    aside: tuple[Edit, ...]
    tensors: tuple[TensorChange, ...]
    rebuild: Rebuild
    totals: Totals

    @property
    def same(self) -> bool:
        """Whether nothing differs but words and origin."""
        return not self.changes

    def to_json(self) -> dict[str, Any]:
        """Plain data: what ``python -m gemma4cfg.diff --json`` prints, and what ``apply_diff`` takes."""
        return {
            "old": to_plain(self.old),
            "new": to_plain(self.new),
            "changes": [edit.to_json() for edit in self.changes],
            "aside": [edit.to_json() for edit in self.aside],
            "tensors": to_plain(self.tensors),
            "rebuild": to_plain(self.rebuild),
            "totals": to_plain(self.totals),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PlanDiff:
        """A difference read back. Raises ConfigError for a missing or unknown key or a wrong type."""
        return decode(cls, data, "diff")


def diff_plans(old: Plan, new: Plan) -> PlanDiff:
    """What changes from ``old`` to ``new``."""
    before, after = old.to_json(), new.to_json()
    edits = find_edits(before, after)
    changes = tuple(explained([edit for edit in edits if not is_aside(edit)], before, after))
    rebuild, tensors = plan_rebuild(before, after), tensor_changes(before, after)
    return PlanDiff(
        old=_side(before),
        new=_side(after),
        changes=changes,
        aside=tuple(edit for edit in edits if is_aside(edit)),
        tensors=tensors,
        rebuild=rebuild,
        totals=Totals(
            values=_count(changes),
            numerics=_count(edit for edit in changes if edit.numerics),
            layers=_members(changes, "layers"),
            tensors=sum(change.count for change in tensors),
            graphs=sum(graph.action == "compile" for graph in rebuild.graphs),
            calls=_members(changes, "calls"),
            findings=_members(changes, "findings"),
        ),
    )


def apply_diff(old: Mapping[str, Any], diff: Mapping[str, Any]) -> dict[str, Any]:
    """The second plan's JSON, from the first's and the difference's.

    Raises ConfigError for JSON that is no difference, or one from another plan.
    """
    read = PlanDiff.from_json(diff)
    return apply_edits(old, (*read.changes, *read.aside))


def _side(plan: Mapping[str, Any]) -> Side:
    shown = {field.name: plan[field.name] for field in fields(Side) if field.name != "overrides"}
    return Side(**shown, overrides=tuple(plan["provenance"]["overrides"]))


def _count(edits: Iterable[Edit]) -> int:
    return sum(edit.count for edit in edits)


def _members(edits: Sequence[Edit], part: str) -> int:
    return len({single.path[1] for edit in edits if edit.path[0] == part for single in edit.each() if single.path[1:]})

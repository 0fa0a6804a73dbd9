"""A drill: a fault, where it can be, and what a run needs for it to be there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from gemma4cfg.plan.records import Plan
from gemma4cfg.verify.faults import Fault

Room = Literal["loader", "plan", "graph", "host"]


@dataclass(frozen=True, slots=True)
class Drill:
    """``fault`` in a sentence, planted in ``room`` by ``plant`` of the plan that is run. ``applies`` says whether a plan has
    what the fault is about. ``choices`` are plan choices without which it cannot be there (override keys and values)."""

    name: str
    room: Room
    what: str
    plant: Callable[[Plan], Fault]
    applies: Callable[[Plan], bool]
    choices: tuple[tuple[str, str], ...] = ()


def always(plan: Plan) -> bool:  # noqa: ARG001
    return True


def has_ple(plan: Plan) -> bool:
    return plan.numerics.ple is not None


def has_moe(plan: Plan) -> bool:
    return plan.layers[0].moe is not None


def has_borrowers(plan: Plan) -> bool:
    return any(layer.kv.owner != layer.index for layer in plan.layers)


def has_ranks(plan: Plan) -> bool:
    return plan.tp > 1

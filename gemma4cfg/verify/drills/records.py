"""A drill: a fault, where it can be, and what a run needs for it to be there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from gemma4cfg.plan.records import Plan
from gemma4cfg.verify.faults import Fault
from gemma4cfg.verify.subject import Subject

Room = Literal["loader", "plan", "graph", "host"]


@dataclass(frozen=True, slots=True)
class Need:
    """What a subject has to have for a fault to be there, in words that follow "needs"."""

    what: str
    met: Callable[[Subject], bool]

    def __and__(self, other: Need) -> Need:
        return Need(f"{self.what} and {other.what}", lambda subject: self.met(subject) and other.met(subject))


@dataclass(frozen=True, slots=True)
class Drill:
    """``fault`` in a sentence, planted in ``room`` by ``plant`` of the plan that is run. ``choices`` are plan choices without
    which it cannot be there (override keys and values), in place of the user's own. ``refused``: no run survives it, and
    that is how it is found; of any other drill a run that ends is an error."""

    name: str
    room: Room
    what: str
    plant: Callable[[Plan], Fault]
    needs: Need
    choices: tuple[tuple[str, str], ...] = ()
    refused: bool = False


def of_plan(what: str, met: Callable[[Plan], bool]) -> Need:
    """A need that the plan alone meets or not."""
    return Need(what, lambda subject: met(subject.plan))


NOTHING = of_plan("nothing", lambda plan: True)  # noqa: ARG005
PLE = of_plan("a model with per-layer embeddings", lambda plan: plan.numerics.ple is not None)
MOE = of_plan("a model with experts", lambda plan: plan.layers[0].moe is not None)
BORROWERS = of_plan(
    "layers that read another's K/V", lambda plan: any(layer.kv.owner != layer.index for layer in plan.layers)
)
RANKS = of_plan("two ranks or more", lambda plan: plan.tp > 1)
PAST_WINDOW = Need(
    "a prompt longer than the window (shapes.kv_length has to have room for one)",
    lambda subject: any(max(subject.lengths) > layer.window for layer in subject.plan.layers if layer.window),
)

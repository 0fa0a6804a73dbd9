"""Which point is best, which none beats by everything, and why the others lost."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import inf
from typing import Any

from gemma4cfg.plan.reasons import Reason
from gemma4cfg.plan.records import TurnedDown
from gemma4cfg.planner.search.candidates import POLICY
from gemma4cfg.planner.search.measure import Figures, Miss, Point

STAGES = (
    Reason.NOT_POSSIBLE,
    Reason.TOO_FEW_CORES,
    Reason.DOES_NOT_FIT,
    Reason.PRICE_UNKNOWN,
    Reason.ABOVE_PRICE_CEILING,
    Reason.BELOW_SPEED_FLOOR,
)
"""How far a candidate came before it was turned down."""


def order(figures: Figures, minimise: str) -> tuple[float, ...]:
    """Less is better: what is minimised, then the others. Figures as equal as that are left to the order of preference."""
    cost = inf if figures.usd_per_million_tokens is None else figures.usd_per_million_tokens
    by = {"latency": figures.latency_ms, "cost": cost, "memory": float(figures.device_bytes)}
    return (by.pop(minimise), *by.values())


def ranked(points: Sequence[Point], minimise: str) -> list[Point]:
    return sorted(points, key=lambda point: (order(point.figures, minimise), point.candidate.rank))


def pareto_front(points: Sequence[Point]) -> list[Point]:
    """Points that no other equals or beats in latency, cost and memory at once, fastest first. A price that is not known is
    no better than any that is; of equal points the first in the order of preference."""
    front: list[Point] = []
    for point in ranked(points, "latency"):
        mine = order(point.figures, "latency")
        if not any(all(a <= b for a, b in zip(order(it.figures, "latency"), mine, strict=True)) for it in front):
            front.append(point)
    return front


def losses(
    best: Point,
    points: Sequence[Point],
    misses: Sequence[Miss],
    open_keys: Mapping[str, tuple[Any, ...]],
    same: Collection[str],
    minimise: str,
) -> Iterator[TurnedDown]:
    """For every value that was not chosen, why: the best that there is with it, or how far it came.

    ``points`` are ranked; ``same`` are the policies that give the best one's plan.
    """
    for key, values in open_keys.items():
        for value in values:
            if value == best.candidate.values[key]:
                continue
            name = f"{key}={value}"
            if key == POLICY and value in same:
                yield TurnedDown(name, Reason.SAME_PLAN, "")
                continue
            rival = next((point for point in points if point.candidate.values[key] == value), None)
            if rival is not None:
                yield TurnedDown(name, _why(best.figures, rival.figures, minimise), describe(rival))
                continue
            missed = [miss for miss in misses if miss.candidate.values[key] == value]
            if missed:
                last = max(missed, key=lambda miss: _telling(best, miss, key))
                detail = f": {last.detail}" if last.detail else ""
                yield TurnedDown(name, last.reason, words(last, open_keys) + detail)
            else:
                yield TurnedDown(name, Reason.OTHER_STACK, "")


def _telling(best: Point, miss: Miss, key: str) -> tuple[float, ...]:
    """The miss to tell of: the one that came farthest, lacks least and is then most like the best; of policies, which other
    values make possible, the one that is most like the best first."""
    chosen = best.candidate.values
    alike = sum(chosen[name] == value for name, value in miss.candidate.values.items())
    came = (STAGES.index(miss.reason), -miss.lacking)
    return (alike, *came) if key == POLICY else (*came, alike)


def _why(best: Figures, rival: Figures, minimise: str) -> Reason:
    """By what ``rival`` is behind: the first figure in which it is."""
    reasons = {"latency": Reason.SLOWER, "cost": Reason.COSTLIER, "memory": Reason.MORE_MEMORY}
    in_order = (minimise, *(name for name in reasons if name != minimise))
    behind = (a < b for a, b in zip(order(best, minimise), order(rival, minimise), strict=True))
    return next(
        (reasons[name] for name, is_behind in zip(in_order, behind, strict=True) if is_behind), Reason.LATER_IN_ORDER
    )


def words(found: Point | Miss, open_keys: Mapping[str, tuple[Any, ...]]) -> str:
    """The overrides that lead to a candidate without a search."""
    return " ".join(f"{key}={value}" for key, value in found.candidate.values.items() if key in open_keys)


def describe(point: Point) -> str:
    figures = point.figures
    cost = (
        "" if figures.usd_per_million_tokens is None else f", {figures.usd_per_million_tokens:.3g} $ a million tokens"
    )
    return f"{figures.latency_ms:.4g} ms a token{cost}, {figures.device_bytes:,} device bytes"

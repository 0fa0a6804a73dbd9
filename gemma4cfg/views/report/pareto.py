"""Speed against cost or memory: what no other job beats by both."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gemma4cfg.views.report.words import span
from gemma4cfg.views.sizes import gigabytes

JsonRow = Mapping[str, Any]

WIDTH, HEIGHT, LEFT, BOTTOM = 640, 360, 84, 40
"""Of the drawing, in its own units; ``LEFT`` (of ten characters) and ``BOTTOM`` are the axes' margins."""

_STEPS = ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9))
"""Between powers of ten, where there are to be marks."""


@dataclass(frozen=True, slots=True)
class Point:
    """One job: a line from ``x`` to ``x_high`` at height ``y``; ``front``: no other job is better by both."""

    job: int
    x: float
    x_high: float
    y: float
    front: bool
    tip: str


@dataclass(frozen=True, slots=True)
class Tick:
    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Plot:
    """Tokens/s to the right, ``y_name`` upwards, both logarithmic, in units of the drawing."""

    y_name: str
    points: tuple[Point, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]


def plots(rows: Sequence[JsonRow]) -> tuple[Plot, ...]:
    """Of a sweep's jobs that have a plan: dollars (where a price is known), then device bytes of all cores together."""
    done = [row for row in rows if row["plan_id"] is not None]
    priced = [row for row in done if row["usd_per_million_tokens"]]
    found = []
    if priced:
        found.append(
            _plot("$ per million tokens", priced, lambda row: row["usd_per_million_tokens"]["high"], "${:.3g}".format)
        )
    if done:
        found.append(
            _plot("device bytes, all cores", done, lambda row: row["device_bytes"], lambda size: gigabytes(round(size)))
        )
    return tuple(found)


def front(figures: Sequence[tuple[float, float]]) -> frozenset[int]:
    """Indices of the (speed, cost) pairs that none beats: at least as fast and as cheap, and better by one of them."""
    kept: set[int] = set()
    best_of_faster = math.inf
    order = sorted(range(len(figures)), key=lambda place: (-figures[place][0], figures[place][1]))
    at = 0
    while at < len(order):
        speed = figures[order[at]][0]
        equal = [place for place in order[at:] if figures[place][0] == speed]
        least = figures[equal[0]][1]
        if least < best_of_faster:
            kept |= {place for place in equal if figures[place][1] == least}
            best_of_faster = least
        at += len(equal)
    return frozenset(kept)


def _plot(name: str, rows: Sequence[JsonRow], cost: Callable[[JsonRow], float], show: Callable[[float], str]) -> Plot:
    speeds = [row["decode_tokens_per_s"] for row in rows]
    costs = [cost(row) for row in rows]
    best = front([(speed["low"], figure) for speed, figure in zip(speeds, costs, strict=True)])
    across = _Axis(min(s["low"] for s in speeds), max(s["high"] for s in speeds), LEFT, WIDTH - 12)
    up = _Axis(min(costs), max(costs), HEIGHT - BOTTOM, 12)
    points = tuple(
        Point(
            job=row["job"],
            x=across.at(speed["low"]),
            x_high=across.at(speed["high"]),
            y=up.at(figure),
            front=place in best,
            tip=f"job {row['job']}: {' '.join(row['overrides'])}\n{span(speed)} tokens/s, {name} {show(figure)}"
            + ("\nno other job is better by both" if place in best else ""),
        )
        for place, (row, speed, figure) in enumerate(zip(rows, speeds, costs, strict=True))
    )
    return Plot(
        name,
        tuple(sorted(points, key=lambda point: (point.x, point.job))),
        tuple(Tick(across.at(value), f"{value:.3g}") for value in across.ticks()),
        tuple(Tick(up.at(value), show(value)) for value in up.ticks()),
    )


@dataclass(frozen=True, slots=True)
class _Axis:
    """A logarithmic axis from ``low`` at ``start`` to ``high`` at ``end``, a twentieth of the values to spare."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        low, high = math.log(self.low / 1.05), math.log(self.high * 1.05)
        return round(self.start + (math.log(value) - low) / (high - low) * (self.end - self.start), 1)

    def ticks(self) -> list[float]:
        """Round figures, the finer the shorter the axis; its ends where too few are on it."""
        first = math.floor(math.log10(self.low / 1.05))
        last = math.ceil(math.log10(self.high * 1.05))
        for steps in _STEPS:
            round_figures = [step * 10.0**power for power in range(first, last + 1) for step in steps]
            shown = [value for value in round_figures if self.low / 1.05 <= value <= self.high * 1.05]
            if len(shown) >= 3:
                return shown
        return sorted({self.low, self.high})

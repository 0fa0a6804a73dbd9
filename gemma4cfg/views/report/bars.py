"""Stacked bars of bytes against a limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gemma4cfg.views.sizes import gigabytes

JsonPlan = Mapping[str, Any]

DEVICE_PARTS = ("weights", "kv", "scratch", "code", "runtime")
"""Parts of ``budget.hbm_per_rank``, in the order in which they are stacked."""

_HOST_PEAKS = {"shard_peak": "cut", "compile_peak": "compile", "load_peak": "load", "steady": "serve"}


@dataclass(frozen=True, slots=True)
class Segment:
    """``percent`` of the width that the whole group of bars has; ``tip`` says it in words."""

    part: str
    percent: float
    tip: str


@dataclass(frozen=True, slots=True)
class Bar:
    """``limit_percent`` is where the limit's mark stands; ``over``: the bytes are more than the limit."""

    label: str
    segments: tuple[Segment, ...]
    limit_percent: float
    total: str
    limit: str
    over: bool


def device_bars(plans: Sequence[tuple[str, JsonPlan]]) -> tuple[Bar, ...]:
    """A bar for each labelled plan: one rank's parts against its core's limit. Every rank has the same shapes, so one bar
    stands for all of a plan's."""
    budgets = [plan["budget"]["hbm_per_rank"] for _, plan in plans]
    scale = max(max(hbm["total"], hbm["limit"]) for hbm in budgets)
    return tuple(
        _bar(label, [(part, part, hbm[part]) for part in DEVICE_PARTS], hbm["limit"], scale)
        for (label, _), hbm in zip(plans, budgets, strict=True)
    )


def host_bars(plans: Sequence[tuple[str, JsonPlan]]) -> tuple[Bar, ...]:
    """Bars of host memory: what each phase takes at most against what the host has."""
    budgets = [plan["budget"]["host"] for _, plan in plans]
    scale = max(max(host["limit"], *(host[key] for key in _HOST_PEAKS)) for host in budgets)
    return tuple(
        _bar(f"{phase}{label and f', {label}'}", [("host", key.replace("_", " "), host[key])], host["limit"], scale)
        for key, phase in _HOST_PEAKS.items()
        for (label, _), host in zip(plans, budgets, strict=True)
    )


def _bar(label: str, parts: Sequence[tuple[str, str, int]], limit: int, scale: int) -> Bar:
    total = sum(size for _, _, size in parts)
    return Bar(
        label=label,
        segments=tuple(
            Segment(part, 100 * size / scale, f"{label}: {name} {gigabytes(size)}, {size / limit:.1%} of the limit")
            for part, name, size in parts
            if size
        ),
        limit_percent=100 * limit / scale,
        total=gigabytes(total),
        limit=gigabytes(limit),
        over=total > limit,
    )

"""Layers, tensors and bytes in the words of a finding."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from gemma4cfg.runs import short_runs

GIB = 2**30
_MAX_RUNS = 9


def layers_text(layers: Iterable[int]) -> str:
    """``0-59``, ``5,11,…,59`` where they are evenly spaced, else runs: ``0-4,6-10``."""
    ordered = sorted(set(layers))
    steps = {b - a for a, b in pairwise(ordered)}
    if len(ordered) > 3 and len(steps) == 1 and steps != {1}:
        return f"{ordered[0]},{ordered[1]},…,{ordered[-1]}"
    return short_runs(ordered, _MAX_RUNS)


def at_layers(layers: Iterable[int]) -> str:
    """``layer 5`` or ``layers 0-59``."""
    ordered = sorted(set(layers))
    return f"layer{'s' if len(ordered) > 1 else ''} {layers_text(ordered)}"


def counted(number: int, noun: str) -> str:
    """``1 tensor``, ``2,011 tensors``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def some(names: Iterable[str], limit: int = 3) -> str:
    """The first names in order, and ``…`` where there are more."""
    ordered = sorted(names)
    return ", ".join(ordered[:limit]) + (", …" if len(ordered) > limit else "")


def gib(size: int) -> str:
    """Bytes in GiB with two decimals."""
    return f"{size / GIB:.2f} GiB"

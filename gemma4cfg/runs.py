"""Integers as text: ``0-4,6-10,12``."""

from __future__ import annotations

from collections.abc import Iterable


def index_runs(numbers: Iterable[int]) -> str:
    """Integers in their order, successors joined: ``[0, 1, 2, 5]`` is ``0-2,5``."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def short_runs(numbers: Iterable[int], most: int = 4) -> str:
    """``index_runs`` of at most ``most`` runs, the last among them: ``0-4,6-10,…,54-58``."""
    runs = index_runs(numbers).split(",")
    return ",".join(runs if len(runs) <= most else [*runs[: most - 2], "…", runs[-1]])


def expand(text: str) -> list[int]:
    """The integers of ``index_runs``."""
    pairs = [run.partition("-")[::2] for run in text.split(",")] if text else []
    return [number for first, last in pairs for number in range(int(first), int(last or first) + 1)]

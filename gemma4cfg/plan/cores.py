"""The cores that a plan takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def cores_taken(tp: int, arguments: Iterable[Mapping[str, Any]]) -> int:
    """One for each rank, or as many as the ``arguments`` of a plan's calls move programs to."""
    return max([tp, *(int(given["device_id"]) + 1 for given in arguments if "device_id" in given)])

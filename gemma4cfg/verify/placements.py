"""The kinds of placement that a plan uses. A run that never met one of them proves nothing about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemma4cfg.plan.records import Plan
from sharding.placement import Cut, Placement, Range, from_json


def placement_kinds(plan: Plan) -> dict[str, tuple[str, ...]]:
    """Kind to the local names of the device tensors that are placed so; a tensor may be of several kinds."""
    found: dict[str, list[str]] = {}
    for entry in plan.tensors.values():
        if entry["home"] == "device":
            for kind in _kinds(entry):
                found.setdefault(kind, []).append(entry["local_name"])
    if plan.rank_tensors:
        found["rank_tensor"] = list(plan.rank_tensors)
    return {kind: tuple(sorted(names)) for kind, names in sorted(found.items())}


def _kinds(entry: Mapping[str, Any]) -> list[str]:
    placement = from_json(entry["placement"])
    kinds = [_shape(placement)]
    if entry["kind"] == "buffer":
        kinds.append("buffer")
    if entry["status"] == "tied":
        kinds.append("tied")
    if isinstance(placement, Cut):
        ranges = [piece for pieces in placement.ranks for piece in pieces if isinstance(piece, Range)]
        if len(ranges) < sum(map(len, placement.ranks)):
            kinds.append("padded")
        if any(sum(isinstance(piece, Range) for piece in pieces) > 1 for pieces in placement.ranks):
            kinds.append("packed")
        if len(set(ranges)) < len(ranges):
            kinds.append("grouped")
    return kinds


def _shape(placement: Placement) -> str:
    return f"cut_dim_{placement.dim}" if isinstance(placement, Cut) else "whole"

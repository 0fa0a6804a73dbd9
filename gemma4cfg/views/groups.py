"""Equal layers, told once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gemma4cfg.plan.encode import canonical
from gemma4cfg.runs import short_runs


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that differ in index and slot only; ``layer`` is the first of them."""

    layer: Mapping[str, Any]
    members: tuple[int, ...]

    @property
    def indices(self) -> str:
        return short_runs(self.members)


def layer_groups(layers: Sequence[Mapping[str, Any]]) -> list[LayerGroup]:
    """Groups of equal layers, in the order of their first members. Borrowers are equal only if they read one owner."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for layer in layers:
        kv = {**layer["kv"], "slot": None, "owner": None if layer["kv"]["writes"] else layer["kv"]["owner"]}
        groups.setdefault(canonical({**layer, "index": None, "kv": kv}), []).append(layer)
    return [LayerGroup(members[0], tuple(member["index"] for member in members)) for members in groups.values()]

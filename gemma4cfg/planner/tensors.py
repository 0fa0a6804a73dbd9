"""The placement of every tensor of the inventory, from the layers' decisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from gemma4cfg.architecture.inventory import (
    EMBEDDING,
    LM_HEAD,
    PLE_PROJECTION,
    PLE_PROJECTION_NORM,
    PLE_TABLE,
    TensorFacts,
    inventory,
    local_name,
)
from gemma4cfg.architecture.model import Architecture, layer_facts
from gemma4cfg.config.schema import OffloadChoice
from gemma4cfg.plan.bytes import ITEM_BYTES
from gemma4cfg.planner.feedforward import Feedforward
from gemma4cfg.planner.heads import HeadLayout
from sharding.placement import Placement, Whole, cut_evenly, cut_units, local_elements


class PlacedTensor(NamedTuple):
    """A tensor's facts and home; where that is the device, its placement and the elements that one rank holds."""

    facts: TensorFacts
    home: str
    placement: Placement | None = None
    local_elements: int = 0


def place_tensors(
    architecture: Architecture,
    layouts: Sequence[HeadLayout],
    feedforward: Feedforward,
    offload: OffloadChoice,
    split_lm_head: bool,
    tp: int,
) -> dict[str, PlacedTensor]:
    """Checkpoint name to placed tensor, for the whole inventory.

    A tied head that lies whole beside a whole embedding is that embedding: it has no tensor of its own.
    """
    on_host = _host_tensors(offload)
    shared_head = (
        architecture.tied_embeddings and offload.token_embedding == "device" and not (split_lm_head and tp > 1)
    )
    place = _Placer(architecture, layouts, feedforward, split_lm_head, tp)
    placed = {}
    for name, facts in inventory(architecture).items():
        if facts.status == "optional" or (name == LM_HEAD and shared_head):
            placed[name] = PlacedTensor(facts, "unused")
        elif name in on_host:
            placed[name] = PlacedTensor(facts, "host")
        else:
            placed[name] = PlacedTensor(facts, "device", *place(facts))
    return placed


def tensor_entries(placed: Mapping[str, PlacedTensor], dtypes: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The plan's ``tensors``; ``dtypes`` are the sources'. Equal placements are one object."""
    known: dict[int, Any] = {}
    entries = {}
    for name, tensor in placed.items():
        placement = tensor.placement
        if placement is not None and id(placement) not in known:
            known[id(placement)] = placement.to_json()
        entries[name] = {
            "shape": list(tensor.facts.shape),
            "dtype": dtypes[name],
            "kind": tensor.facts.kind,
            "status": tensor.facts.status,
            "home": tensor.home,
            "local_name": local_name(name) if tensor.home == "device" else None,
            "placement": known[id(placement)] if placement is not None else None,
        }
        if tensor.facts.status == "tied":
            entries[name]["source"] = EMBEDDING
    return entries


def device_bytes(tensor: PlacedTensor, dtype: str) -> int:
    """Bytes one rank holds of a tensor; zero off the device."""
    return tensor.local_elements * ITEM_BYTES[dtype]


def stored_bytes(tensor: PlacedTensor, dtype: str) -> int:
    """Bytes of the whole tensor in its source ``dtype``."""
    return prod(tensor.facts.shape) * ITEM_BYTES[dtype]


def _host_tensors(offload: OffloadChoice) -> set[str]:
    homes = {
        EMBEDDING: offload.token_embedding,
        PLE_TABLE: offload.per_layer_embedding,
        PLE_PROJECTION: offload.per_layer_projection,
        PLE_PROJECTION_NORM: offload.per_layer_projection,
    }
    return {name for name, home in homes.items() if home == "host"}


class _Placer:
    """Placements by role; equal questions are answered once."""

    def __init__(
        self,
        architecture: Architecture,
        layouts: Sequence[HeadLayout],
        feedforward: Feedforward,
        split_lm_head: bool,
        tp: int,
    ) -> None:
        self._layers = layer_facts(architecture)
        self._layouts = layouts
        self._feedforward = feedforward
        self._split_lm_head = split_lm_head
        self._tp = tp
        self._known: dict[Any, tuple[Placement, int]] = {}

    def __call__(self, facts: TensorFacts) -> tuple[Placement, int]:
        layout = self._layouts[facts.layer] if facts.layer is not None else None
        key = (facts.role, facts.shape, id(layout))
        if key not in self._known:
            placement = self._place(facts, layout)
            self._known[key] = placement, local_elements(placement, facts.shape)
        return self._known[key]

    def _place(self, facts: TensorFacts, layout: HeadLayout | None) -> Placement:
        if layout is not None and facts.role in _ATTENTION and facts.layer is not None:
            if layout.mode == "replicate":
                return Whole()
            dim, slots = _ATTENTION[facts.role]
            return cut_units(dim, self._layers[facts.layer].attention.head_dim, slots(layout))
        if facts.role in _EVEN and self._is_split(facts.role):
            return cut_evenly(_EVEN[facts.role], facts.shape[_EVEN[facts.role]], self._tp)
        moe = self._feedforward.moe
        if facts.role in _EXPERTS and moe is not None:
            if moe.partition == "experts":
                return cut_evenly(0, facts.shape[0], self._tp)
            dim, parts = _EXPERTS[facts.role]
            return cut_evenly(dim, facts.shape[dim], self._tp, parts)
        return Whole()

    def _is_split(self, role: str) -> bool:
        if role == LM_HEAD:
            return self._split_lm_head
        if role.startswith("per_layer_"):
            return self._feedforward.ple is not None and self._feedforward.ple.reduce
        return True


_ATTENTION: dict[str, tuple[int, Callable[[HeadLayout], Any]]] = {
    "self_attn.q_proj.weight": (0, lambda layout: layout.q_slots),
    "self_attn.k_proj.weight": (0, lambda layout: layout.kv_slots),
    "self_attn.v_proj.weight": (0, lambda layout: layout.kv_slots),
    "self_attn.o_proj.weight": (1, lambda layout: layout.q_slots),
}
"""Dimension, and whose heads its units are."""

_EVEN = {
    "mlp.gate_proj.weight": 0,
    "mlp.up_proj.weight": 0,
    "mlp.down_proj.weight": 1,
    "per_layer_input_gate.weight": 0,
    "per_layer_projection.weight": 1,
    LM_HEAD: 0,
}
"""Dimension that is cut into equal runs."""

_EXPERTS = {"experts.gate_up_proj": (1, 2), "experts.down_proj": (2, 1)}
"""Dimension and packed parts, where every rank holds a slice of every expert."""

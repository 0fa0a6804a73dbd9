"""Tensors whose home, size or placement changed, told by role."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from gemma4cfg.difference.edits import is_equal
from gemma4cfg.difference.reasons import decided, decision_about_heads
from gemma4cfg.plan.bytes import FLOATING, ITEM_BYTES
from gemma4cfg.plan.encode import canonical
from gemma4cfg.plan.fold import number_of
from gemma4cfg.runs import index_runs
from sharding.placement import from_json

JsonPlan = Mapping[str, Any]

_DECIDED_BY = (
    ("mlp.", "mlp"),
    ("experts.", "experts"),
    ("router.", "router"),
    ("per_layer_input_gate.", "ple.partition"),
    ("per_layer_projection.", "ple.partition"),
    ("lm_head.", "lm_head.partition"),
    ("embed_tokens.", "offload.token_embedding"),
    ("embed_tokens_per_layer.", "offload.per_layer_embedding"),
    ("per_layer_model_projection.", "offload.per_layer_projection"),
    ("per_layer_projection_norm.", "offload.per_layer_projection"),
)
"""How the last parts of a tensor's name begin, and the decision behind its home and placement."""


@dataclass(frozen=True, slots=True)
class TensorChange:
    """Tensors of one role that changed alike: ``count`` of them, in ``layers`` (runs of indices; empty for the model's own).

    ``old`` and ``new`` tell ``home``, ``bytes`` of all ``count`` together (on one rank, or on the host), and what differs of
    ``status``, ``shape``, ``dtype`` (as stored), ``dim`` (of the cut; null: whole), ``local_shape`` (of a rank's part; null off
    the device), or where all these are equal, of the rest of its entry in the plan. Null is no such tensor. ``reason`` is of
    the closed list, why the new plan has it so; empty where no decision is behind it. ``types``: how many layers of each type.
    """

    name: str
    layers: str
    count: int
    old: Mapping[str, Any] | None
    new: Mapping[str, Any] | None
    reason: str
    types: Mapping[str, int]


def tensor_changes(old: JsonPlan, new: JsonPlan) -> tuple[TensorChange, ...]:
    """Every tensor that the plans do not hold alike, in their order."""
    groups: dict[str, list[tuple[int, TensorChange]]] = {}
    for name in dict.fromkeys((*old["tensors"], *new["tensors"])):
        before, after = old["tensors"].get(name), new["tensors"].get(name)
        alike = is_equal(before, after)
        if alike and old["dtype"] == new["dtype"]:
            continue
        sides = _side(before, old["dtype"]), _side(after, new["dtype"])
        if before and after and sides[0] == sides[1]:
            if alike:
                continue  # not on the device, where alone the plan's dtype matters
            sides = {**sides[0], **_rest(before)}, {**sides[1], **_rest(after)}
        differing = _differing(*sides)
        role, number = number_of(name) or (name, -1)
        layers = (new if after else old)["layers"]
        types = {layers[number]["type"]: 1} if 0 <= number < len(layers) else {}
        reason = decided("dtype", new) if alike else _reason(role, number, new) if after else ""
        change = TensorChange(role, "", 1, *differing, reason, types)
        groups.setdefault(canonical([role, *differing, change.reason]), []).append((number, change))
    return tuple(_together(members) for members in groups.values())


def _together(members: list[tuple[int, TensorChange]]) -> TensorChange:
    numbers, first = sorted(number for number, _ in members), members[0][1]
    old, new = ({**side, "bytes": side["bytes"] * len(members)} if side else None for side in (first.old, first.new))
    layers = "" if numbers[0] < 0 else index_runs(numbers)
    types = sum((Counter(change.types) for _, change in members), Counter())
    return TensorChange(first.name, layers, len(members), old, new, first.reason, types)


def _side(entry: Mapping[str, Any] | None, plan_dtype: str) -> dict[str, Any]:
    """Empty for no tensor."""
    if entry is None:
        return {}
    side = {key: entry[key] for key in ("home", "shape", "dtype", "status")}
    placement = entry["placement"]
    if placement is None:
        stored = prod(entry["shape"]) * ITEM_BYTES[entry["dtype"]] if entry["home"] == "host" else 0
        return {**side, "dim": None, "local_shape": None, "bytes": stored}
    local = from_json(placement).local_shape(entry["shape"])
    dtype = plan_dtype if entry["dtype"] in FLOATING else entry["dtype"]
    return {**side, "dim": placement["dim"], "local_shape": list(local), "bytes": prod(local) * ITEM_BYTES[dtype]}


def _rest(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What two tensors of equal sides can differ in."""
    told = {key: value for key, value in entry.items() if key not in ("home", "shape", "dtype", "status", "placement")}
    return {**told, "ranges": (entry["placement"] or {}).get("ranges")}


def _differing(old: dict[str, Any], new: dict[str, Any]) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    if not old or not new:
        return old or None, new or None
    keys = [key for key in old if key in ("home", "bytes") or old[key] != new.get(key)]
    return {key: old[key] for key in keys}, {key: new.get(key) for key in keys}


def _reason(role: str, layer: int, plan: JsonPlan) -> str:
    last = role.rpartition("{}.")[2].removeprefix("model.language_model.")
    if last.startswith("self_attn.") and last.endswith("_proj.weight") and 0 <= layer < len(plan["layers"]):
        return decision_about_heads(plan["layers"][layer], plan["decisions"])
    return decided(next((decision for start, decision in _DECIDED_BY if last.startswith(start)), ""), plan)

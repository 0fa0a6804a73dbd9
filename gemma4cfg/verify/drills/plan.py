"""Faults of a plan: every shape is right, and the wrong elements are in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gemma4cfg.plan.records import Plan
from gemma4cfg.verify.drills.records import BORROWERS, MOE, PAST_WINDOW, RANKS, Drill, of_plan
from gemma4cfg.verify.faults import Fault

Json = dict[str, Any]


def _edit(change: Callable[[Json], None]) -> Callable[[Plan], Fault]:
    return lambda plan: Fault(plan=change)  # noqa: ARG005


def _half_heads(plan: Json) -> None:
    """Every rank's rows of K begin half a head late, round the tensor's end."""
    for layer, entry in _of_layers(plan, "self_attn.k_proj.weight"):
        half, rows = layer["head_dim"] // 2, entry["shape"][0]
        if entry["placement"]["dim"] is not None:
            entry["placement"]["ranges"] = [
                [run for piece in pieces for run in _shifted(piece, half, rows)]
                for pieces in entry["placement"]["ranges"]
            ]


def _shifted(piece: Any, by: int, length: int) -> list[Any]:
    if isinstance(piece, dict):
        return [piece]
    start, stop = piece[0] + by, piece[1] + by
    if stop <= length:
        return [[start, stop]]
    return [[start, length], [0, stop - length]] if start < length else [[start - length, stop - length]]


def _interleaved(plan: Json) -> None:
    """Copies of KV heads are dealt like cards (0, 1, 0, 1) and not laid side by side (0, 0, 1, 1)."""
    for role in ("k_proj", "v_proj"):
        for layer, entry in _of_layers(plan, f"self_attn.{role}.weight"):
            if _is_grouped(layer):
                width = layer["head_dim"]
                heads = [rank % layer["kv_heads"] for rank in range(plan["tp"])]
                entry["placement"]["ranges"] = [[[head * width, (head + 1) * width]] for head in heads]


def _windows(by: int) -> Callable[[Json], None]:
    def change(plan: Json) -> None:
        for layer in plan["layers"]:
            if layer["window"] is not None:
                layer["window"] += by

    return change


def _short_rings(plan: Json) -> None:
    lengths = {}
    for layer in plan["layers"]:
        if layer["kv"]["layout"] == "ring":
            layer["kv"]["shape"][2] -= 1
            lengths[layer["kv"]["slot"]] = layer["kv"]["shape"][2]
    for graph in plan["graphs"]:
        for port in graph["state"]:
            port["shape"][2] = lengths.get(int(port["name"].rpartition("_")[2]), port["shape"][2])


def _packed_as_one(plan: Json) -> None:
    """Gate and up are one run of rows that is cut in tp, and not each for itself."""
    for _, entry in _of_layers(plan, "experts.gate_up_proj"):
        run = entry["shape"][1] // plan["tp"]
        entry["placement"]["ranges"] = [[[rank * run, (rank + 1) * run]] for rank in range(plan["tp"])]


def _first_experts(plan: Json) -> None:
    """Every rank holds rank 0's experts and takes them for its own."""
    for tensor in ("experts.gate_up_proj", "experts.down_proj"):
        for _, entry in _of_layers(plan, tensor):
            ranges = entry["placement"]["ranges"]
            entry["placement"]["ranges"] = [ranges[0]] * len(ranges)


def _first_ids(plan: Json) -> None:
    """The ids that rank 0 has are baked into every rank."""
    for name, tensor in plan["rank_tensors"].items():
        if name.endswith("expert_ids"):
            tensor["values"] = [tensor["values"][0]] * plan["tp"]


def _lost_rows(plan: Json) -> None:
    """The last rank's rows of the head are zeros."""
    entry = plan["tensors"]["lm_head.weight"]
    pieces = entry["placement"]["ranges"][-1]
    entry["placement"]["ranges"][-1] = [
        {"zeros": sum(p["zeros"] if isinstance(p, dict) else p[1] - p[0] for p in pieces)}
    ]


def _optional_loaded(plan: Json) -> None:
    """The k/v tensors that borrowing layers carry and nothing reads are placed like any other."""
    for layer in plan["layers"]:
        owner = layer["kv"]["owner"]
        for role in ("self_attn.k_proj.weight", "self_attn.v_proj.weight", "self_attn.k_norm.weight"):
            name = f"model.language_model.layers.{layer['index']}.{role}"
            like = plan["tensors"].get(f"model.language_model.layers.{owner}.{role}")
            if owner != layer["index"] and name in plan["tensors"] and like:
                plan["tensors"][name] |= {
                    "home": "device",
                    "local_name": f"model.layers.{layer['index']}.{role}",
                    "placement": like["placement"],
                }


def _summed_replicas(plan: Json) -> None:
    for layer in plan["layers"]:
        if layer["attention"]["mode"] == "replicate":
            layer["attention"]["reduce"] = True


def _of_layers(plan: Json, role: str) -> list[tuple[Json, Json]]:
    """Layer and tensor, of those on the device."""
    found = []
    for layer in plan["layers"]:
        entry = plan["tensors"].get(f"model.language_model.layers.{layer['index']}.{role}")
        if entry and entry["home"] == "device":
            found.append((layer, entry))
    return found


def _is_grouped(layer: Json) -> bool:
    grouped: bool = layer["attention"]["mode"] == "group" and layer["kv_heads"] > 1
    return grouped


def _has_mode(*modes: str) -> Callable[[Plan], bool]:
    return lambda plan: any(layer.attention.mode in modes for layer in plan.layers)


def _groups_heads(plan: Plan) -> bool:
    return any(layer.attention.mode == "group" and layer.kv_heads > 1 for layer in plan.layers)


def _splits_head(plan: Plan) -> bool:
    placement: dict[str, Any] = plan.tensors["lm_head.weight"]["placement"] or {"dim": None}
    return placement["dim"] is not None


CUT_HEADS = RANKS & of_plan("attention that is split or grouped", _has_mode("split", "group"))
GROUPED_HEADS = of_plan("grouped attention with several KV heads", _groups_heads)
CUT_EXPERTS = MOE & RANKS
SPLIT_HEAD = RANKS & of_plan("lm_head.partition=split", _splits_head)
REPLICAS = RANKS & of_plan("KV heads that these do not divide", _has_mode("replicate"))

DRILLS = (
    Drill("half_a_head", "plan", "a rank's K rows begin in the middle of a head", _edit(_half_heads), CUT_HEADS),
    Drill("interleaved_replicas", "plan", "KV head copies are dealt, not grouped", _edit(_interleaved), GROUPED_HEADS),
    Drill("window_plus_one", "plan", "sliding layers see one key too many", _edit(_windows(1)), PAST_WINDOW),
    Drill("window_minus_one", "plan", "sliding layers see one key too few", _edit(_windows(-1)), PAST_WINDOW),
    Drill(
        "ring_off_by_one",
        "plan",
        "rings are one row short of the window",
        _edit(_short_rings),
        PAST_WINDOW,
        (("shapes.kv_layout", "ring"),),
    ),
    Drill(
        "packed_cut_as_one",
        "plan",
        "packed gate and up are cut as one tensor",
        _edit(_packed_as_one),
        CUT_EXPERTS,
        (("moe.partition", "intermediate"),),
    ),
    Drill(
        "expert_slice_of_rank_0",
        "plan",
        "every rank holds rank 0's experts",
        _edit(_first_experts),
        CUT_EXPERTS,
        (("moe.partition", "experts"),),
    ),
    Drill(
        "expert_ids_of_rank_0",
        "plan",
        "every rank takes its experts for rank 0's",
        _edit(_first_ids),
        CUT_EXPERTS,
        (("moe.partition", "experts"),),
    ),
    Drill("vocabulary_rows_lost", "plan", "the last rank's rows of the head are zeros", _edit(_lost_rows), SPLIT_HEAD),
    Drill(
        "optional_tensors_loaded",
        "plan",
        "borrowing layers are given K/V weights of their own",
        _edit(_optional_loaded),
        BORROWERS,
        refused=True,
    ),
    Drill(
        "replicated_layer_summed",
        "plan",
        "a layer that every rank computes whole is summed over ranks, which a norm hides",
        _edit(_summed_replicas),
        REPLICAS,
        (("attention.policy", "replicate"),),
    ),
)

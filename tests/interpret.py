"""A plan read from its JSON alone: what every rank holds, and every way in which that can contradict itself.

Written from the machine contract and from nothing of the program, so that a rule which the planner gets wrong is not
wrong here too. ``faults`` returns sentences, none for a sound plan; tests of single faults break a plan and look for
theirs. Sizes do not matter to it: coverage is counted in intervals. ``cut``, ``join`` and ``forward`` work on arrays and are
for small models.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

Json = dict[str, Any]
Piece = tuple[int | None, int]
"""Start (None for zeros) and length."""

ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "int32": 4}
PREFIX = "model.language_model."
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


# --- placements ---


def pieces_of(entry: Json, rank: int) -> list[Piece]:
    """What a rank holds along the placement's dimension (the first of a whole tensor), neighbours joined."""
    placement = entry["placement"]
    if placement["dim"] is None:
        return [(0, entry["shape"][0])]
    joined: list[Piece] = []
    for item in placement["ranges"][rank]:
        start, length = (None, item["zeros"]) if isinstance(item, dict) else (item[0], item[1] - item[0])
        before = joined[-1] if joined else None
        if before and (
            (start is None and before[0] is None)
            or (start is not None and before[0] is not None and sum(before) == start)
        ):
            joined[-1] = (before[0], before[1] + length)
        else:
            joined.append((start, length))
    return joined


def dim_of(entry: Json) -> int:
    return entry["placement"]["dim"] or 0


def local_length(entry: Json, rank: int) -> int:
    return sum(length for _, length in pieces_of(entry, rank))


def local_shape(entry: Json, rank: int) -> tuple[int, ...]:
    shape = list(entry["shape"])
    shape[dim_of(entry)] = local_length(entry, rank)
    return tuple(shape)


def coverage(entry: Json, tp: int) -> list[tuple[int, int, int]]:
    """``(start, stop, ranks)`` runs over the whole of the placement's dimension: how many ranks hold each."""
    length = entry["shape"][dim_of(entry)]
    steps: dict[int, int] = {0: 0, length: 0}
    for rank in range(tp):
        for start, size in pieces_of(entry, rank):
            if start is not None:
                steps[start] = steps.get(start, 0) + 1
                steps[start + size] = steps.get(start + size, 0) - 1
    runs: list[tuple[int, int, int]] = []
    count = 0
    edges = sorted(steps)
    for start, stop in pairwise(edges):
        count += steps[start]
        if runs and runs[-1][2] == count:
            runs[-1] = (runs[-1][0], stop, count)
        else:
            runs.append((start, stop, count))
    return runs


def units_of(entry: Json, rank: int, unit: int, dim: int) -> list[int | None] | None:
    """The whole units (heads) of ``dim`` that a rank holds in order, None for one of zeros; null where a cut divides one,
    or is of another dimension."""
    if entry["placement"]["dim"] is None:
        return list(range(entry["shape"][dim] // unit))
    units: list[int | None] = []
    if dim_of(entry) != dim:
        return None
    for start, length in pieces_of(entry, rank):
        if length % unit or (start is not None and start % unit):
            return None
        units += [None if start is None else start // unit + i for i in range(length // unit)]
    return units


def split_pieces(pieces: Sequence[Piece], at: int) -> tuple[list[Piece], list[Piece]]:
    """The pieces of the first ``at`` elements, and the others."""
    first: list[Piece] = []
    second: list[Piece] = []
    for start, length in pieces:
        taken = min(at, length)
        if taken:
            first.append((start, taken))
        if length > taken:
            second.append((None if start is None else start + taken, length - taken))
        at -= taken
    return first, second


def cut(source: np.ndarray, entry: Json, rank: int) -> np.ndarray:
    """A rank's array of a tensor."""
    if entry["placement"]["dim"] is None:
        return source.copy()
    dim = dim_of(entry)
    parts = []
    for start, length in pieces_of(entry, rank):
        shape = list(source.shape)
        shape[dim] = length
        parts.append(
            np.zeros(shape, source.dtype) if start is None else source.take(range(start, start + length), axis=dim)
        )
    return np.concatenate(parts, axis=dim)


def join(parts: Sequence[np.ndarray], entry: Json) -> np.ndarray:
    """The source out of every rank's array. What no rank holds stays NaN; ValueError where two ranks differ, or where
    padding is not zero."""
    dim = dim_of(entry)
    whole = np.full(entry["shape"], np.nan)
    for rank, part in enumerate(parts):
        at = 0
        for start, length in pieces_of(entry, rank):
            index: list[Any] = [slice(None)] * whole.ndim
            index[dim] = slice(at, at + length)
            piece = part[tuple(index)]
            at += length
            if start is None:
                if piece.any():
                    raise ValueError(f"rank {rank} holds padding that is not zero")
                continue
            index[dim] = slice(start, start + length)
            there = whole[tuple(index)]
            if not np.array_equal(there[~np.isnan(there)], piece[~np.isnan(there)]):
                raise ValueError(f"rank {rank} disagrees with an earlier one")
            whole[tuple(index)] = piece
    return whole


# --- identities ---


def canonical_hash(plain: Any) -> str:
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def identities_of(plan: Json) -> tuple[str, str]:
    """``placement_id`` and ``plan_id`` as the contract defines them."""
    outside = ("plan_id", "provenance", "findings", "estimate", "budget", "decisions")
    return (
        canonical_hash({key: plan[key] for key in ("tp", "dtype", "tensors", "rank_tensors")}),
        canonical_hash({key: value for key, value in plan.items() if key not in outside}),
    )


# --- faults ---


def faults(plan: Json) -> list[str]:
    """Every contradiction, in sentences."""
    found = [*_tensor_faults(plan), *_cache_faults(plan)]
    for layer in plan["layers"]:
        found += _attention_faults(plan, layer)
        found += _feedforward_faults(plan, layer)
    found += [*_head_faults(plan), *_budget_faults(plan), *_graph_faults(plan), *_rank_tensor_faults(plan)]
    if identities_of(plan) != (plan["placement_id"], plan["plan_id"]):
        found.append("the identities are not those of the contents")
    return found


def tensor(plan: Json, layer: int, role: str) -> Json | None:
    """A layer's tensor, if it is on the device."""
    entry = plan["tensors"].get(f"{PREFIX}layers.{layer}.{role}")
    return entry if entry and entry["home"] == "device" else None


def device_tensors(plan: Json) -> Iterator[tuple[str, Json]]:
    return ((name, entry) for name, entry in plan["tensors"].items() if entry["home"] == "device")


def _expected_copies(plan: Json, name: str, entry: Json) -> int:
    parts = name.split(".")
    if "self_attn" in parts and parts[-2] in ATTENTION:
        attention = plan["layers"][int(parts[parts.index("layers") + 1])]["attention"]
        if attention["mode"] == "replicate":
            return int(plan["tp"])
        return int(attention["replication"]) if parts[-2] in ("k_proj", "v_proj") else 1
    return int(plan["tp"]) if entry["placement"]["dim"] is None else 1


def _tensor_faults(plan: Json) -> Iterator[str]:
    tp = plan["tp"]
    known: dict[tuple[Any, ...], list[str]] = {}
    local_names: set[str] = set()
    for name, entry in plan["tensors"].items():
        on_device = entry["home"] == "device"
        if (entry["placement"] is not None) != on_device or (entry["local_name"] is not None) != on_device:
            yield f"{name}: placement and local name are for the device alone"
        if (entry["status"] == "optional") and entry["home"] != "unused":
            yield f"{name}: nothing reads it, and it is on the {entry['home']}"
        if entry["status"] == "required" and entry["home"] == "unused":
            yield f"{name}: required, and nowhere"
        if ("source" in entry) != (entry["status"] == "tied"):
            yield f"{name}: a source is for tied tensors"
        if not on_device:
            continue
        if entry["local_name"] in local_names or entry["local_name"] != name.replace("language_model.", ""):
            yield f"{name}: local name {entry['local_name']}"
        local_names.add(entry["local_name"])
        expected = _expected_copies(plan, name, entry)
        key = (id(entry["placement"]), tuple(entry["shape"]), expected)
        if key not in known:
            known[key] = list(_placement_faults(entry, tp, expected))
        yield from (f"{name}: {fault}" for fault in known[key])


def _placement_faults(entry: Json, tp: int, expected: int) -> Iterator[str]:
    placement = entry["placement"]
    if placement["dim"] is not None and len(placement["ranges"]) != tp:
        yield f"{len(placement['ranges'])} ranks of {tp}"
        return
    lengths = {local_length(entry, rank) for rank in range(tp)}
    if len(lengths) != 1 or 0 in lengths:
        yield f"local lengths {sorted(lengths)}"
    for start, stop, count in coverage(entry, tp):
        if count != expected:
            yield f"{start}-{stop} held by {count} ranks, not {expected}"


def _cache_faults(plan: Json) -> Iterator[str]:
    layers, shapes = plan["layers"], plan["shapes"]
    if [layer["index"] for layer in layers] != list(range(len(layers))):
        yield "layers are not numbered from 0"
    writers: dict[int, list[int]] = {}
    for layer in layers:
        index, kv = layer["index"], layer["kv"]
        owner = layers[kv["owner"]]
        if owner["kv"]["owner"] != owner["index"] or owner["type"] != layer["type"] or owner["index"] > index:
            yield f"layer {index} reads layer {kv['owner']}, which owns no K/V of its type before it"
        own = kv["owner"] == index
        if kv["slot"] is not None:
            writers.setdefault(kv["slot"], []).append(index)
        if not own and any(kv[key] is not None for key in ("slot", "shape", "layout")):
            yield f"layer {index} borrows, and has a slot"
        if kv["writes"] != own or (layer["value_source"] == "owner") == own:
            yield f"layer {index}: who writes its K/V is not its owner"
        if not own and any(tensor(plan, index, f"self_attn.{role}.weight") for role in ("k_proj", "v_proj", "k_norm")):
            yield f"layer {index} borrows, and holds K/V tensors"
        if not own and layer["attention"]["kv_heads_of_rank"] != owner["attention"]["kv_heads_of_rank"]:
            yield f"layer {index}: its KV heads are not those of layer {owner['index']}"
        if own:
            ring = shapes["kv_layout"] == "ring" and layer["window"] is not None
            rows = min(layer["window"], shapes["kv_length"]) if ring else shapes["kv_length"]
            shape = [shapes["batch"], layer["attention"]["local_kv_heads"], rows, layer["head_dim"]]
            if kv["shape"] != shape or kv["layout"] != ("ring" if ring else "linear"):
                yield f"layer {index}: slot {kv['shape']} {kv['layout']}, not {shape}"
            has_v = tensor(plan, index, "self_attn.v_proj.weight") is not None
            if has_v != (layer["value_source"] == "v_proj") or not tensor(plan, index, "self_attn.k_proj.weight"):
                yield f"layer {index}: V is of {layer['value_source']}, its tensors say otherwise"
        if (layer["window"] is None) != (layer["type"] == "full_attention"):
            yield f"layer {index} ({layer['type']}): window {layer['window']}"
    for slot, indices in writers.items():
        if len(indices) != 1:
            yield f"slot {slot} has {len(indices)} writers: {', '.join(map(str, indices))}"
    if sorted(writers) != list(range(len(writers))) or [i for s in sorted(writers) for i in writers[s]] != sorted(
        i for indices in writers.values() for i in indices
    ):
        yield "slots are not numbered from 0 by layer"


def _attention_faults(plan: Json, layer: Json) -> Iterator[str]:
    index, tp, attention, head_dim = layer["index"], plan["tp"], layer["attention"], layer["head_dim"]
    local_q, local_kv = attention["local_q_heads"], attention["local_kv_heads"]
    groups = layer["q_heads"] // layer["kv_heads"]
    if attention["reduce"] != (tp > 1 and attention["mode"] != "replicate"):
        yield f"layer {index}: reduce {attention['reduce']} of a {attention['mode']} layer"
    if local_q % local_kv:
        yield f"layer {index}: {local_q} local query heads over {local_kv} KV heads"
        return
    owner = plan["layers"][layer["kv"]["owner"]]["index"]
    read = {
        "q_proj": (index, "q_heads", local_q),
        "o_proj": (index, "q_heads", local_q),
        "k_proj": (owner, "kv_heads", local_kv),
        "v_proj": (owner, "kv_heads", local_kv),
    }
    held_copies = 0
    for rank in range(tp):
        units: dict[str, list[int | None]] = {}
        for role, (where, named, count) in read.items():
            entry = tensor(plan, where, f"self_attn.{role}.weight")
            if entry is None:
                continue
            heads = units_of(entry, rank, head_dim, int(role == "o_proj"))
            if heads is None:
                yield f"layer {index}: rank {rank}'s cut of {role} divides a head"
                return
            units[role] = heads
            if [head for head in heads if head is not None] != attention[f"{named}_of_rank"][rank]:
                yield f"layer {index}: rank {rank} holds {heads} of {role}, {named}_of_rank says otherwise"
            if len(heads) != count:
                yield f"layer {index}: rank {rank} holds {len(heads)} heads of {role}, not {count}"
        if units["q_proj"] != units["o_proj"]:
            yield f"layer {index}: rank {rank}'s columns of o_proj are not the heads of its q_proj"
        if units["k_proj"] != units.get("v_proj", units["k_proj"]):
            yield f"layer {index}: rank {rank} holds other heads of K than of V"
        held_copies += sum(head is not None for head in units["k_proj"])
        for slot, head in enumerate(units["q_proj"]):
            reads = units["k_proj"][slot // (local_q // local_kv)]
            if head is not None and reads != head // groups:
                yield f"layer {index}: rank {rank}'s query head {head} attends to KV head {head // groups}, it has {reads}"
    if held_copies != layer["kv_heads"] * attention["replication"]:
        yield f"layer {index}: {held_copies} KV heads over all ranks, {layer['kv_heads']} x {attention['replication']} said"


def _feedforward_faults(plan: Json, layer: Json) -> Iterator[str]:
    index, tp, mlp, moe, ple = layer["index"], plan["tp"], layer["mlp"], layer["moe"], layer["ple"]
    gate, up, down = (tensor(plan, index, f"mlp.{role}_proj.weight") for role in ("gate", "up", "down"))
    assert gate and up and down
    if gate["shape"][0] != mlp["intermediate"] or mlp["reduce"] != (tp > 1):
        yield f"layer {index}: MLP of {gate['shape'][0]}, reduce {mlp['reduce']}"
    for rank in range(tp):
        rows = pieces_of(gate, rank)
        if rows != pieces_of(up, rank) or rows != pieces_of(down, rank) or (dim_of(gate), dim_of(down)) != (0, 1):
            yield f"layer {index}: rank {rank}'s gate, up and down are cut differently"
        if local_length(gate, rank) != mlp["local_intermediate"]:
            yield f"layer {index}: rank {rank} holds {local_length(gate, rank)} of the MLP, not {mlp['local_intermediate']}"
    if (moe is None) != (tensor(plan, index, "experts.gate_up_proj") is None):
        yield f"layer {index}: experts without their tensors, or the reverse"
    if moe:
        yield from _expert_faults(plan, index, moe)
    gates = tensor(plan, index, "per_layer_input_gate.weight")
    if (ple is None) != (gates is None):
        yield f"layer {index}: per-layer embeddings without their gates, or the reverse"
    if ple and gates:
        back = tensor(plan, index, "per_layer_projection.weight")
        assert back
        width = {local_length(gates, rank) for rank in range(tp)}
        whole = gates["placement"]["dim"] is None
        if width != {ple["local_width"]} or ple["reduce"] == whole or whole != (back["placement"]["dim"] is None):
            yield f"layer {index}: PLE gates of {width}, {ple['local_width']} said, reduce {ple['reduce']}"
        if not whole and any(pieces_of(gates, rank) != pieces_of(back, rank) for rank in range(tp)):
            yield f"layer {index}: PLE gate and projection are cut differently"


def _expert_faults(plan: Json, index: int, moe: Json) -> Iterator[str]:
    tp = plan["tp"]
    packed, down = tensor(plan, index, "experts.gate_up_proj"), tensor(plan, index, "experts.down_proj")
    assert packed and down
    if moe["reduce"] != (tp > 1):
        yield f"layer {index}: experts' reduce {moe['reduce']}"
    for rank in range(tp):
        rows, columns = pieces_of(packed, rank), pieces_of(down, rank)
        shapes = local_shape(packed, rank)[:2], local_shape(down, rank)[::2]
        count, width = moe["local_experts"], moe["local_intermediate"]
        if shapes != ((count, 2 * width), (count, width)):
            yield f"layer {index}: rank {rank} holds experts {shapes}, {count} of {width} said"
        if moe["partition"] == "experts":
            ids = [start + i for start, length in rows if start is not None for i in range(length)]
            fed = plan["rank_tensors"].get(f"model.layers.{index}.experts.expert_ids")
            if rows != columns or (tp > 1 and (fed is None or fed["values"][rank] != ids)):
                yield f"layer {index}: rank {rank} holds experts {ids}, its ids say otherwise"
        else:
            gate, up = split_pieces(rows, width)
            shifted = [(None if start is None else start - moe["intermediate"], length) for start, length in up]
            if gate != shifted or gate != columns:
                yield f"layer {index}: rank {rank}'s gate, up and down of the experts are cut differently"
            if any(start is not None and start + length > moe["intermediate"] for start, length in gate):
                yield f"layer {index}: rank {rank}'s packed gate runs into up"


def _head_faults(plan: Json) -> Iterator[str]:
    entry, tp = plan["tensors"]["lm_head.weight"], plan["tp"]
    if entry["home"] != "device":
        if plan["tensors"][entry["source"]]["home"] != "device":
            yield "no head on the device"
        return
    if entry["placement"]["dim"] is None:
        return
    rows = [piece for rank in range(tp) for piece in pieces_of(entry, rank)]
    at, padded = 0, False
    for start, length in rows:
        padded = padded or start is None
        if start is not None and (padded or start != at):
            yield f"lm_head rows {start}-{start + length} come after {at}{' and padding' if padded else ''}"
        at += length if start is not None else 0
    if at != entry["shape"][0]:
        yield f"{at} of {entry['shape'][0]} lm_head rows"


def _budget_faults(plan: Json) -> Iterator[str]:
    item, copies = ITEM_BYTES[plan["dtype"]], plan["weight_copies"]
    weights = sum(prod(local_shape(entry, 0)) for _, entry in device_tensors(plan)) * item
    for fed in plan["rank_tensors"].values():
        weights += len(fed["values"][0]) * ITEM_BYTES[fed["dtype"]]
    hbm = plan["budget"]["hbm_per_rank"]
    if hbm["weights"] != weights * copies:
        yield f"budget weights {hbm['weights']}, counted {weights} x {copies}"
    slots = [layer["kv"]["shape"] for layer in plan["layers"] if layer["kv"]["shape"]]
    kv = sum(2 * prod(shape) for shape in slots) * ITEM_BYTES[plan["shapes"]["kv_dtype"]]
    if hbm["kv"] != kv * copies:
        yield f"budget kv {hbm['kv']}, counted {kv} x {copies}"
    if hbm["total"] != sum(hbm[part] for part in ("weights", "kv", "scratch", "code", "runtime")):
        yield "the budget's total is not the sum of its parts"
    if hbm["total"] > hbm["limit"]:
        yield "the plan does not fit"
    token = sum(2 * shape[1] * shape[3] for shape in slots) * ITEM_BYTES[plan["shapes"]["kv_dtype"]]
    if plan["estimate"]["bytes_per_token_per_rank"]["kv"] != token:
        yield f"KV bytes a token {plan['estimate']['bytes_per_token_per_rank']['kv']}, counted {token}"
    stored = sum(
        prod(entry["shape"]) * ITEM_BYTES[entry["dtype"]]
        for entry in plan["tensors"].values()
        if entry["home"] == "host"
    )
    if sum(part["bytes"] for part in plan["host"]) != stored:
        yield f"the host holds {stored} bytes, its parts say otherwise"


def _graph_faults(plan: Json) -> Iterator[str]:
    reduces = sum(
        bool(part and part["reduce"])
        for layer in plan["layers"]
        for part in (layer["attention"], layer["mlp"], layer["moe"], layer["ple"])
    )
    head = plan["tensors"]["lm_head.weight"]
    gathers = int(plan["tp"] > 1 and head["placement"] is not None and head["placement"]["dim"] is not None)
    state = [
        {"name": f"{part}_{layer['kv']['slot']}", "shape": layer["kv"]["shape"], "dtype": plan["shapes"]["kv_dtype"]}
        for layer in plan["layers"]
        if layer["kv"]["shape"]
        for part in ("key", "value")
    ]
    for graph in plan["graphs"]:
        if graph["collectives"] != {"all_reduce": reduces, "all_gather": gathers}:
            yield f"{graph['name']}: {graph['collectives']}, layers need {reduces} and {gathers}"
        if graph["state"] != state:
            yield f"{graph['name']}: its state is not the slots"
    ids = [graph["id"] for graph in plan["graphs"]]
    if len(set(ids)) != len(ids):
        yield "two graphs have one id"


def _rank_tensor_faults(plan: Json) -> Iterator[str]:
    for name, fed in plan["rank_tensors"].items():
        if len(fed["values"]) != plan["tp"] or len({len(values) for values in fed["values"]}) != 1:
            yield f"{name}: ranks hold unequal values"
        if name.endswith("expert_ids"):
            moe = plan["layers"][int(name.split(".")[2])]["moe"]
            if [i for values in fed["values"] for i in values] != list(range(moe["experts"])):
                yield f"{name}: not every expert once"
        elif name == "model.ple_columns":
            gates = tensor(plan, 0, "per_layer_input_gate.weight")
            assert gates
            for rank, values in enumerate(fed["values"]):
                held = [
                    None if start is None else start + i
                    for start, length in pieces_of(gates, rank)
                    for i in range(length)
                ]
                if len(held) != len(values) or any(
                    h is not None and h != v for h, v in zip(held, values, strict=False)
                ):
                    yield f"{name}: rank {rank} reads columns {values}, its gates are {held}"
                if any(not 0 <= value < gates["shape"][0] for value in values):
                    yield f"{name}: rank {rank} reads a column that is none"
        else:
            yield f"{name}: no rule for it"


# --- a stand-in for the forward pass ---


def forward(plan: Json, sources: dict[str, np.ndarray], held: dict[str, np.ndarray], rank: int, x: np.ndarray) -> Json:
    """What one rank makes of ``x`` with its arrays ``held``, by its local counts alone: by layer and part, in whole numbers.

    Products stand for attention, squares and products for activations: enough that a head, column or expert that meets
    the wrong one changes the sum. ``sources`` are whole tensors that the host keeps.
    """
    made: Json = {}
    for layer in plan["layers"]:
        index, attention, dim = layer["index"], layer["attention"], layer["head_dim"]

        def local(role: str, of: int = index) -> np.ndarray:
            return held[f"{PREFIX}layers.{of}.{role}"]

        owner = layer["kv"]["owner"]
        repeat = attention["local_q_heads"] // attention["local_kv_heads"]
        queries = (local("self_attn.q_proj.weight") @ x).reshape(-1, dim)
        keys = (local("self_attn.k_proj.weight", owner) @ x).reshape(-1, dim)
        own = plan["layers"][owner]["value_source"]
        values = (local(f"self_attn.{own}.weight", owner) @ x).reshape(-1, dim)
        keys, values = keys.repeat(repeat, axis=0), values.repeat(repeat, axis=0)
        mixed = (queries * keys).sum(axis=1, keepdims=True) * values
        made[f"{index}.attention"] = local("self_attn.o_proj.weight") @ mixed.reshape(-1)
        gated = (local("mlp.gate_proj.weight") @ x) ** 2 * (local("mlp.up_proj.weight") @ x)
        made[f"{index}.mlp"] = local("mlp.down_proj.weight") @ gated
        if moe := layer["moe"]:
            width = moe["local_intermediate"]
            both = local("experts.gate_up_proj") @ x
            acted = both[:, :width] ** 2 * both[:, width:]
            out = np.einsum("ehi,ei->eh", local("experts.down_proj"), acted)
            ids = plan["rank_tensors"].get(f"model.layers.{index}.experts.expert_ids")
            mine = ids["values"][rank] if ids else list(range(moe["experts"]))
            made[f"{index}.moe"] = (out * (np.array(mine) + 1)[:, None]).sum(axis=0)
        if ple := layer["ple"]:
            row = np.arange(1, ple["width"] + 1)
            if ple["reduce"]:
                row = row[plan["rank_tensors"]["model.ple_columns"]["values"][rank]]
            gate = (local("per_layer_input_gate.weight") @ x) * row
            made[f"{index}.ple"] = local("per_layer_projection.weight") @ gate
    head = plan["tensors"]["lm_head.weight"]
    weight = held["lm_head.weight"] if head["home"] == "device" else sources[head["source"]]
    made["logits"] = weight @ x
    return made


def gather(plan: Json, of_rank: Sequence[Json]) -> Json:
    """All ranks' results put together as the plan says: summed where it reduces, else each rank's own (all must agree)."""
    whole: Json = {}
    for key in of_rank[0]:
        if key == "logits":
            vocab = plan["tensors"]["lm_head.weight"]["shape"][0]
            gathered = plan["graphs"][0]["collectives"]["all_gather"]
            parts = [made[key] for made in of_rank]
            whole[key] = np.concatenate(parts)[:vocab] if gathered else parts[0]
            continue
        index, part = key.split(".")
        if plan["layers"][int(index)][part]["reduce"]:
            whole[key] = sum(made[key] for made in of_rank)
        else:
            whole[key] = of_rank[0][key]
            if any(not np.array_equal(made[key], whole[key]) for made in of_rank):
                raise ValueError(f"{key} is not reduced, and ranks differ")
    return whole

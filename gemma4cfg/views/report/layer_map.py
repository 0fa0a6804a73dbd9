"""The rank x layer map: which heads, experts and columns each rank has of each layer, and whose cache the layer reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gemma4cfg.runs import index_runs, short_runs

JsonPlan = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Cell:
    """One rank of one layer. ``heads``, ``kv_heads`` and ``experts`` are runs of numbers, empty for none (``experts``: where
    all ranks have all). ``text`` is an index into ``LayerMap.texts``. ``joined``: the rank before has the same KV heads."""

    heads: str
    kv_heads: str
    experts: str
    text: int
    joined: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One layer. ``slot`` is the cache slot that it writes, or that of the layer whose KV it reads."""

    index: int
    kind: str
    owned: bool
    slot: int
    text: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class LayerMap:
    """``texts``: what there is to say of a cell, each once; the same for equal layers."""

    ranks: int
    rows: tuple[Row, ...]
    texts: tuple[str, ...]


def layer_map(plan: JsonPlan) -> LayerMap:
    """The map of a plan in JSON form: ``len(layers)`` rows of ``tp`` cells."""
    texts: dict[str, int] = {}
    slots = {layer["index"]: layer["kv"]["slot"] for layer in plan["layers"]}
    rows = []
    for layer in plan["layers"]:
        kv = layer["kv"]
        rows.append(
            Row(
                index=layer["index"],
                kind=layer["type"].removesuffix("_attention"),
                owned=kv["writes"],
                slot=slots[kv["owner"]],
                text=_row_text(layer, slots[kv["owner"]]),
                cells=tuple(_cells(plan, layer, texts)),
            )
        )
    return LayerMap(plan["tp"], tuple(rows), tuple(texts))


def _row_text(layer: Mapping[str, Any], slot: int) -> str:
    attention, kv = layer["attention"], layer["kv"]
    window = f", window {layer['window']}" if layer["window"] else ""
    if kv["writes"]:
        shape = "x".join(map(str, kv["shape"]))
        cache = f"owns cache slot {slot}: {shape} a rank, {kv['layout']}"
        cache += ", V = K" if layer["value_source"] == "k_proj" else ""
    else:
        cache = f"borrows the KV of layer {kv['owner']} (cache slot {slot})"
    return (
        f"layer {layer['index']}: {layer['type'].replace('_', ' ')}{window}, {layer['q_heads']} query and "
        f"{layer['kv_heads']} KV heads x {layer['head_dim']}, {attention['mode']}"
        f"{', all-reduce' if attention['reduce'] else ''}; {cache}"
    )


def _cells(plan: JsonPlan, layer: Mapping[str, Any], texts: dict[str, int]) -> Iterator[Cell]:
    attention, moe = layer["attention"], layer["moe"]
    mlp = _ranges(plan, layer["index"], "mlp.down_proj.weight", 1)
    experts = _ranges(plan, layer["index"], "experts.down_proj", 0)
    columns = _ranges(plan, layer["index"], "experts.down_proj", 2)
    before = None
    for rank in range(plan["tp"]):
        q_heads, kv_heads = attention["q_heads_of_rank"][rank], attention["kv_heads_of_rank"][rank]
        told = [
            f"rank {rank}: {_heads('query head', q_heads, attention['local_q_heads'])}",
            f"{_heads('KV head', kv_heads, attention['local_kv_heads'])}"
            + (f" ({attention['replication']} copies)" if attention["replication"] > 1 else ""),
        ]
        if mlp:
            told.append(f"MLP columns {mlp[rank]} of {layer['mlp']['intermediate']}")
        if moe:
            told.append(f"experts {experts[rank]}" if experts else f"all {moe['experts']} experts")
            told[-1] += f", columns {columns[rank]} of {moe['intermediate']} each" if columns else ", whole"
        if layer["ple"]:
            told.append(f"PLE {layer['ple']['local_width']} of {layer['ple']['width']}")
        yield Cell(
            heads=index_runs(q_heads),
            kv_heads=index_runs(kv_heads),
            experts=experts[rank] if experts else "",
            text=texts.setdefault("; ".join(told), len(texts)),
            joined=kv_heads == before,
        )
        before = kv_heads


def _heads(what: str, numbers: Sequence[int], local: int) -> str:
    """``query heads 4-7``; heads of zeros that only fill up are counted."""
    filling = local - len(numbers)
    told = f"{what}{'' if len(numbers) == 1 else 's'} {short_runs(numbers) or 'none'}"
    return told + (f" and {filling} of padding" if filling > 0 else "")


def _ranges(plan: JsonPlan, layer: int, name: str, dim: int) -> list[str]:
    """For each rank the indices of a tensor that it holds, where the tensor is cut in ``dim``; empty where it is not."""
    tensor = plan["tensors"].get(f"model.language_model.layers.{layer}.{name}")
    placement = (tensor or {}).get("placement") or {}
    if placement.get("dim") != dim:
        return []
    return [
        ", ".join(f"{start}-{end - 1}" if end - start > 1 else str(start) for start, end in held) or "none"
        for held in placement["ranges"]
    ]

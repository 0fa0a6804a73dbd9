"""What a plan and its twin have in common: what lies where and is done in which order, no size and no float type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from gemma4cfg.plan.records import Layer, Plan


def structure(plan: Plan) -> Iterator[tuple[str, Any]]:
    """Key (``layer 5 (full_attention): kv``) and value of everything in a plan that its twin must have too."""
    for key in ("target", "sdk", "recipe", "tp", "weight_copies"):
        yield key, getattr(plan, key)
    yield "shapes.kv_layout", plan.shapes.kv_layout
    yield "shapes.prompt_chunking", plan.shapes.prompt_chunking
    for key in ("rms_norm_eps", "activation", "attention_scale", "final_logit_softcap"):
        yield f"numerics.{key}", getattr(plan.numerics, key)
    for layer in plan.layers:
        for key, value in _layer_structure(layer):
            yield f"layer {layer.index} ({layer.type}): {key}", value
    kinds: dict[int, Any] = {}
    for name, entry in plan.tensors.items():
        for key in ("kind", "status", "home", "local_name", "source"):
            yield f"tensors.{name}.{key}", entry.get(key)
        placement = entry["placement"]
        if id(placement) not in kinds:
            kinds[id(placement)] = _placement_kind(placement)
        yield f"tensors.{name}.placement", kinds[id(placement)]
    yield "rank_tensors", [(name, tensor.dtype) for name, tensor in plan.rank_tensors.items()]
    yield "host", [(part.what, part.tensor) for part in plan.host]
    yield "graphs", [graph.kind for graph in plan.graphs]
    for number, graph in enumerate(plan.graphs):
        for key in ("inputs", "outputs", "state"):
            yield f"graphs.{number} ({graph.kind}).{key}", [port.name for port in getattr(graph, key)]
        yield f"graphs.{number} ({graph.kind}).collectives", graph.collectives
    yield "calls", [call.api for call in plan.calls]


def _layer_structure(layer: Layer) -> Iterator[tuple[str, Any]]:
    yield "q_heads, kv_heads", (layer.q_heads, layer.kv_heads)
    yield "window", layer.window is not None
    yield "attention", layer.attention
    yield "kv", replace(layer.kv, shape=None)
    yield "kv.shape", layer.kv.shape and layer.kv.shape[1]
    yield "value_source", layer.value_source
    yield "rope", (layer.rope.theta, layer.rope.type)
    yield "mlp.reduce", layer.mlp.reduce
    yield "ple", layer.ple and (layer.ple.reduce, layer.ple.local_width == layer.ple.width)
    if moe := layer.moe:
        whole = (moe.local_experts == moe.experts, moe.local_intermediate == moe.intermediate)
        yield "moe", (moe.partition, moe.top_k, moe.reduce, *whole)


def _placement_kind(placement: Mapping[str, Any] | None) -> Any:
    """The dimension, and for each rank which of its pieces are zeros."""
    if placement is None or placement["dim"] is None:
        return placement
    ranks = ["".join("0" if isinstance(piece, dict) else "x" for piece in pieces) for pieces in placement["ranges"]]
    return placement["dim"], ranks

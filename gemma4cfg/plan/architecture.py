"""The model that a plan describes, as an architecture: the way back from per-layer records to facts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemma4cfg.architecture.inventory import EMBEDDING, FINAL_NORM, LM_HEAD, PLE_TABLE
from gemma4cfg.architecture.model import (
    LAYER_TYPES,
    Architecture,
    AttentionFacts,
    AttentionTypes,
    MlpFacts,
    MoeFacts,
    PleFacts,
    Rope,
)
from gemma4cfg.plan.records import Layer, Plan


def architecture_of(plan: Plan) -> Architecture:
    """Equal to the architecture that the plan was made from, but for ``max_positions``, which a plan does not hold: here
    it is ``kv_length``. A layer type that no layer has takes the other's heads."""
    layers, numerics = plan.layers, plan.numerics
    first = layers[0]
    wide = {layer.mlp.intermediate for layer in layers if layer.kv.owner != layer.index}
    (hidden,) = plan.tensors[FINAL_NORM]["shape"]
    return Architecture(
        layers=len(layers),
        layer_pattern=_pattern(layers),
        hidden_size=hidden,
        vocab_size=plan.tensors[EMBEDDING]["shape"][0],
        max_positions=plan.shapes.kv_length,
        attention=AttentionTypes(*(_attention(layers, kind) for kind in LAYER_TYPES)),
        kv_shared_layers=sum(layer.kv.owner != layer.index for layer in layers),
        mlp=MlpFacts(first.mlp.intermediate, double_wide=bool(wide - {first.mlp.intermediate})),
        ple=_ple(plan.tensors, plan),
        moe=MoeFacts(first.moe.experts, first.moe.top_k, first.moe.intermediate) if first.moe else None,
        rms_norm_eps=numerics.rms_norm_eps,
        activation="gelu_pytorch_tanh",
        attention_scale=numerics.attention_scale,
        embedding_scale=numerics.embedding_scale,
        final_logit_softcap=numerics.final_logit_softcap,
        tied_embeddings=plan.tensors[LM_HEAD]["status"] == "tied",
        name=plan.model,
        class_name=plan.provenance["class_name"],
    )


def _pattern(layers: tuple[Layer, ...]) -> tuple[Any, ...]:
    types = [layer.type for layer in layers]
    period = next(n for n in range(1, len(types) + 1) if all(types[i] == types[i % n] for i in range(len(types))))
    return tuple(types[:period])


def _attention(layers: tuple[Layer, ...], kind: str) -> AttentionFacts:
    layer = next((layer for layer in layers if layer.type == kind), layers[0])
    absent = layer.type != kind
    return AttentionFacts(
        q_heads=layer.q_heads,
        kv_heads=layer.kv_heads,
        head_dim=layer.head_dim,
        window=(None if kind == "full_attention" else 1) if absent else layer.window,
        k_eq_v=layer.value_source == "k_proj" and not absent,
        rope=Rope(layer.rope.theta, layer.rope.type, 2 * layer.rope.rotary_pairs / layer.head_dim),  # type: ignore[arg-type]
    )


def _ple(tensors: Mapping[str, Mapping[str, Any]], plan: Plan) -> PleFacts | None:
    record, numerics = plan.layers[0].ple, plan.numerics.ple
    if record is None or numerics is None:
        return None
    return PleFacts(
        width=record.width,
        vocab_size=tensors[PLE_TABLE]["shape"][0],
        embedding_scale=numerics.embedding_scale,
        projection_scale=numerics.projection_scale,
        combine_scale=numerics.combine_scale,
    )

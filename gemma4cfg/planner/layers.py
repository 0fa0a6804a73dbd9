"""The plan's layers: an architecture's facts with every decision applied."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

from gemma4cfg.architecture.model import Architecture, layer_facts
from gemma4cfg.architecture.rounding import embedding_scales, rounded
from gemma4cfg.plan.records import Layer, LayerAttention, LayerKv, LayerRope, Numerics, PleNumerics
from gemma4cfg.planner.feedforward import Feedforward, mlp_of
from gemma4cfg.planner.heads import HeadLayout, heads_of_rank


def plan_layers(
    architecture: Architecture,
    layouts: Sequence[HeadLayout],
    feedforward: Feedforward,
    slots: Sequence[LayerKv],
    implementation: str,
    tp: int,
) -> tuple[Layer, ...]:
    """One record per layer; equal parts are shared objects."""
    known: dict[Any, Any] = {}

    def once(key: Any, make: Any, *args: Any) -> Any:
        if key not in known:
            known[key] = make(*args)
        return known[key]

    return tuple(
        Layer(
            index=layer.index,
            type=layer.type,
            q_heads=layer.attention.q_heads,
            kv_heads=layer.attention.kv_heads,
            head_dim=layer.attention.head_dim,
            window=layer.attention.window,
            attention=once(id(layouts[layer.index]), _attention, layouts[layer.index], implementation, tp),
            kv=slots[layer.index],
            value_source=layer.value_source,
            rope=once(layer.type, _rope, layer),
            mlp=once(layer.intermediate_size, mlp_of, layer.intermediate_size, tp),
            ple=feedforward.ple,
            moe=feedforward.moe,
        )
        for layer in layer_facts(architecture)
    )


def plan_numerics(architecture: Architecture, dtype: str) -> Numerics:
    """The constants of a model that runs in ``dtype``: the embeddings' scales are rounded to it, the others are not."""
    ple = architecture.ple
    return Numerics(
        rms_norm_eps=architecture.rms_norm_eps,
        activation=architecture.activation,
        attention_scale=architecture.attention_scale,
        final_logit_softcap=architecture.final_logit_softcap,
        embedding_scale=_embedding_scale(architecture.embedding_scale, architecture.hidden_size, dtype),
        ple=PleNumerics(
            embedding_scale=_embedding_scale(ple.embedding_scale, ple.width, dtype),
            projection_scale=ple.projection_scale,
            combine_scale=ple.combine_scale,
        )
        if ple
        else None,
    )


def _embedding_scale(stated: float, width: int, dtype: str) -> float:
    """The square root of ``width`` is stated as some type rounds it; any other scale is a constant of its own."""
    return rounded(sqrt(width) if stated in embedding_scales(width) else stated, dtype)


def _attention(layout: HeadLayout, implementation: str, tp: int) -> LayerAttention:
    return LayerAttention(
        mode=layout.mode,
        implementation=implementation,
        local_q_heads=layout.local_q_heads,
        local_kv_heads=layout.local_kv_heads,
        replication=layout.replication,
        reduce=tp > 1 and layout.mode != "replicate",
        q_heads_of_rank=heads_of_rank(layout.q_slots),
        kv_heads_of_rank=heads_of_rank(layout.kv_slots),
    )


def _rope(layer: Any) -> LayerRope:
    rope, head_dim = layer.attention.rope, layer.attention.head_dim
    return LayerRope(rope.theta, rope.type, rope.rotary_pairs(head_dim), rope.inv_freq_length(head_dim))

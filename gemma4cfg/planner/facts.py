"""A plan's facts under the names that a published failure's ``when`` may use (see ``failures``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gemma4cfg.architecture.model import Architecture, layer_facts
from gemma4cfg.config.schema import Recipe
from gemma4cfg.config.target import Target
from gemma4cfg.planner.division import Division
from gemma4cfg.planner.heads import HeadLayout
from gemma4cfg.planner.host_memory import text_elements


def plan_facts(
    architecture: Architecture,
    target: Target,
    recipe: Recipe,
    division: Division,
    tp: int,
    graphs_per_core: int,
    swap_gib: int,
) -> dict[str, Any]:
    """Facts of the whole plan. ``prefill_rows`` is ``last``: our graphs select a stream's last row before the head."""
    shapes, offload, moe = division.shapes, division.offload, division.feedforward.moe
    return {
        "model": architecture.name,
        "family": target.family,
        "recipe": recipe.name,
        "api": recipe.api,
        "tp": tp,
        "dtype": division.dtype,
        "kv_dtype": shapes.kv_dtype,
        "batch": shapes.batch,
        "kv_length": shapes.kv_length,
        "max_prefill_bucket": shapes.prefill_buckets[-1],
        "prefill_rows": "last",
        "prefill_graphs": 0 if recipe.prefill == "host" or recipe.name == "vllm" else len(shapes.prefill_buckets),
        "has_ple": architecture.ple is not None,
        "has_moe": architecture.moe is not None,
        "moe_partition": moe.partition if moe else None,
        "has_kv_sharing": architecture.kv_shared_layers > 0,
        "hidden_size": architecture.hidden_size,
        "vocab_size": architecture.vocab_size,
        "softcap_home": offload.softcap if architecture.final_logit_softcap is not None else "none",
        "sampling_home": offload.sampling,
        "token_embedding_home": offload.token_embedding,
        "per_layer_embedding_home": offload.per_layer_embedding if architecture.ple else "none",
        "lm_head_partition": "split" if division.split_lm_head else "replicate",
        "kv_layout": shapes.kv_layout,
        "graphs_per_core": graphs_per_core,
        "layers": architecture.layers,
        "text_parameters": text_elements(architecture)[0],
        "host_memory_gib": target.host_memory_gib,
        "swap_gib": swap_gib,
    }


def attention_facts(architecture: Architecture, layouts: Sequence[HeadLayout], tp: int) -> list[dict[str, Any]]:
    """Facts of every layer, but for its implementation, which they help to decide."""
    return [
        {
            "layer_type": layer.type,
            "window": layer.attention.window,
            "head_dim": layer.attention.head_dim,
            "q_heads": layer.attention.q_heads,
            "kv_heads": layer.attention.kv_heads,
            "attention_mode": layouts[layer.index].mode,
            "kv_heads_exceed_tp": 1 < tp < layer.attention.kv_heads and layer.attention.kv_heads % tp == 0,
        }
        for layer in layer_facts(architecture)
    ]

"""An Architecture as the config.json of its Hugging Face class: the way back from ``huggingface``.

Keys are those that transformers 5.13 and later read. What the classes cannot say is refused, never approximated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gemma4cfg.architecture.huggingface import MODEL_TYPES
from gemma4cfg.architecture.model import LAYER_TYPES, Architecture, Rope, layer_facts
from gemma4cfg.architecture.rounding import embedding_scales
from gemma4cfg.errors import ConfigError

_TYPES = {class_name: model_type for model_type, class_name in MODEL_TYPES.items()}


def text_config(architecture: Architecture) -> dict[str, Any]:
    """The text decoder's configuration, as ``Gemma4TextConfig`` or ``Gemma4UnifiedTextConfig`` take it.

    Raises ConfigError naming the key that the class has no words for.
    """
    if architecture.class_name not in _TYPES:
        raise ConfigError(
            f"model.class_name={architecture.class_name}: not a class of the Gemma-4 family; one of {', '.join(_TYPES)}"
        )
    for objection in (*_scales(architecture), *_attention(architecture), *_parts(architecture)):
        raise ConfigError(f"{objection} (a Hugging Face class cannot run this model)")
    sliding, full = architecture.attention.sliding_attention, architecture.attention.full_attention
    written = {
        "model_type": _text_type(architecture),
        "dtype": architecture.checkpoint_dtype,
        "vocab_size": architecture.vocab_size,
        "hidden_size": architecture.hidden_size,
        "intermediate_size": architecture.mlp.intermediate_size,
        "num_hidden_layers": architecture.layers,
        "num_attention_heads": sliding.q_heads,
        "num_key_value_heads": sliding.kv_heads,
        "num_global_key_value_heads": full.kv_heads if full.k_eq_v else None,
        "head_dim": sliding.head_dim,
        "global_head_dim": full.head_dim,
        "hidden_activation": architecture.activation,
        "max_position_embeddings": architecture.max_positions,
        "rms_norm_eps": architecture.rms_norm_eps,
        "tie_word_embeddings": architecture.tied_embeddings,
        "rope_parameters": {kind: _rope(getattr(architecture.attention, kind).rope) for kind in LAYER_TYPES},
        "attention_bias": False,
        "attention_dropout": 0.0,
        "sliding_window": sliding.window,
        "layer_types": [layer.type for layer in layer_facts(architecture)],
        "final_logit_softcapping": architecture.final_logit_softcap,
        "use_bidirectional_attention": None,
        "attention_k_eq_v": full.k_eq_v,
        "num_kv_shared_layers": architecture.kv_shared_layers,
        "use_double_wide_mlp": architecture.mlp.double_wide,
    }
    return written if _is_unified(architecture) else written | _own_to_gemma4(architecture)


def config_json(architecture: Architecture) -> dict[str, Any]:
    """The whole config.json of ``architecture.class_name``; a multimodal class gets no towers.

    Raises ConfigError as ``text_config`` does.
    """
    text = text_config(architecture)
    model_type = _TYPES[architecture.class_name]
    outer = {"architectures": [architecture.class_name], "model_type": model_type}
    if model_type == text["model_type"]:
        return {**text, **outer}
    return {
        **outer,
        "dtype": architecture.checkpoint_dtype,
        "tie_word_embeddings": architecture.tied_embeddings,
        "text_config": text,
        "vision_config": None,
        "audio_config": None,
    }


def _is_unified(architecture: Architecture) -> bool:
    return "Unified" in architecture.class_name


def _text_type(architecture: Architecture) -> str:
    return "gemma4_unified_text" if _is_unified(architecture) else "gemma4_text"


def _own_to_gemma4(architecture: Architecture) -> dict[str, Any]:
    """Keys that the unified classes do not have."""
    ple, moe = architecture.ple, architecture.moe
    return {
        "hidden_size_per_layer_input": ple.width if ple else 0,
        "vocab_size_per_layer_input": ple.vocab_size if ple else architecture.vocab_size,
        "enable_moe_block": moe is not None,
        "num_experts": moe.experts if moe else None,
        "top_k_experts": moe.top_k if moe else None,
        "moe_intermediate_size": moe.intermediate_size if moe else None,
    }


def _rope(rope: Rope) -> dict[str, Any]:
    written: dict[str, Any] = {"rope_type": rope.type, "rope_theta": rope.theta}
    return {**written, "partial_rotary_factor": rope.partial_rotary_factor} if rope.type == "proportional" else written


def _scales(architecture: Architecture) -> Iterator[str]:
    """Scales that the classes derive from the widths. The embedding's may be stated as any type rounds it."""
    hidden, ple = architecture.hidden_size, architecture.ple
    if architecture.attention_scale != 1.0:
        yield f"model.attention_scale={architecture.attention_scale}: expected 1.0"
    yield from _embedding_scale("model.embedding_scale", architecture.embedding_scale, "hidden_size", hidden)
    if ple:
        yield from _embedding_scale("model.ple.embedding_scale", ple.embedding_scale, "ple.width", ple.width)
        if ple.projection_scale != hidden**-0.5:
            yield f"model.ple.projection_scale={ple.projection_scale}: expected hidden_size ** -0.5 = {hidden**-0.5}"
        if ple.combine_scale != 2.0**-0.5:
            yield f"model.ple.combine_scale={ple.combine_scale}: expected 2 ** -0.5 = {2.0**-0.5}"


def _embedding_scale(key: str, scale: float, width_key: str, width: int) -> Iterator[str]:
    allowed = embedding_scales(width)
    if scale not in allowed:
        yield f"{key}={scale}: expected the square root of {width_key}={width}, in bfloat16 {allowed[0]}"


def _attention(architecture: Architecture) -> Iterator[str]:
    sliding, full = architecture.attention.sliding_attention, architecture.attention.full_attention
    where = "model.attention"
    if layer_facts(architecture)[-1].type != "full_attention":
        yield f"model.layer_pattern: layer {architecture.layers - 1}, the last, is sliding; it must be full_attention"
    if full.q_heads != sliding.q_heads:
        yield f"{where}.full_attention.q_heads={full.q_heads}: expected that of sliding_attention, {sliding.q_heads}"
    if full.kv_heads != sliding.kv_heads and not full.k_eq_v:
        yield (
            f"{where}.full_attention.kv_heads={full.kv_heads}: without k_eq_v expected that of sliding_attention, "
            f"{sliding.kv_heads}"
        )
    if sliding.k_eq_v:
        yield f"{where}.sliding_attention.k_eq_v=true: expected false, keys double as values in full layers only"
    for kind in LAYER_TYPES:
        facts = getattr(architecture.attention, kind)
        if facts.head_dim % 2:
            yield f"{where}.{kind}.head_dim={facts.head_dim}: rotary embedding pairs channels, expected an even number"
        if facts.rope.type == "default" and facts.rope.partial_rotary_factor != 1.0:
            yield (
                f"{where}.{kind}.rope.partial_rotary_factor={facts.rope.partial_rotary_factor}: expected 1.0 for the "
                "default type"
            )
    if full.rope.type == "default" and full.head_dim != sliding.head_dim:
        yield (
            f"{where}.full_attention.rope.type=default: expected proportional where its head_dim={full.head_dim} is not "
            f"that of sliding_attention, {sliding.head_dim}"
        )


def _parts(architecture: Architecture) -> Iterator[str]:
    for key, part in (("ple", architecture.ple), ("moe", architecture.moe)):
        if part and _is_unified(architecture):
            yield f"model.{key}: {architecture.class_name} has no such part, expected null"

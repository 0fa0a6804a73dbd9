"""A Hugging Face config.json of the Gemma-4 family as an Architecture.

Keys mean what transformers 5.13 makes of them. An absent key takes transformers' default only where no tensor's shape
hangs on it; shapes are never guessed.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from math import sqrt
from typing import Any, Literal

from gemma4cfg.architecture.config_keys import ConfigKeys
from gemma4cfg.architecture.model import (
    LAYER_TYPES,
    Architecture,
    AttentionFacts,
    AttentionTypes,
    LayerType,
    MlpFacts,
    MoeFacts,
    PleFacts,
    Rope,
)
from gemma4cfg.errors import ConfigError

MODEL_TYPES = {
    "gemma4": "Gemma4ForConditionalGeneration",
    "gemma4_text": "Gemma4ForCausalLM",
    "gemma4_unified": "Gemma4UnifiedForConditionalGeneration",
    "gemma4_unified_text": "Gemma4UnifiedForCausalLM",
}
"""Model type to the class that transformers loads it with."""

_DEFAULT_PATTERN: tuple[LayerType, ...] = ("sliding_attention",) * 5 + ("full_attention",)
_DEFAULT_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
}


def architecture_from_config(config: Mapping[str, Any]) -> Architecture:
    """The text decoder of a config.json, multimodal (its ``text_config``) or text-only (flat).

    Raises ConfigError naming the key where one is missing, malformed, or asks for what no published Gemma 4 does.
    """
    text = ConfigKeys(_text_config(config), "text_config." if "text_config" in config else "")
    unified = "unified" in str(config.get("model_type"))
    _refuse_unsupported(config, text)
    layers = text.integer("num_hidden_layers")
    hidden = text.integer("hidden_size")
    architectures = config.get("architectures")
    return Architecture(
        layers=layers,
        layer_pattern=_layer_pattern(text, layers),
        hidden_size=hidden,
        vocab_size=text.integer("vocab_size"),
        max_positions=text.integer("max_position_embeddings"),
        attention=_attention(text),
        kv_shared_layers=text.integer("num_kv_shared_layers", minimum=0, default=0),
        mlp=MlpFacts(text.integer("intermediate_size"), text.flag("use_double_wide_mlp")),
        ple=_ple(text, hidden, unified),
        moe=_moe(text, unified),
        rms_norm_eps=text.number("rms_norm_eps", default=1e-6),
        activation=_activation(text),
        attention_scale=1.0,
        embedding_scale=to_bfloat16(sqrt(hidden)),
        final_logit_softcap=None
        if text.get("final_logit_softcapping") is None
        else text.number("final_logit_softcapping"),
        # The head belongs to the outermost class, so its config decides; transformers never asks a nested text_config.
        tied_embeddings=ConfigKeys(config, "").flag("tie_word_embeddings", default=True),
        class_name=str(architectures[0]) if architectures else MODEL_TYPES[str(config["model_type"])],
        checkpoint_dtype=_dtype(config, text),
    )


def to_bfloat16(value: float) -> float:
    """The nearest bfloat16, ties to even, by way of float32 as torch goes: 39.25 for sqrt(1536)."""
    (bits,) = struct.unpack(">I", struct.pack(">f", value))
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    result: float = struct.unpack(">f", struct.pack(">I", bits))[0]
    return result


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    known = ", ".join(MODEL_TYPES)
    if config.get("model_type") not in MODEL_TYPES:
        raise ConfigError(f"config.json: model_type={config.get('model_type')}: expected one of {known}")
    text = config.get("text_config", config)
    if not isinstance(text, Mapping):
        raise ConfigError("config.json: text_config is not a mapping; it holds the text decoder's sizes")
    if text.get("model_type", "gemma4_text") not in MODEL_TYPES:
        raise ConfigError(f"config.json: text_config.model_type={text['model_type']}: expected one of {known}")
    return text


def _refuse_unsupported(config: Mapping[str, Any], text: ConfigKeys) -> None:
    quantised = config.get("quantization_config") or text.get("quantization_config")
    if quantised:
        method = quantised.get("quant_method", "unnamed") if isinstance(quantised, Mapping) else quantised
        raise ConfigError(
            f"config.json: quantization_config with quant_method={method}: packed/quantised checkpoint: this planner "
            "shards bf16, fp16 and fp32 only; use the unquantised checkpoint of the same model"
        )
    if text.get("use_bidirectional_attention") == "all":
        raise text.wrong("use_bidirectional_attention", "a decoder needs causal text: null or 'vision'")
    if text.flag("attention_bias"):
        raise text.wrong("attention_bias", "Gemma-4 projections have no bias: expected false")


def _layer_pattern(text: ConfigKeys, layers: int) -> tuple[LayerType, ...]:
    """The shortest pattern that repeats to ``layer_types``; transformers' five to one where there are none."""
    types = text.get("layer_types")
    if types is None:
        types = [_DEFAULT_PATTERN[i % 6] for i in range(layers)]
    if not isinstance(types, (list, tuple)) or any(kind not in LAYER_TYPES for kind in types):
        raise text.wrong("layer_types", f"expected a list of {' and '.join(LAYER_TYPES)}")
    if len(types) != layers:
        raise ConfigError(
            f"config.json: {text.prefix}num_hidden_layers={layers}, but its layer_types lists {len(types)} layers"
        )
    if types[-1] != "full_attention":
        raise ConfigError(
            f"config.json: {text.prefix}layer_types ends with {types[-1]} (layer {layers - 1}); transformers forces "
            "the last layer to full_attention, so the list would not say what runs: end it with full_attention"
        )
    period = next(n for n in range(1, layers + 1) if all(types[i] == types[i % n] for i in range(layers)))
    return tuple(types[:period])


def _attention(text: ConfigKeys) -> AttentionTypes:
    """Sliding layers have num_key_value_heads of head_dim. Full layers have global_head_dim, or head_dim where that is
    null or 0; num_global_key_value_heads is theirs only when attention_k_eq_v, and null means num_key_value_heads."""
    q_heads, kv_heads = text.integer("num_attention_heads"), text.integer("num_key_value_heads")
    head_dim = text.integer("head_dim")
    k_eq_v = text.flag("attention_k_eq_v")
    text.required("global_head_dim")
    full_kv_heads = text.integer("num_global_key_value_heads", default=kv_heads) if k_eq_v else kv_heads
    ropes = text.get("rope_parameters") or _DEFAULT_ROPE
    if not isinstance(ropes, Mapping):
        raise text.wrong("rope_parameters", "expected a mapping of layer types")
    return AttentionTypes(
        sliding_attention=AttentionFacts(
            q_heads=q_heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            window=text.integer("sliding_window"),
            k_eq_v=False,
            rope=_rope(text, ropes, "sliding_attention"),
        ),
        full_attention=AttentionFacts(
            q_heads=q_heads,
            kv_heads=full_kv_heads,
            head_dim=text.integer("global_head_dim", minimum=0, default=0) or head_dim,
            window=None,
            k_eq_v=k_eq_v,
            rope=_rope(text, ropes, "full_attention"),
        ),
    )


def _rope(text: ConfigKeys, ropes: Mapping[str, Any], layer_type: LayerType) -> Rope:
    if not isinstance(ropes.get(layer_type), Mapping):
        raise ConfigError(f"config.json: {text.prefix}rope_parameters.{layer_type} is missing")
    rope = ConfigKeys(ropes[layer_type], f"{text.prefix}rope_parameters.{layer_type}.")
    kind: Any = rope.get("rope_type") or "default"
    if kind != "default" and kind != "proportional":
        raise rope.wrong("rope_type", "expected default or proportional")
    if rope.number("factor", default=1.0) != 1.0:
        raise rope.wrong("factor", "no published Gemma 4 stretches its positions: expected 1.0")
    partial = rope.number("partial_rotary_factor", default=1.0)
    if not 0.0 <= partial <= 1.0:
        raise rope.wrong("partial_rotary_factor", "expected a number from 0 to 1")
    return Rope(rope.number("rope_theta"), kind, partial)


def _ple(text: ConfigKeys, hidden: int, unified: bool) -> PleFacts | None:
    if unified and not text.get("hidden_size_per_layer_input"):
        return None
    text.required("hidden_size_per_layer_input")
    width = text.integer("hidden_size_per_layer_input", minimum=0, default=0)
    if not width:
        return None
    if unified:
        raise text.wrong("hidden_size_per_layer_input", "gemma4_unified has no per-layer embeddings: expected 0")
    return PleFacts(
        width=width,
        vocab_size=text.integer("vocab_size_per_layer_input"),
        embedding_scale=to_bfloat16(sqrt(width)),
        projection_scale=hidden**-0.5,
        combine_scale=2.0**-0.5,
    )


def _moe(text: ConfigKeys, unified: bool) -> MoeFacts | None:
    if not text.flag("enable_moe_block"):
        return None
    if unified:
        raise text.wrong("enable_moe_block", "gemma4_unified has no experts: expected false")
    # Early exports name the width of an expert expert_intermediate_size.
    key = "moe_intermediate_size"
    if text.get(key) is None and text.get("expert_intermediate_size") is not None:
        key = "expert_intermediate_size"
    return MoeFacts(text.integer("num_experts"), text.integer("top_k_experts"), text.integer(key))


def _activation(text: ConfigKeys) -> Literal["gelu_pytorch_tanh"]:
    if text.values.get("hidden_activation", "gelu_pytorch_tanh") != "gelu_pytorch_tanh":
        raise text.wrong("hidden_activation", "expected gelu_pytorch_tanh")
    return "gelu_pytorch_tanh"


def _dtype(config: Mapping[str, Any], text: ConfigKeys) -> Literal["bfloat16", "float16", "float32"]:
    for level, prefix in ((text.values, text.prefix), (config, "")):
        for key in ("dtype", "torch_dtype"):
            value = level.get(key)
            if value is None:
                continue
            for known in ("bfloat16", "float16", "float32"):
                if value in (known, f"torch.{known}"):
                    return known
            raise ConfigKeys(level, prefix).wrong(key, "expected bfloat16, float16 or float32")
    return "bfloat16"

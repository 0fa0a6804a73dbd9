"""A fact that the headers and the configuration disagree on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gemma4cfg.architecture.model import Architecture
from gemma4cfg.findings import Finding

Shapes = Mapping[str, tuple[int, ...]]
"""Stored shapes of the text decoder's tensors by canonical name."""

_MODEL_KEYS = {
    "num_hidden_layers": "layers",
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "mlp.intermediate_size",
    "use_double_wide_mlp": "mlp.double_wide",
    "hidden_size_per_layer_input": "ple.width",
    "vocab_size_per_layer_input": "ple.vocab_size",
    "num_experts": "moe.experts",
    "moe_intermediate_size": "moe.intermediate_size",
    "num_kv_shared_layers": "kv_shared_layers",
    "attention_k_eq_v": "attention.full_attention.k_eq_v",
    "head_dim": "attention.sliding_attention.head_dim",
    "global_head_dim": "attention.full_attention.head_dim",
    "num_attention_heads": "attention.*.q_heads",
    "num_key_value_heads": "attention.*.kv_heads",
    "num_global_key_value_heads": "attention.full_attention.kv_heads",
}
"""config.json's key to the one under ``model.``."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """``correct`` makes an architecture agree with the headers; ``findings`` are what to say if that is believed."""

    correct: Callable[[Architecture], Architecture]
    findings: tuple[Finding, ...]


def contradiction(code: str, layer: int | None, message: str, values: Mapping[str, int | bool]) -> Finding:
    """An error whose fix sets ``values``, by config.json's keys, to what the headers say."""
    shown = {key: str(value).lower() for key, value in values.items()}
    theirs = ", ".join(f"{key}={value}" for key, value in shown.items())
    ours = ", ".join(f"model.{_MODEL_KEYS[key]}={value}" for key, value in shown.items())
    fix = f"set {theirs} in config.json ({ours} in YAML), or use the checkpoint that this configuration is of"
    return Finding("error", code, layer, message, fix)

"""The text decoder's tensors, derived from an architecture: names, shapes, kinds. No list of tensors is kept anywhere."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Literal

from gemma4cfg.architecture.model import Architecture, LayerFacts, layer_facts

PREFIX = "model.language_model."
EMBEDDING = PREFIX + "embed_tokens.weight"
PLE_TABLE = PREFIX + "embed_tokens_per_layer.weight"
PLE_PROJECTION = PREFIX + "per_layer_model_projection.weight"
PLE_PROJECTION_NORM = PREFIX + "per_layer_projection_norm.weight"
FINAL_NORM = PREFIX + "norm.weight"
LM_HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """One tensor under its checkpoint name. ``role`` is the name within its layer (or model), e.g. ``self_attn.q_proj.weight``;
    ``layer`` is null for the model's own. ``optional``: published files carry it and nothing reads it."""

    shape: tuple[int, ...]
    kind: Literal["parameter", "buffer"]
    status: Literal["required", "optional", "tied"]
    role: str
    layer: int | None

    @property
    def elements(self) -> int:
        return prod(self.shape)


@functools.lru_cache(maxsize=64)
def inventory(architecture: Architecture) -> dict[str, TensorFacts]:
    """Checkpoint name to facts, under ``model.language_model.``; the head is ``tied`` where embeddings are tied."""
    tensors = {}
    for role, shape in _model_tensors(architecture):
        tensors[PREFIX + role] = TensorFacts(shape, "parameter", "required", role, None)
    for layer in layer_facts(architecture):
        for role, shape in _layer_tensors(architecture, layer):
            unread = layer.borrows and role in BORROWED
            tensors[layer_tensor(layer.index, role)] = TensorFacts(
                shape,
                kind="buffer" if role == "layer_scalar" else "parameter",
                status="optional" if unread else "required",
                role=role,
                layer=layer.index,
            )
    tensors[LM_HEAD] = TensorFacts(
        (architecture.vocab_size, architecture.hidden_size),
        "parameter",
        "tied" if architecture.tied_embeddings else "required",
        LM_HEAD,
        None,
    )
    return tensors


BORROWED = ("self_attn.k_proj.weight", "self_attn.v_proj.weight", "self_attn.k_norm.weight")
"""What a borrowing layer does not read: published files carry them, fine-tunes drop them."""


def layer_tensor(index: int, role: str) -> str:
    """The checkpoint name of a layer's tensor."""
    return f"{PREFIX}layers.{index}.{role}"


def local_name(name: str) -> str:
    """The parameter's name in the rank-local model, which is the text-only class: ``model.layers.0…``."""
    return name.replace(PREFIX, "model.", 1)


def _model_tensors(architecture: Architecture) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden = architecture.hidden_size
    yield "embed_tokens.weight", (architecture.vocab_size, hidden)
    if ple := architecture.ple:
        packed = architecture.layers * ple.width
        yield "embed_tokens_per_layer.weight", (ple.vocab_size, packed)
        yield "per_layer_model_projection.weight", (packed, hidden)
        yield "per_layer_projection_norm.weight", (ple.width,)
    yield "norm.weight", (hidden,)


def _layer_tensors(architecture: Architecture, layer: LayerFacts) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden = architecture.hidden_size
    attention = layer.attention
    q_rows, kv_rows = attention.q_heads * attention.head_dim, attention.kv_heads * attention.head_dim
    yield "self_attn.q_proj.weight", (q_rows, hidden)
    yield "self_attn.q_norm.weight", (attention.head_dim,)
    yield "self_attn.k_proj.weight", (kv_rows, hidden)
    if not attention.k_eq_v:
        yield "self_attn.v_proj.weight", (kv_rows, hidden)
    yield "self_attn.k_norm.weight", (attention.head_dim,)
    yield "self_attn.o_proj.weight", (hidden, q_rows)
    yield "mlp.gate_proj.weight", (layer.intermediate_size, hidden)
    yield "mlp.up_proj.weight", (layer.intermediate_size, hidden)
    yield "mlp.down_proj.weight", (hidden, layer.intermediate_size)
    norms = ["input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"]
    if moe := architecture.moe:
        norms += ["post_feedforward_layernorm_1", "pre_feedforward_layernorm_2", "post_feedforward_layernorm_2"]
        yield "router.scale", (hidden,)
        yield "router.per_expert_scale", (moe.experts,)
        yield "router.proj.weight", (moe.experts, hidden)
        yield "experts.gate_up_proj", (moe.experts, 2 * moe.intermediate_size, hidden)
        yield "experts.down_proj", (moe.experts, hidden, moe.intermediate_size)
    if ple := architecture.ple:
        norms.append("post_per_layer_input_norm")
        yield "per_layer_input_gate.weight", (ple.width, hidden)
        yield "per_layer_projection.weight", (hidden, ple.width)
    for norm in norms:
        yield f"{norm}.weight", (hidden,)
    yield "layer_scalar", (1,)

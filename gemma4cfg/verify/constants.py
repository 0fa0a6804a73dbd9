"""Constants of a rank's module, and of the host, against the plan's numerics. Some show in no logits: a norm or a softmax
removes the factor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from math import isclose
from typing import Any

import torch
from torch import Tensor

from gemma4cfg.plan.records import LayerRope, Numerics, Plan
from gemma4cfg.runtime.graphs import RankModule
from gemma4cfg.runtime.host.sampling import device_softcap, host_softcap
from gemma4cfg.runtime.host.tables import HostTables

_TOLERANCE = 1e-6
"""Relative: constants are given in float64 and held in float32."""


def wrong_constants(module: RankModule, plan: Plan) -> tuple[str, ...]:
    """A sentence for each constant that is not the plan's."""
    text: Any = module.model
    softcap = ("softcap", module.softcap, device_softcap(plan))
    return _different([softcap, *_model(text, plan), *_layers(text, plan)]) + tuple(_routers(text, plan))


def wrong_host_constants(tables: HostTables, hosted: Plan, plan: Plan) -> tuple[str, ...]:
    """A sentence for each constant of the host, which follows ``hosted`` and has ``tables``, that is not of ``plan``."""
    constants = [("softcap of the host", host_softcap(hosted), host_softcap(plan))]
    expected = _host_scales(plan.numerics)
    for numerics in (tables.numerics, *([tables.projection.numerics] if tables.projection else [])):
        found = _host_scales(numerics)
        constants += [(f"{name} of the host", found[name], expected[name]) for name in expected]
    return _different(constants)


def _host_scales(numerics: Numerics) -> dict[str, float]:
    ple = asdict(numerics.ple) if numerics.ple else {}
    return {"embedding_scale": numerics.embedding_scale, **{f"ple.{name}": scale for name, scale in ple.items()}}


def _different(constants: Iterable[tuple[str, Any, Any]]) -> tuple[str, ...]:
    """Of names with what was found and what is expected."""
    return tuple(
        f"{name} is {found}, the plan says {expected}"
        for name, found, expected in constants
        if not _equal(found, expected)
    )


def _model(text: Any, plan: Plan) -> Iterator[tuple[str, Any, Any]]:
    numerics = plan.numerics
    yield "norm.eps", text.norm.eps, numerics.rms_norm_eps
    if text.embed_tokens is not None:
        yield "embed_tokens.embed_scale", text.embed_tokens.embed_scale.to(_dtype(plan)), numerics.embedding_scale
    if numerics.ple:
        if text.embed_tokens_per_layer is not None:
            scale = text.embed_tokens_per_layer.embed_scale.to(_dtype(plan))
            yield "embed_tokens_per_layer.embed_scale", scale, numerics.ple.embedding_scale
        if text.per_layer_model_projection is not None:
            yield "per_layer_input_scale", text.per_layer_input_scale, numerics.ple.combine_scale
            scale = text.per_layer_model_projection_scale
            yield "per_layer_model_projection_scale", scale, numerics.ple.projection_scale
            yield "per_layer_projection_norm.eps", text.per_layer_projection_norm.eps, numerics.rms_norm_eps
    for kind, layer in {layer.type: layer for layer in plan.layers}.items():
        found = getattr(text.rotary_emb, f"{kind}_inv_freq")
        yield f"rotary_emb.{kind}_inv_freq", found, inverse_frequencies(layer.rope, layer.head_dim)
        yield f"rotary_emb.{kind}_attention_scaling", getattr(text.rotary_emb, f"{kind}_attention_scaling"), 1.0


def _layers(text: Any, plan: Plan) -> Iterator[tuple[str, Any, Any]]:
    for layer, module in zip(plan.layers, text.layers, strict=True):
        prefix, attention = f"layers.{layer.index}.", module.self_attn
        yield prefix + "self_attn.scaling", attention.scaling, plan.numerics.attention_scale
        yield prefix + "self_attn.head_dim", attention.head_dim, layer.head_dim
        groups = layer.attention.local_q_heads // layer.attention.local_kv_heads
        yield prefix + "self_attn.num_key_value_groups", attention.num_key_value_groups, groups
        for name, norm in module.named_modules():
            if hasattr(norm, "eps"):
                yield f"{prefix}{name}.eps", norm.eps, plan.numerics.rms_norm_eps
        if layer.moe:
            yield (
                prefix + "router.scalar_root_size",
                module.router.scalar_root_size,
                module.router.scale.numel() ** -0.5,
            )


def _routers(text: Any, plan: Plan) -> Iterator[str]:
    """Of any input the chosen experts' weights, their own scale aside, sum to one: what follows them is normed, so that
    logits would not tell."""
    for layer, module in zip(plan.layers, text.layers, strict=True):
        if layer.moe is None:
            continue
        router = module.router
        probe = torch.linspace(-1, 1, router.scale.numel(), dtype=router.scale.dtype).unsqueeze(0)
        with torch.inference_mode():
            _, weights, index = router(probe)
        if index.shape[-1] != layer.moe.top_k:
            yield f"layers.{layer.index}.router takes {index.shape[-1]} experts, the plan says {layer.moe.top_k}"
        total = float((weights / router.per_expert_scale[index]).sum())
        if not isclose(total, 1.0, rel_tol=1e-2 if plan.dtype != "float32" else 1e-5):
            yield f"layers.{layer.index}.router's weights sum to {total:.4f}, not to 1"


def inverse_frequencies(rope: LayerRope, head_dim: int) -> Tensor:
    """theta ** (-2 i / denominator) of each turning pair, zero for the others, [inv_freq_length]. The denominator is head_dim
    where the type is ``proportional``, else the width that turns."""
    denominator = head_dim if rope.type == "proportional" else 2 * rope.rotary_pairs
    exponents = torch.arange(rope.inv_freq_length, dtype=torch.float64) * 2 / denominator
    table = rope.theta**-exponents
    table[rope.rotary_pairs :] = 0
    return table


def _equal(found: Any, expected: Any) -> bool:
    if isinstance(found, Tensor) or isinstance(expected, Tensor):
        one, other = (torch.as_tensor(value, dtype=torch.float64) for value in (found, expected))
        return one.shape == other.shape and torch.allclose(one, other, rtol=_TOLERANCE, atol=0)
    if found is None or expected is None:
        return found is expected
    return isclose(found, expected, rel_tol=_TOLERANCE)


def _dtype(plan: Plan) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, plan.dtype)
    return dtype

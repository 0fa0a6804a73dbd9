"""Heads, head sizes and k_eq_v as the headers have them, against the configuration."""

from __future__ import annotations

from dataclasses import replace

from gemma4cfg.architecture.contradiction import Proposal, Shapes, contradiction
from gemma4cfg.architecture.inventory import layer_tensor
from gemma4cfg.architecture.model import (
    LAYER_TYPES,
    Architecture,
    AttentionFacts,
    LayerFacts,
    LayerType,
    layer_facts,
)
from gemma4cfg.architecture.wording import at_layers, counted
from gemma4cfg.findings import Finding


def keys_as_values(architecture: Architecture, shapes: Shapes) -> list[Proposal]:
    """``attention_k_eq_v`` from whether the full layers that own K/V have a v_proj: all or none."""
    full = [layer for layer in layer_facts(architecture) if layer.type == "full_attention" and not layer.borrows]
    full = [layer for layer in full if layer_tensor(layer.index, "self_attn.k_proj.weight") in shapes]
    with_values = [layer for layer in full if layer_tensor(layer.index, "self_attn.v_proj.weight") in shapes]
    now = architecture.attention.full_attention
    if not full or len(with_values) != (len(full) if now.k_eq_v else 0):
        return []
    found = not now.k_eq_v
    message = (
        f"{'missing' if found else 'unexpected'} v_proj at {at_layers(layer.index for layer in full)} "
        f"{'matches' if len(full) == 1 else 'match'} attention_k_eq_v={str(found).lower()}; "
        f"the config says {str(now.k_eq_v).lower()}"
    )
    finding = contradiction("k_eq_v_contradicted", full[0].index, f"{len(full)} {message}", {"attention_k_eq_v": found})
    # Which key counts the KV heads of full layers hangs on k_eq_v, so a false k_eq_v comes with a false count.
    stored = _stored_heads(shapes, full[0])
    facts = replace(now, k_eq_v=found, kv_heads=stored.kv_heads if stored else now.kv_heads)
    return [Proposal(lambda a: _with(a, "full_attention", facts), (finding,))]


def heads(architecture: Architecture, shapes: Shapes) -> list[Proposal]:
    """Query heads, KV heads and head size of each layer type, from its first layer that owns K/V."""
    proposals = []
    for kind in LAYER_TYPES:
        layer = next((layer for layer in layer_facts(architecture) if layer.type == kind and not layer.borrows), None)
        stored = _stored_heads(shapes, layer) if layer else None
        if layer and stored and stored != layer.attention:
            findings = tuple(_head_findings(layer, stored))
            proposals.append(_proposal(kind, stored, findings))
    return proposals


def _proposal(kind: LayerType, stored: AttentionFacts, findings: tuple[Finding, ...]) -> Proposal:
    return Proposal(lambda a: _with(a, kind, stored), findings)


def _with(architecture: Architecture, kind: LayerType, facts: AttentionFacts) -> Architecture:
    if kind == "full_attention":
        return replace(architecture, attention=replace(architecture.attention, full_attention=facts))
    return replace(architecture, attention=replace(architecture.attention, sliding_attention=facts))


def _stored_heads(shapes: Shapes, layer: LayerFacts) -> AttentionFacts | None:
    """The layer's attention with its head counts and head size taken from the headers, where they fit together."""

    def shape(role: str) -> tuple[int, ...]:
        return shapes.get(layer_tensor(layer.index, f"self_attn.{role}.weight"), ())

    norm, q, k, o = shape("q_norm"), shape("q_proj"), shape("k_proj"), shape("o_proj")
    if [len(norm), len(q), len(k), len(o)] != [1, 2, 2, 2] or q[0] != o[1]:
        return None
    head_dim = norm[0]
    if not head_dim or not q[0] or not k[0] or q[0] % head_dim or k[0] % head_dim:
        return None
    return replace(layer.attention, q_heads=q[0] // head_dim, kv_heads=k[0] // head_dim, head_dim=head_dim)


def _head_findings(layer: LayerFacts, stored: AttentionFacts) -> list[Finding]:
    now, full = layer.attention, layer.type == "full_attention"
    where = f"layer {layer.index} ({layer.type})"
    findings = []
    values = {}
    if stored.q_heads != now.q_heads:
        values["num_attention_heads"] = stored.q_heads
    if stored.head_dim != now.head_dim:
        values["global_head_dim" if full else "head_dim"] = stored.head_dim
    if values:
        columns = stored.q_heads * stored.head_dim
        if columns != now.q_heads * now.head_dim:
            conflict = (
                f"o_proj has {columns} input columns, the config gives {counted(now.q_heads, 'head')} × {now.head_dim} "
                f"= {now.q_heads * now.head_dim}"
            )
        else:
            conflict = f"q_norm has {stored.head_dim} entries, the config gives head_dim {now.head_dim}"
        match = ", ".join(f"{key}={value}" for key, value in values.items())
        findings.append(
            contradiction("heads_contradicted", layer.index, f"{where}: {conflict}; {match} would match", values)
        )
    if stored.kv_heads != now.kv_heads:
        key = "num_global_key_value_heads" if full and now.k_eq_v else "num_key_value_heads"
        message = (
            f"{where}: k_proj has {stored.kv_heads * stored.head_dim} rows, the config gives "
            f"{counted(now.kv_heads, 'KV head')} × {stored.head_dim} = {now.kv_heads * stored.head_dim}; "
            f"{key}={stored.kv_heads} would match"
        )
        findings.append(contradiction("kv_heads_contradicted", layer.index, message, {key: stored.kv_heads}))
    return findings

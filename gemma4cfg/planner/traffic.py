"""What one call of a graph moves and computes on one rank: counts, no speeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from gemma4cfg.architecture.inventory import EMBEDDING, LM_HEAD
from gemma4cfg.architecture.model import Architecture
from gemma4cfg.plan.bytes import ITEM_BYTES
from gemma4cfg.planner.division import Division
from gemma4cfg.planner.kinds import LayerKind


@dataclass(frozen=True, slots=True)
class Edges:
    """Where a measured program differs from the plan's graphs. Published ports return the logits of every row of the bucket,
    some pass their KV in and out, some cross in float32 (``dtype``; null: the plan's). A stack that serves by itself was
    given prompts of ``prompt`` tokens and decoded behind ``held`` (null: a whole chunk, and a full KV)."""

    logit_rows: Literal["last", "all"] = "last"
    kv: Literal["device", "host"] = "device"
    dtype: Literal["bfloat16", "float16", "float32"] | None = None
    prompt: int | None = field(default=None, metadata={"minimum": 1})
    held: int | None = field(default=None, metadata={"minimum": 1})


PLANNED = Edges()
"""The plan's own graphs."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """``weights`` and ``kv``: bytes read from memory. ``collectives`` counts calls, ``ring_bytes`` what a rank sends and
    receives in them; ``host_bytes`` crosses between host and device."""

    weights: int
    kv: int
    operations: int
    collectives: int
    ring_bytes: int
    host_bytes: int


def decode_traffic(
    architecture: Architecture, division: Division, kinds: Sequence[LayerKind], tp: int, edges: Edges = PLANNED
) -> Traffic:
    """One step of every stream, KV at full length. Every layer reads its keys, a borrower its owner's."""
    return _traffic(architecture, division, kinds, tp, 1, edges.held or division.shapes.kv_length, edges)


def prefill_traffic(
    architecture: Architecture,
    division: Division,
    kinds: Sequence[LayerKind],
    tp: int,
    length: int,
    held: int,
    edges: Edges = PLANNED,
) -> Traffic:
    """One prompt of ``length`` tokens in every stream, each scored against the keys of a KV of ``held``."""
    return _traffic(architecture, division, kinds, tp, length, held, edges)


def _traffic(
    architecture: Architecture,
    division: Division,
    kinds: Sequence[LayerKind],
    tp: int,
    length: int,
    held: int,
    edges: Edges,
) -> Traffic:
    shapes, item = division.shapes, ITEM_BYTES[division.dtype]
    rows = shapes.batch * length
    head_rows = rows if edges.logit_rows == "all" else shapes.batch
    head = division.placed[LM_HEAD].local_elements or division.placed[EMBEDDING].local_elements
    body = division.weights_read // item - head
    operations, kv, reduces = 2 * body * rows + 2 * head * head_rows, 0, 0
    for kind in kinds:
        layer, keys = kind.layer, kind.kv_rows(held)
        kv += kind.count * keys * kind.kv_row_bytes(shapes)
        operations += kind.count * 4 * rows * keys * layer.attention.local_q_heads * layer.head_dim
        parts = (layer.attention, layer.mlp, layer.moe, layer.ple)
        reduces += kind.count * sum(part is not None and part.reduce for part in parts)
    gathers = int(division.split_lm_head and tp > 1)
    ring = 2 * (tp - 1) * reduces * rows * architecture.hidden_size * item // tp
    ring += (tp - 1) * gathers * head_rows * architecture.vocab_size * item // tp
    return Traffic(
        weights=division.weights_read,
        kv=kv,
        operations=operations,
        collectives=reduces + gathers,
        ring_bytes=ring,
        host_bytes=_host_bytes(architecture, division, rows, head_rows, edges),
    )


def _host_bytes(architecture: Architecture, division: Division, rows: int, head_rows: int, edges: Edges) -> int:
    offload, item = division.offload, ITEM_BYTES[edges.dtype or division.dtype]
    total = 0
    if offload.token_embedding == "host":
        total += rows * architecture.hidden_size * item
    if architecture.ple and offload.per_layer_embedding == "host":
        total += rows * architecture.layers * architecture.ple.width * item
    if offload.sampling == "host":
        total += head_rows * architecture.vocab_size * item
    if edges.kv == "host":
        total += 2 * division.kv  # in and out
    return total

"""KV that a prompt left on the host, put into a rank's state: the prompt ran in the reference, decode runs on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gemma4cfg.plan.records import Plan


def seed(plan: Plan, states: Sequence[Tensor], cache: Any, rank: int) -> None:
    """Write ``cache``, a transformers DynamicCache made without a config, into ``states`` of ``rank``, in the ports' order.

    Slot N is the cache's layer N, cut to the rank's KV heads and zero past the prompt; a ring takes the last rows, each at
    its position modulo the ring's length. Heads that pad a rank stay zero.
    """
    for layer in plan.layers:
        if layer.kv.slot is None or layer.kv.layout is None:
            continue
        held = cache.layers[layer.kv.slot]
        heads = list(layer.attention.kv_heads_of_rank[rank])
        for part, source in enumerate((held.keys, held.values)):
            state = states[2 * layer.kv.slot + part]
            state.copy_(_rows(source[:, heads], state, layer.kv.layout == "ring"))


def _rows(source: Tensor, state: Tensor, ring: bool) -> Tensor:
    """``source`` [batch, heads, tokens, head_dim] as a state of the shape of ``state``."""
    seeded = torch.zeros(state.shape, dtype=state.dtype)
    tokens, length = source.shape[2], state.shape[2]
    kept = torch.arange(max(0, tokens - length) if ring else 0, tokens)
    seeded[:, : source.shape[1], kept % length] = source[:, :, kept].to(state.dtype)
    return seeded

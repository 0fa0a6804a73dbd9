"""What the reference's attention calls its cache: one method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gemma4cfg.plan.records import Layer
from gemma4cfg.runtime.kv import KvState
from gemma4cfg.runtime.steps import Step


class SlotCache:
    """Puts a call's keys and values into the slots that the plan gives their layers, and returns what queries see.

    Only owning layers call ``update``; borrowers are handed what their owner's call returned.
    """

    def __init__(self, layers: Sequence[Layer], steps: Mapping[str, Step], state: KvState) -> None:
        self._layers, self._steps, self._state = layers, steps, state

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *args: Any,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:
        """``key_states`` and ``value_states`` [batch, local_kv_heads, rows, head_dim] to the same with ``keys`` rows. What
        else transformers passes differs between its releases and is not needed."""
        layer = self._layers[layer_idx]
        if layer.kv.slot is None:
            raise LookupError(f"layer {layer_idx} borrows its K/V and wrote some")
        step = self._steps[layer.type]
        old = self._state.read(layer.kv.slot)
        rows = (key_states, value_states)
        key, value = (step.write(before, new) for before, new in zip(old, rows, strict=True))
        self._state.write(layer.kv.slot, key, value)
        if step.sees == "chunk":
            return rows
        if step.sees == "buffer":
            return key.to(key_states.dtype), value.to(value_states.dtype)
        seen_key, seen_value = (
            torch.cat((before.to(new.dtype), new), dim=2) for before, new in zip(old, rows, strict=True)
        )
        return seen_key, seen_value

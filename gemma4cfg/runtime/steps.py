"""What one call of a graph writes and sees, per layer type: which slots take which rows, and the attention mask.

A *slot* is one of the ``length`` rows of a KV buffer, a *row* one of the graph's tokens. With ``end`` the position after
the last valid row, slot j holds position ``end - 1 - (end - 1 - j) mod length``, negative where nothing is yet. One rule
serves both layouts: a linear buffer is a ring that never comes round. Pad rows lie at ``end`` or after, so no slot takes
them. Everything is made from two small integer tensors, in the graph, once for every layer of a type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Sees = Literal["buffer", "chunk", "buffer_and_chunk"]
"""What queries attend to: the buffer after the call's own rows are in it; the call's rows alone (a prompt from its start);
or the buffer as it was and then the rows (a ring, whose early rows' keys the late rows would overwrite)."""


@dataclass(frozen=True)
class Step:
    """``mask`` [batch, 1, rows, keys], added to the scores. ``written`` [batch, 1, length, 1]: slots that take a row.
    ``source`` [batch, 1, length, rows]: one-hot, the row that each takes; null for a single row."""

    sees: Sees
    mask: Tensor
    written: Tensor
    source: Tensor | None

    def write(self, old: Tensor, rows: Tensor) -> Tensor:
        """``old`` [batch, heads, length, head_dim] with ``rows`` [batch, heads, rows, head_dim] in their slots."""
        rows = rows.to(old.dtype)
        taken = rows if self.source is None else self.source.to(old.dtype) @ rows
        return torch.where(self.written, taken, old)


def sees(layout: Literal["linear", "ring"], rows: int, chunked: bool) -> Sees:
    """The cheapest that is exact. A single row of a ring overwrites only what has left its window."""
    if rows > 1 and not chunked:
        return "chunk"
    return "buffer" if rows == 1 or layout == "linear" else "buffer_and_chunk"


def step(
    position_ids: Tensor, valid_length: Tensor, length: int, window: int | None, seen: Sees, dtype: torch.dtype
) -> Step:
    """``position_ids`` [batch, rows] are consecutive, pads included; ``valid_length`` [batch]; ``length`` in slots;
    ``window`` in keys, the query's own included."""
    rows = position_ids.shape[1]
    query = position_ids.unsqueeze(2)
    start, slots = position_ids[:, :1], torch.arange(length, device=position_ids.device)
    end = start + valid_length.unsqueeze(1)
    after = _held(end, slots)
    row = after - start
    source = None
    if rows > 1:
        source = (row.unsqueeze(2) == torch.arange(rows, device=row.device)).unsqueeze(1)
    chunk = position_ids.unsqueeze(1)
    visible = {
        "buffer": lambda: _visible(query, after.unsqueeze(1), window),
        "chunk": lambda: _visible(query, chunk, window),
        "buffer_and_chunk": lambda: torch.cat(
            (_visible(query, _held(start, slots).unsqueeze(1), window), _visible(query, chunk, window)), dim=2
        ),
    }[seen]()
    zero = torch.zeros((), dtype=dtype, device=position_ids.device)
    mask = torch.where(visible, zero, torch.finfo(dtype).min).unsqueeze(1)
    written = (row >= 0).unsqueeze(1).unsqueeze(3)
    return Step(seen, mask, written, source)


def _held(end: Tensor, slots: Tensor) -> Tensor:
    """The position in each slot when ``end`` [batch, 1] is the next to come, [batch, length]."""
    last = end - 1
    return last - torch.remainder(last - slots, slots.shape[0])


def _visible(query: Tensor, key: Tensor, window: int | None) -> Tensor:
    """[batch, rows, keys]. A pad row may see nothing of a buffer; its mask is finite, so its output is too."""
    seen = (key >= 0) & (key <= query)
    return seen if window is None else seen & (key > query - window)

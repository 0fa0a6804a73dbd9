"""Which layer writes which cache slot, which layer reads it, and how long it is."""

from __future__ import annotations

from collections.abc import Sequence

from gemma4cfg.architecture.model import Architecture, LayerFacts, layer_facts
from gemma4cfg.plan.bytes import ITEM_BYTES
from gemma4cfg.plan.records import LayerKv, Shapes
from gemma4cfg.planner.heads import HeadLayout


def layout_of(layer: LayerFacts, shapes: Shapes) -> str:
    """``ring`` for sliding layers where asked, else ``linear``."""
    return shapes.kv_layout if layer.attention.window is not None else "linear"


def kv_length_of(layer: LayerFacts, shapes: Shapes) -> int:
    """Rows of a layer's slot: a ring of the window, or every position."""
    if layout_of(layer, shapes) == "ring":
        assert layer.attention.window is not None
        return min(layer.attention.window, shapes.kv_length)
    return shapes.kv_length


def plan_kv(architecture: Architecture, layouts: Sequence[HeadLayout], shapes: Shapes) -> tuple[LayerKv, ...]:
    """Slots numbered from 0 by owning layer; a borrower has none."""
    planned = []
    slot = 0
    for layer in layer_facts(architecture):
        if layer.borrows:
            planned.append(LayerKv(layer.owner, writes=False, slot=None, shape=None, layout=None))
            continue
        shape = (
            shapes.batch,
            layouts[layer.index].local_kv_heads,
            kv_length_of(layer, shapes),
            layer.attention.head_dim,
        )
        planned.append(LayerKv(layer.index, writes=True, slot=slot, shape=shape, layout=layout_of(layer, shapes)))  # type: ignore[arg-type]
        slot += 1
    return tuple(planned)


def kv_bytes(planned: Sequence[LayerKv], shapes: Shapes) -> int:
    """Bytes of all slots on one rank, K and V."""
    item = ITEM_BYTES[shapes.kv_dtype]
    total = 0
    for kv in planned:
        if kv.shape is not None:
            batch, heads, length, head_dim = kv.shape
            total += 2 * batch * heads * length * head_dim * item
    return total


def kv_bytes_per_token(planned: Sequence[LayerKv], shapes: Shapes) -> int:
    """Bytes that one token occupies on one rank while no ring has wrapped."""
    item = ITEM_BYTES[shapes.kv_dtype]
    return sum(2 * kv.shape[1] * kv.shape[3] * item for kv in planned if kv.shape is not None)

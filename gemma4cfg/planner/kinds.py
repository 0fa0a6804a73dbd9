"""A plan's layers by kind: what is counted of a layer is counted once for all that are like it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gemma4cfg.plan.bytes import ITEM_BYTES
from gemma4cfg.plan.records import Layer, LayerKv, Shapes


@dataclass(frozen=True, slots=True)
class LayerKind:
    """``count`` layers with the sizes of ``layer``, of which ``owners`` write KV. ``slot`` is the KV of each of them, its
    own or the one it borrows."""

    layer: Layer
    slot: LayerKv
    count: int
    owners: int

    def kv_rows(self, kv_length: int) -> int:
        """Rows of a slot where a stream holds ``kv_length`` tokens: all of them, or a ring of the window."""
        window = self.layer.window
        return min(window, kv_length) if self.slot.layout == "ring" and window is not None else kv_length

    def kv_row_bytes(self, shapes: Shapes) -> int:
        """K and V of one token of every stream in one slot, on one rank."""
        assert self.slot.shape is not None
        batch, heads, _, head_dim = self.slot.shape
        return 2 * batch * heads * head_dim * ITEM_BYTES[shapes.kv_dtype]


def layer_kinds(layers: Sequence[Layer]) -> tuple[LayerKind, ...]:
    """Kinds in the order in which they first occur."""
    counts: dict[tuple[object, ...], list[Layer]] = {}
    for layer in layers:
        slot = layers[layer.kv.owner].kv
        key = (layer.type, id(layer.attention), layer.mlp.local_intermediate, slot.shape, slot.layout)
        counts.setdefault(key, []).append(layer)
    return tuple(
        LayerKind(members[0], layers[members[0].kv.owner].kv, len(members), sum(layer.kv.writes for layer in members))
        for members in counts.values()
    )

"""How the query and KV heads of a layer can lie on the ranks. A cut is always whole heads.

One rule covers every way: the *slots* of a rank, in order, are query heads (or padding) that read the rank's KV heads
``slot // local_groups``, which is how the reference repeats K/V. So a rank needs only its local counts, no rank number.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

Mode = Literal["split", "group", "replicate", "pad"]
MODES: tuple[Mode, ...] = ("split", "group", "replicate", "pad")

Slots = tuple[tuple["int | None", ...], ...]


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """``q_slots[rank]`` and ``kv_slots[rank]``: the heads of each rank in order, ``None`` for a head of zeros.
    ``replication`` counts the ranks that hold each KV head."""

    mode: Mode
    replication: int
    q_slots: Slots
    kv_slots: Slots

    @property
    def local_q_heads(self) -> int:
        return len(self.q_slots[0])

    @property
    def local_kv_heads(self) -> int:
        return len(self.kv_slots[0])

    @property
    def idle_ranks(self) -> int:
        """Ranks that hold padding only."""
        return sum(all(head is None for head in slots) for slots in self.q_slots)


@functools.lru_cache(maxsize=4096)
def layouts(q_heads: int, kv_heads: int, tp: int) -> tuple[HeadLayout, ...]:
    """Every layout that is possible, by mode in the order of preference.

    ``split`` and ``group`` where the heads divide; where neither does, ``pad``, in several ways; ``replicate`` where TP
    does not divide the KV heads.
    """
    even = [layout for layout in (_split(q_heads, kv_heads, tp), _group(q_heads, kv_heads, tp)) if layout is not None]
    padded = [] if even else _pads(q_heads, kv_heads, tp)
    whole = [] if kv_heads % tp == 0 else [_replicate(q_heads, kv_heads, tp)]
    return (*even, *whole, *padded)


def heads_of_rank(slots: Slots) -> tuple[tuple[int, ...], ...]:
    """Slots without their padding."""
    return tuple(tuple(head for head in rank if head is not None) for rank in slots)


def _split(q_heads: int, kv_heads: int, tp: int) -> HeadLayout | None:
    if kv_heads % tp:
        return None
    return HeadLayout("split", 1, _runs(q_heads, tp), _runs(kv_heads, tp))


def _group(q_heads: int, kv_heads: int, tp: int) -> HeadLayout | None:
    if tp % kv_heads or q_heads % tp or tp == kv_heads:
        return None
    copies = tp // kv_heads
    return HeadLayout("group", copies, _runs(q_heads, tp), tuple((rank // copies,) for rank in range(tp)))


def _replicate(q_heads: int, kv_heads: int, tp: int) -> HeadLayout:
    return HeadLayout("replicate", tp, (tuple(range(q_heads)),) * tp, (tuple(range(kv_heads)),) * tp)


def _pads(q_heads: int, kv_heads: int, tp: int) -> list[HeadLayout]:
    """Blocks of ``local_kv`` KV heads, each block on as many ranks as there are for it; the queries of every KV head are
    dealt over its block's ranks. One layout for each size of block, zeros where the last block or rank runs short."""
    groups = q_heads // kv_heads
    padded = []
    for local_kv in range(-(-kv_heads // tp), kv_heads + 1):
        local_groups = -(-groups // (tp // -(-kv_heads // local_kv)))
        copies = -(-groups // local_groups)
        q_slots: list[tuple[int | None, ...]] = []
        kv_slots: list[tuple[int | None, ...]] = []
        for rank in range(tp):
            block, part = divmod(rank, copies)
            heads = range(block * local_kv, (block + 1) * local_kv)
            kv_slots.append(tuple(head if head < kv_heads else None for head in heads))
            q_slots.append(
                tuple(
                    head * groups + group if head < kv_heads and group < groups else None
                    for head in heads
                    for group in range(part * local_groups, (part + 1) * local_groups)
                )
            )
        padded.append(HeadLayout("pad", copies, tuple(q_slots), tuple(kv_slots)))
    return padded


def _runs(heads: int, tp: int) -> Slots:
    size = heads // tp
    return tuple(tuple(range(rank * size, (rank + 1) * size)) for rank in range(tp))

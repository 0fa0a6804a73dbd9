"""How the query and KV heads of a layer can lie on the ranks. A cut is always whole heads.

One rule covers every way: the *slots* of a rank, in order, are query heads (or padding) that read the rank's KV heads
``slot // local_groups``, which is how the reference repeats K/V. So a rank needs only its local counts, no rank number.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
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
def layouts(q_heads: int, kv_heads: int, tp: int) -> dict[Mode, HeadLayout]:
    """Every mode that is possible, in order of preference.

    ``split`` and ``group`` where the heads divide; where neither does, ``pad``; ``replicate`` where TP does not divide
    the KV heads.
    """
    makers: dict[Mode, Callable[[int, int, int], HeadLayout | None]] = {
        "split": _split,
        "group": _group,
        "replicate": _replicate,
        "pad": _pad,
    }
    made = {mode: maker(q_heads, kv_heads, tp) for mode, maker in makers.items()}
    return {mode: layout for mode, layout in made.items() if layout is not None}


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


def _replicate(q_heads: int, kv_heads: int, tp: int) -> HeadLayout | None:
    if kv_heads % tp == 0:
        return None
    return HeadLayout("replicate", tp, (tuple(range(q_heads)),) * tp, (tuple(range(kv_heads)),) * tp)


def _pad(q_heads: int, kv_heads: int, tp: int) -> HeadLayout | None:
    """Zero heads at the end of each KV head's queries, and whole ranks of zeros where KV heads run out."""
    if kv_heads % tp == 0 or (tp % kv_heads == 0 and q_heads % tp == 0):
        return None
    groups = q_heads // kv_heads
    local_kv = -(-kv_heads // tp)  # 1 where there are at least as many ranks as KV heads
    local_groups = groups if local_kv > 1 else -(-groups // (tp // kv_heads or 1))
    copies = -(-groups // local_groups)  # ranks that share one KV head
    q_slots: list[tuple[int | None, ...]] = []
    kv_slots: list[tuple[int | None, ...]] = []
    for rank in range(tp):
        block, part = divmod(rank, copies)
        kv_row = range(block * local_kv, (block + 1) * local_kv)
        kv_slots.append(tuple(head if head < kv_heads else None for head in kv_row))
        q_slots.append(
            tuple(
                head * groups + group if head < kv_heads and group < groups else None
                for head in kv_row
                for group in range(part * local_groups, (part + 1) * local_groups)
            )
        )
    return HeadLayout("pad", copies, tuple(q_slots), tuple(kv_slots))


def _runs(heads: int, tp: int) -> Slots:
    size = heads // tp
    return tuple(tuple(range(rank * size, (rank + 1) * size)) for rank in range(tp))

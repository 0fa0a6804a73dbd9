"""How small a size may become and still be cut, padded and rotated as the real one is."""

from __future__ import annotations

from gemma4cfg.architecture.model import AttentionFacts, MoeFacts


def same_cut(real: int, tp: int, floor: int, multiples: tuple[int, ...] = (1,)) -> int:
    """The smallest size from ``floor`` whose cut into ``tp`` runs fills, pads and leaves empty the same ranks as the cut of
    ``real``; for each of ``multiples`` of both. Never more than ``real``."""
    wanted = [_cut(real * multiple, tp) for multiple in multiples]
    sizes = range(min(floor, real), real)
    return next((n for n in sizes if [_cut(n * multiple, tp) for multiple in multiples] == wanted), real)


def _cut(size: int, tp: int) -> tuple[int, bool]:
    """Ranks that are full, and whether the next one is in part."""
    run = -(-size // tp)
    return size // run, size % run > 0


def small_head_dim(attention: AttentionFacts, floor: int) -> int:
    """The smallest head size from ``floor`` at which rotary embedding still shows its frequencies (one pair of channels has
    only the frequency 1, whatever theta) and has channels that do not turn where the real one has."""
    rope, real = attention.rope, attention.head_dim

    def shows(head_dim: int) -> tuple[int, bool]:
        pairs = rope.rotary_pairs(head_dim)
        return min(pairs, 2), 2 * pairs < head_dim

    return next((n for n in range(min(floor, real), real, 2) if shows(n) == shows(real)), real)


def small_expert_count(moe: MoeFacts, tp: int, whole: bool, floor: int) -> int:
    """At least twice as many as are taken, that a choice is one. ``whole``: TP divides them, into more than one a rank where
    the real ones are."""
    count = max(floor, 2 * moe.top_k)
    if whole:
        count = max(-(-count // tp), min(2, moe.experts // tp)) * tp
    return min(count, moe.experts)

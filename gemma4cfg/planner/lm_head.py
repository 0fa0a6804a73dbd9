"""The head over the vocabulary."""

from __future__ import annotations

from gemma4cfg.architecture.model import Architecture
from gemma4cfg.plan.bytes import ITEM_BYTES
from gemma4cfg.plan.reasons import Reason
from gemma4cfg.plan.records import Decision, TurnedDown
from gemma4cfg.planner.feedforward import local_size


def plan_lm_head(architecture: Architecture, asked: str, tp: int, dtype: str) -> tuple[bool, Decision]:
    """Whether the head is split; padding rows of a split are cut off after the all-gather, so their logits are never seen."""
    split = asked != "replicate"
    vocab, hidden, item = architecture.vocab_size, architecture.hidden_size, ITEM_BYTES[dtype]
    rows = local_size(vocab, tp)
    padding = rows * tp - vocab
    detail = (
        f"{vocab:,} x {hidden}: split {rows * hidden * item:,} bytes a rank and {int(tp > 1)} all-gather"
        + (f" ({padding} rows of padding, {rows} a rank)" if padding else "")
        + f"; replicate {vocab * hidden * item:,} bytes"
        + ("; tied: a copy of its own, unless whole beside a whole embedding" if architecture.tied_embeddings else "")
    )
    replicate = TurnedDown("replicate", Reason.MORE_BYTES if tp > 1 else Reason.NOT_NEEDED, "")
    turned_down = replicate if split else TurnedDown("split", Reason.NOT_REQUESTED, "")
    reason = Reason.REQUESTED if asked != "auto" else Reason.FEWEST_BYTES if tp > 1 else Reason.ONLY_OPTION
    return split, Decision("lm_head.partition", "split" if split else "replicate", (turned_down,), reason, detail)

"""Rows of the vocabulary's width: what does not fit a core's on-chip memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from torch import Tensor

from gemma4cfg.architecture.inventory import EMBEDDING
from gemma4cfg.compile.graph_check.subject import Subject, operator, results
from gemma4cfg.findings import Finding

_HEADS = ("p_lm_head_weight", "p_model_embed_tokens_weight")
"""What an exported program calls the head's weight, its own or the embedding's."""


def logits_of_all_rows(subject: Subject) -> Iterator[Finding]:
    """Logits of every row of a bucket: none but each stream's last is ever read."""
    for node in subject.nodes:
        if operator(node) != "aten.linear" or getattr(node.args[1], "name", None) not in _HEADS:
            continue
        rows = prod(results(node)[0].shape[:-1])
        if rows > subject.plan.shapes.batch:
            yield subject.finding(
                "error",
                "logits_of_all_rows",
                node,
                f"{rows} rows of logits, {subject.plan.shapes.batch} are read; with a cap in the graph they overflow "
                "(NCC_INLA001)",
                "take each stream's last row before the head",
            )


def softcap_on_device(subject: Subject) -> Iterator[Finding]:
    """tanh over the vocabulary becomes a custom call whose rows have to lie in one partition each."""
    sbuf = subject.target.chip.sbuf
    for node in subject.nodes:
        rows = _rows(subject, results(node))
        if operator(node) != "aten.tanh" or not rows or sbuf is None:
            continue
        width = results(node)[0].shape[-1] * 4
        if width > sbuf.bytes_per_partition:
            yield subject.finding(
                "error" if rows > subject.plan.shapes.batch else "warning",
                "softcap_over_vocabulary",
                node,
                f"a float32 row of {width:,} bytes, {sbuf.bytes_per_partition:,} a partition (NCC_INLA001)",
                "offload.softcap=host: the cap keeps the order of logits, so greedy tokens do not change",
            )
            return


def _rows(subject: Subject, tensors: Sequence[Tensor]) -> int:
    """Rows of tensors as wide as the vocabulary, split over ranks or not."""
    whole: int = subject.plan.tensors[EMBEDDING]["shape"][0]
    head = subject.weights.get("lm_head.weight")
    widths = {whole} if head is None else {whole, head.shape[0]}
    return max(
        (prod(tensor.shape[:-1]) for tensor in tensors if tensor.dim() > 1 and tensor.shape[-1] in widths), default=0
    )

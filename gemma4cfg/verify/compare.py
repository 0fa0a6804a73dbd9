"""Ours against the reference's: logits first, since a fault that is monotonic in them changes no token."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gemma4cfg.verify.records import StreamResult

NOISE_FACTOR = 10.0
"""How many times the reference's own noise (its cached against its uncached run) an error may be. Measured: one to four
times, since ranks add in another order."""

RELATIVE_LIMIT = {"float32": 1e-4}
"""The most an error may be of the largest logit, whatever the noise. Faults of a whole model start at 2e-3."""

MARGIN_FACTOR = 10.0
"""A token is decided where the reference's best logit leads its second by more than this many times its noise."""


def rounding(dtype: str) -> float:
    """Relative: what two runs in ``dtype`` may differ by though the reference, run twice, repeats itself to the bit."""
    return float(torch.finfo(getattr(torch, dtype)).eps)


def stream_result(ours: Tensor, reference: Tensor, prompt_tokens: int, noise: float, dtype: str) -> StreamResult:
    """``ours`` and ``reference`` [1 + steps, vocabulary], the prompt's last row first; ``noise`` in logits."""
    error = (ours.double() - reference.double()).abs().amax(dim=1)
    largest = float(reference.abs().max())
    noise = max(noise, rounding(dtype) * largest)
    best = reference.topk(2, dim=1).values
    margins = best[:, 0] - best[:, 1]
    decided = margins > MARGIN_FACTOR * noise
    differs = (ours.argmax(dim=1) != reference.argmax(dim=1)) & decided
    return StreamResult(
        prompt_tokens=prompt_tokens,
        steps=len(ours) - 1,
        max_absolute=float(error.max()),
        prefill_relative=float(error[0]) / largest,
        decode_relative=float(error[1:].max()) / largest if len(error) > 1 else 0.0,
        first_differing_token=int(differs.nonzero()[0]) if differs.any() else None,
        undecided_tokens=int((~decided).sum()),
        smallest_margin=float(margins.min()),
    )


def layer_errors(ours: Sequence[Tensor], reference: Sequence[Tensor]) -> tuple[float, ...]:
    """Per layer, over all runs: the largest error relative to the largest value. Both [layers, positions, hidden]; the
    reference may have more positions."""
    errors = []
    for found, whole in zip(ours, reference, strict=True):
        expected = whole[:, : found.shape[1]].double()
        error = (found.double() - expected).abs().flatten(1).amax(dim=1)
        errors.append(error / expected.abs().flatten(1).amax(dim=1))
    return tuple(torch.stack(errors).amax(dim=0).tolist())


def growth_starts(errors: Sequence[float], limit: float) -> int | None:
    """The first layer over ``limit``: at layer 0 of its kind, a fault of the shards; far into the model, of the numerics."""
    return next((index for index, error in enumerate(errors) if not error <= limit), None)

"""Ours against the reference's: logits first, since a fault that is monotonic in them changes no token."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gemma4cfg.verify.records import StreamResult
from gemma4cfg.verify.reference_process import PromptRun

NOISE_FACTOR = 10.0
"""How many times the reference's own noise (its cached against its uncached run) an error may be in float32. Measured: one
to four times, since ranks add in another order."""

ROUNDING_FACTOR = 4.0
"""And in a narrower type, where noise is what rounding makes of the reference. Measured: 0.6 to 1.9 times."""

RELATIVE_LIMIT = 1e-4
"""The most an error in float32 may be of the largest logit, whatever the noise. Faults of a whole model start at 2e-3."""

MARGIN_FACTOR = 10.0
"""A token is decided where the reference's best logit leads its second by more than this many times its noise."""


def rounding(dtype: str) -> float:
    """Relative: what two runs in ``dtype`` may differ by though the reference, run twice, repeats itself to the bit."""
    return float(torch.finfo(getattr(torch, dtype)).eps)


def stream_result(ours: Tensor, run: PromptRun, noise: float, dtype: str) -> StreamResult:
    """``ours`` [1 + steps, vocabulary], the prompt's last row first; ``noise`` in logits. From where rounding could change
    the reference's choice of experts on, nothing is compared."""
    reference = torch.from_numpy(run.logits)
    rows = max(run.routed_positions - len(run.prompt) + 1, 0)
    largest = float(reference.abs().max())
    noise = max(noise, rounding(dtype) * largest)
    left_out = len(ours) - rows
    ours, reference = ours[:rows], reference[:rows]
    error = (ours.double() - reference.double()).abs().amax(dim=1)
    best = reference.topk(2, dim=1).values
    margins = best[:, 0] - best[:, 1]
    decided = margins > MARGIN_FACTOR * noise
    differs = (ours.argmax(dim=1) != reference.argmax(dim=1)) & decided
    return StreamResult(
        prompt_tokens=len(run.prompt),
        steps=max(len(ours) - 1, 0),
        left_out=left_out,
        max_absolute=_largest(error),
        prefill_relative=_largest(error[:1] / largest),
        decode_relative=_largest(error[1:] / largest),
        first_differing_token=int(differs.nonzero()[0]) if differs.any() else None,
        decided_tokens=int(decided.sum()),
        undecided_tokens=int((~decided).sum()),
        smallest_margin=float(margins.min()) if rows else None,
    )


def _largest(errors: Tensor) -> float | None:
    return float(errors.max()) if len(errors) else None


def layer_errors(ours: Sequence[Tensor], runs: Sequence[PromptRun]) -> tuple[float, ...]:
    """Per layer, over all runs: the largest error relative to the largest value. ``ours`` [layers, prompt tokens, hidden]
    each, of which those are compared whose experts are beyond rounding; empty if there are none."""
    errors = []
    for found, run in zip(ours, runs, strict=True):
        positions = min(found.shape[1], run.routed_positions)
        if positions:
            expected = torch.from_numpy(run.hidden)[:, :positions].double()
            error = (found[:, :positions].double() - expected).abs().flatten(1).amax(dim=1)
            errors.append(error / expected.abs().flatten(1).amax(dim=1))
    return tuple(torch.stack(errors).amax(dim=0).tolist()) if errors else ()


def growth_starts(errors: Sequence[float], limit: float) -> int | None:
    """The first layer over ``limit``: at layer 0 of its kind, a fault of the shards; far into the model, of the numerics."""
    return next((index for index, error in enumerate(errors) if not error <= limit), None)

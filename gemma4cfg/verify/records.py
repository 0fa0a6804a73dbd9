"""What a proof says: its checks, its figures, and whether they hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gemma4cfg.findings import Finding


def finding_of(name: str, detail: str) -> Finding:
    """What ``result.json`` says of a check, a drill or a case that is not as it has to be."""
    return Finding("error", f"verify.{name}", None, f"{name}: {detail}", "")


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that has to hold. ``figure`` and ``limit`` are null where it is not a matter of degree."""

    name: str
    passed: bool
    figure: float | None
    limit: float | None
    detail: str


@dataclass(frozen=True, slots=True)
class StreamResult:
    """One stream against the reference's run of that prompt alone. Errors are of logits, over every step; ``relative`` is
    to the reference's largest logit. ``left_out``: further steps that are not compared, since the reference's own choice of
    experts is too near a tie; a figure is null where nothing is left. ``first_differing_token``: the step, null where all
    are equal."""

    prompt_tokens: int
    steps: int
    left_out: int
    max_absolute: float | None
    prefill_relative: float | None
    decode_relative: float | None
    first_differing_token: int | None
    decided_tokens: int
    undecided_tokens: int
    smallest_margin: float | None


@dataclass(frozen=True, slots=True)
class Proof:
    """``layers``: each decoder layer's output over the prompts, largest error relative to the largest value.
    ``exercised``: graph calls, slot writes, placement kinds with the tensors that were read. ``seconds`` by part."""

    subject: str
    model: str
    tp: int
    dtype: str
    reference: Mapping[str, Any]
    checks: tuple[Check, ...]
    streams: tuple[StreamResult, ...]
    layers: tuple[float, ...]
    exercised: Mapping[str, Any]
    seconds: Mapping[str, float]

    @property
    def holds(self) -> bool:
        return all(check.passed for check in self.checks)

    @property
    def failed(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if not check.passed)

"""Weights in another type than the plan's."""

from __future__ import annotations

from collections.abc import Iterator

from gemma4cfg.compile.graph_check.subject import Subject
from gemma4cfg.findings import Finding


def dtype_leaks(subject: Subject) -> Iterator[Finding]:
    """Twice the bytes, at a quarter of the rate: a float32 weight in a bfloat16 plan."""
    dtype = subject.plan.dtype
    for name, weight in subject.weights.items():
        found = str(weight.dtype).removeprefix("torch.")
        if weight.is_floating_point() and found != dtype:
            yield subject.finding(
                "error",
                "dtype_leak",
                None,
                f"{name} is {found}, the plan's weights are {dtype}",
                f"make it {dtype}; cast where it is used",
            )

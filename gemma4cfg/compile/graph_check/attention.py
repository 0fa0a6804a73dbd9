"""Fused attention where it is published to overflow."""

from __future__ import annotations

from collections.abc import Iterator

from gemma4cfg.compile.graph_check.subject import Subject, layer_of, operator
from gemma4cfg.findings import Finding


def fused_attention(subject: Subject) -> Iterator[Finding]:
    """Fused attention in a layer whose window is as long as one that a published failure names, on a release that has it."""
    failures = [
        (name, failure)
        for name, failure in subject.sdk.stack.failures.items()
        if failure.effect == "eager_attention" and "window" in failure.when
    ]
    for node in subject.nodes:
        if operator(node) != "aten.scaled_dot_product_attention" or (index := layer_of(node)) is None:
            continue
        for name, failure in failures:
            version = subject.sdk.pins.get(failure.package)
            holds = version is not None and failure.versions.holds(version)
            if holds and (subject.plan.layers[index].window or 0) >= failure.when["window"]:
                yield subject.finding("error", name, node, f"{failure.what} ({failure.source})", failure.fix)
                return

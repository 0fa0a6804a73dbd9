"""Operators, and types of their tensors, that are published to fail: the release's own data."""

from __future__ import annotations

from collections.abc import Iterator

from torch import fx

from gemma4cfg.compile.graph_check.subject import Subject, operands, operator, overload, results
from gemma4cfg.config.sdk import Operator
from gemma4cfg.findings import Finding


def refused_operators(subject: Subject) -> Iterator[Finding]:
    """A finding for the first place of each entry of the release's operators that the graph has."""
    for name, entry in subject.sdk.stack.operators.items():
        if entry.families is not None and subject.target.family not in entry.families:
            continue
        version = subject.sdk.pins.get(entry.package)
        if version is None or not entry.versions.holds(version):
            continue
        found = [node for node in subject.nodes if _is(node, entry)]
        if found:
            times = f" ({len(found)} of them)" if len(found) > 1 else ""
            yield subject.finding(entry.effect, name, found[0], f"{entry.what}{times} ({entry.source})", entry.fix)


def _is(node: fx.Node, entry: Operator) -> bool:
    if entry.operators is not None and operator(node) not in entry.operators and overload(node) not in entry.operators:
        return False
    if entry.dtypes is None:
        return True
    given = operands(node)[:1] if entry.operators is not None else [*operands(node), *results(node)]
    return any(str(tensor.dtype).removeprefix("torch.") in entry.dtypes for tensor in given)


def data_dependent_shapes(subject: Subject) -> Iterator[Finding]:
    """A size that is known only when the graph runs. Whatever operator gave it, the compiler takes none."""
    for node in subject.nodes:
        if any(not isinstance(size, int) for tensor in results(node) for size in tensor.shape):
            yield subject.finding(
                "error",
                "data_dependent_shape",
                node,
                "a tensor's size depends on data, graphs have fixed sizes (EMOD025)",
                "compute over all rows with a mask",
            )
            return

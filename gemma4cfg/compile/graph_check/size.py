"""How large a program becomes: tensors that cross at every call, and instructions."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, prod

from torch import Tensor, fx

from gemma4cfg.compile.graph_check.subject import Subject, operands, operator, results
from gemma4cfg.config.sdk import MatmulTile
from gemma4cfg.findings import Finding

_MATMULS = ("aten.linear", "aten.matmul", "aten.mm", "aten.bmm", "aten.addmm", "aten.einsum")


def too_many_inputs(subject: Subject) -> Iterator[Finding]:
    """Tensors that cross between host and device at each call: the graph's inputs, and KV that is one of them. Weights and
    aliased KV are bound once."""
    crossing = len(subject.exported.program.graph_signature.user_inputs)
    limits = subject.sdk.stack.graph_limits
    if limits is None:
        return
    limit = limits.inputs
    if crossing > limit.count:
        yield subject.finding(
            "warning",
            "too_many_inputs",
            None,
            f"{crossing} tensors cross at every call, more than {limit.count} ({limit.source})",
            "keep the KV on the device, as aliased state",
        )


def instruction_count(subject: Subject) -> Iterator[Finding]:
    """The matrix multiplications' tiles alone, over the cores of a logical core, against the compiler's limit."""
    limits = subject.sdk.stack.graph_limits
    if limits is None:
        return
    estimate = sum(tiles(node, limits.matmul_tile) for node in subject.nodes) // subject.target.cores_per_logical_core
    if estimate > limits.instructions.count:
        yield subject.finding(
            "warning",
            "instruction_count",
            None,
            f"about {estimate:,} instructions for matrix multiplications alone, the limit is "
            f"{limits.instructions.count:,} ({limits.instructions.source})",
            "a smaller largest prefill bucket with shapes.prompt_chunking=true, or a higher tp",
        )


def tiles(node: fx.Node, tile: MatmulTile) -> int:
    """Instructions of one matrix multiplication, [rows, contraction] by [contraction, columns], a batch of them; 0 of
    another operator."""
    if operator(node) not in _MATMULS or len(operands(node)) < 2:
        return 0
    left, output = operands(node)[0], results(node)[0]
    rows, columns = _sides(output)
    contraction = _contraction(node, left)
    batch = max(1, prod(output.shape[:-2])) if output.dim() > 2 and operator(node) != "aten.linear" else 1
    if operator(node) == "aten.linear":
        rows = prod(output.shape[:-1])
    moving, stationary = max(rows, columns), min(rows, columns)
    return (
        batch * ceil(contraction / tile.contraction) * ceil(stationary / tile.stationary) * ceil(moving / tile.moving)
    )


def _sides(output: Tensor) -> tuple[int, int]:
    return (output.shape[-2], output.shape[-1]) if output.dim() > 1 else (1, output.shape[-1] if output.dim() else 1)


def _contraction(node: fx.Node, left: Tensor) -> int:
    """Elements that one output element sums over."""
    output, right = results(node)[0], operands(node)[1]
    if operator(node) != "aten.einsum":
        return int(left.shape[-1])
    # |left| x |right| = |output| x contraction² x what is in all three; exact where nothing is, close enough elsewhere
    return max(1, round((left.numel() * right.numel() / max(1, output.numel())) ** 0.5))

"""How large a program becomes: tensors that cross at every call, and instructions."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, sqrt

from torch import Tensor, fx

from gemma4cfg.compile.graph_check.subject import Subject, operator, results
from gemma4cfg.config.sdk import MatmulTile
from gemma4cfg.findings import Finding

_MATMULS = ("aten.linear", "aten.matmul", "aten.mm", "aten.bmm", "aten.einsum")


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
    """Instructions of one matrix multiplication, or of a batch of them; 0 of another operator."""
    tensors = _factors(node)
    if operator(node) not in _MATMULS or len(tensors) != 2:
        return 0
    batch, rows, contraction, columns = _sizes(node, *tensors)
    moving, stationary = max(rows, columns), min(rows, columns)
    each = ceil(contraction / tile.contraction) * ceil(stationary / tile.stationary) * ceil(moving / tile.moving)
    return batch * each


def _sizes(node: fx.Node, left: Tensor, right: Tensor) -> tuple[int, int, int, int]:
    """Of ``batch`` products [rows, contraction] by [contraction, columns]."""
    output = results(node)[0]
    if operator(node) == "aten.einsum":
        # No index of the plan's is in all three tensors, so |left| x |right| = |output| x contraction squared.
        contraction = round(sqrt(left.numel() * right.numel() / output.numel()))
        return 1, left.numel() // contraction, contraction, right.numel() // contraction
    contraction, columns = int(left.shape[-1]), int(output.shape[-1])
    if operator(node) == "aten.linear" or left.dim() < 2 or right.dim() < 3:
        return 1, output.numel() // columns, contraction, columns
    rows = int(output.shape[-2])
    return output.numel() // (rows * columns), rows, contraction, columns


def _factors(node: fx.Node) -> list[Tensor]:
    """The tensors that are multiplied; one may be both."""
    given = [item for arg in node.args for item in (arg if isinstance(arg, (list, tuple)) else [arg])]
    return [tensor for item in given[:3] if isinstance(item, fx.Node) for tensor in results(item)][:2]

"""Where a graph's KV lives: three ways behind one interface, as three APIs need it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from gemma4cfg.plan.records import Graph, Port


class KvState(Protocol):
    """Slots of keys and values during one call of a graph.

    ``read`` gives a slot as it is now; ``write`` puts a new tensor of the same shape and dtype in its place, never in
    place; ``outputs`` are the tensors that the graph returns after its own output, in the ports' order.
    """

    def read(self, slot: int) -> tuple[Tensor, Tensor]: ...

    def write(self, slot: int, key: Tensor, value: Tensor) -> None: ...

    def outputs(self) -> tuple[Tensor, ...]: ...


class BufferState:
    """Buffers of the module, assigned anew: ModelBuilder's second version finds them by that."""

    def __init__(self, module: nn.Module, ports: Sequence[Port]) -> None:
        self._module = module
        for port in ports:
            module.register_buffer(port.name, empty(port), persistent=False)

    def read(self, slot: int) -> tuple[Tensor, Tensor]:
        return getattr(self._module, f"key_{slot}"), getattr(self._module, f"value_{slot}")

    def write(self, slot: int, key: Tensor, value: Tensor) -> None:
        setattr(self._module, f"key_{slot}", key)
        setattr(self._module, f"value_{slot}", value)

    def outputs(self) -> tuple[Tensor, ...]:
        return ()


class TensorState:
    """Tensors that come in and go out: Parameters that an alias map ties to outputs (ModelBuilder's first version and
    trace), or a graph's own inputs."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = list(tensors)

    def read(self, slot: int) -> tuple[Tensor, Tensor]:
        return self._tensors[2 * slot], self._tensors[2 * slot + 1]

    def write(self, slot: int, key: Tensor, value: Tensor) -> None:
        self._tensors[2 * slot : 2 * slot + 2] = key, value

    def outputs(self) -> tuple[Tensor, ...]:
        return tuple(self._tensors)


def empty(port: Port) -> Tensor:
    """A buffer or an example input of zeros."""
    return torch.zeros(port.shape, dtype=getattr(torch, port.dtype))


def example_inputs(graph: Graph) -> dict[str, Tensor]:
    """Zeros for every port, in the ports' order."""
    return {port.name: empty(port) for port in graph.inputs}

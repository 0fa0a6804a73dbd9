"""The memory behind a module's weights: given, zeros, or none at all while it is traced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode


def assign(module: nn.Module, name: str, tensor: Tensor) -> None:
    """Put ``tensor`` where the module has the parameter ``name``."""
    _put(module, name, nn.Parameter(tensor, requires_grad=False))


def zero_weights(module: nn.Module) -> nn.Module:
    """Give weights on the meta device real memory, zeros: a tracer moves them, a rank file replaces them."""
    for name, parameter in list(module.named_parameters()):
        if parameter.is_meta:
            assign(module, name, torch.zeros(parameter.shape, dtype=parameter.dtype))
    return module


@contextmanager
def without_memory(module: nn.Module) -> Iterator[FakeTensorMode]:
    """Weights on the meta device are tensors of the CPU without contents while it lasts: a model of any size can be
    exported, and nothing can depend on what a weight holds."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    hollow = {name: parameter for name, parameter in module.named_parameters() if parameter.is_meta}
    with mode:
        for name, parameter in hollow.items():
            assign(module, name, torch.empty(parameter.shape, dtype=parameter.dtype))
    try:
        yield mode
    finally:
        for name, parameter in hollow.items():
            _put(module, name, parameter)


def _put(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    path, _, last = name.rpartition(".")
    module.get_submodule(path)._parameters[last] = parameter

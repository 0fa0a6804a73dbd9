"""The collectives that a traced module goes through on a device: the SDK's own mappings, which carry groups and no rank."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch import Tensor


class SdkCollectives:
    """See ``sharding.collectives.Collectives``. Usable only where the SDK's parallel state is up, that is while it traces;
    the SDK is imported at the first call."""

    def __init__(self, size: int) -> None:
        self.size = size

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum over the tensor-parallel group."""
        reduced: Tensor = _mappings().reduce_from_tensor_model_parallel_region(tensor)
        return reduced

    def all_gather(self, tensor: Tensor, dim: int) -> Tensor:
        """The group's tensors joined along ``dim``. The mapping joins the last dimension; another is moved there and back."""
        last = tensor.dim() - 1
        if dim % tensor.dim() == last:
            gathered: Tensor = _mappings().gather_from_tensor_model_parallel_region(tensor)
            return gathered
        return self.all_gather(tensor.movedim(dim, last), last).movedim(last, dim)


def _mappings() -> Any:
    return import_module("neuronx_distributed.parallel_layers.mappings")

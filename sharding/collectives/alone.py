"""A group of one."""

from __future__ import annotations

from torch import Tensor


class Alone:
    """The collectives of a rank that has no others: they return what they are given."""

    size = 1

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The tensor itself."""
        return tensor

    def all_gather(self, tensor: Tensor, dim: int) -> Tensor:  # noqa: ARG002
        """The tensor itself, a scalar as one of shape [1]."""
        return tensor if tensor.dim() else tensor.reshape(1)

"""What a rank-local model may ask of the other ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Collectives(Protocol):
    """One rank's way to the others of its group.

    There is deliberately no ``rank`` here: a module that knows its rank can bake it into a graph, and then one compiled
    graph does not fit all ranks. What differs between ranks is weights.

    Before every call
      - all ranks of the group make the same calls in the same order, with tensors of equal shape and dtype and equal
        ``dim``; shared memory checks this, ``torch.distributed`` does not;
      - the tensor is on the CPU, or where the transport works. It need not be contiguous.

    After every call
      - the tensor given is as it was;
      - every rank has the same result bit for bit, in the dtype of what was given;
      - the result is contiguous and the caller's own: no later call changes it. But in a group of one it is the tensor that
        was given, so nobody writes into a result or takes its strides for granted.

    A call returns only when all ranks have made it, or raises ``CollectiveError``; the group is of no use after that.
    """

    @property
    def size(self) -> int:
        """Ranks of the group."""
        ...

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum over ranks, of the tensor's shape.

        Added one rank after the other in the order of ranks, each partial sum rounded to the tensor's dtype, so that a run
        can be repeated bit for bit. ``torch.distributed`` chooses an order of its own.
        """
        ...

    def all_gather(self, tensor: Tensor, dim: int) -> Tensor:
        """The tensors of all ranks joined along ``dim`` in the order of ranks: ``shape[dim] * size`` there, else as given.

        ``dim`` may count from the end. A scalar counts as a tensor of shape [1].
        """
        ...


class CollectiveError(RuntimeError):
    """A collective that cannot end, because not every rank takes part in it.

    ``ranks``: those that are missing or do something else, lowest first.
    """

    def __init__(self, ranks: Sequence[int], reason: str) -> None:
        self.ranks = tuple(ranks)
        self.reason = reason
        super().__init__(self.ranks, reason)

    def __str__(self) -> str:
        if not self.ranks:
            return self.reason
        return f"rank{'s' if len(self.ranks) > 1 else ''} {', '.join(map(str, self.ranks))} {self.reason}"

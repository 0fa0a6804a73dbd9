"""Collectives over ``torch.distributed``: several machines with gloo, and the graphs that ``torch.export`` makes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch import Tensor, ops


class Distributed:
    """The collectives of a process group, the default one unless another is given.

    Made of the functional operators alone: an exported graph shows ``_c10d_functional.all_reduce`` and
    ``_c10d_functional.all_gather_into_tensor``, each with one ``wait_tensor``, and neither a rank nor a tensor written in
    place. It does carry the group's size and name.

    Gloo adds in an order of its own, which differs between the pieces of a tensor, so a sum may differ from shared memory's
    in the last bits. Each piece is added once and then copied, so all ranks have the same bits nevertheless. It knows
    the usual dtypes, not int16 nor float8 (``RuntimeError: Invalid scalar type``).
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        group = dist.group.WORLD if group is None else group
        if group is None:
            raise ValueError("torch.distributed has no process group yet: init_process_group comes first")
        self.size = group.size()
        self._name = group.group_name

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """See ``Collectives.all_reduce``, but for the order of the sum."""
        return _wait(ops._c10d_functional.all_reduce(tensor.contiguous(), "sum", self._name))

    def all_gather(self, tensor: Tensor, dim: int) -> Tensor:
        """See ``Collectives.all_gather``."""
        shape = list(tensor.shape or (1,))
        dim %= len(shape)
        local = (tensor if tensor.dim() else tensor.reshape(1)).contiguous()
        rows = _wait(ops._c10d_functional.all_gather_into_tensor(local, self.size, self._name))
        joined = rows.view(self.size, *shape).movedim(0, dim)
        shape[dim] *= self.size
        return joined.reshape(shape)


def _wait(started: Tensor) -> Tensor:
    done: Tensor = ops._c10d_functional.wait_tensor(started)
    return done


@contextmanager
def fake_group(size: int, rank: int = 0) -> Iterator[Distributed]:
    """A group of ``size`` in this one process, to export a rank's graph. Nothing is sent, results are meaningless.

    It is the default group while it lasts; ``ValueError`` if there is one already. A module must not come to know
    ``rank``: it is there so that this can be shown.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    hook = sys.excepthook
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield Distributed()
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook  # torch's, which stays, says "[rank1]:" before every line

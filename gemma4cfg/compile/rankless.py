"""Tracing where a rank cannot be read: one program is run by all ranks, and a rank read in Python is a constant in it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class RankReadError(RuntimeError):
    """A module asked Python for its rank while it was traced."""


@contextmanager
def rankless() -> Iterator[None]:
    """While it lasts, every process group refuses to say its rank, and so does torch.distributed.

    The SDK's own tracing does not: its mocked groups answer 0, which is then baked into the program of all ranks.
    """
    import torch.distributed as dist

    held = [(dist, "get_rank"), (dist, "get_node_local_rank"), (dist.ProcessGroup, "rank")]
    # from __dict__: what getattr gives of a class of pybind is no method any more
    places = [(owner, name, vars(owner)[name]) for owner, name in held if name in vars(owner)]
    for owner, name, _ in places:
        setattr(owner, name, _refuse)
    try:
        yield
    finally:
        for owner, name, value in places:
            setattr(owner, name, value)


_LOGS = "torch._logging"
"""Torch's structured log notes a rank beside every record; nothing of it comes near a graph."""


def _refuse(*args: Any, **kwargs: Any) -> int:  # noqa: ARG001
    if sys._getframe(1).f_globals.get("__name__", "").startswith(_LOGS):
        return 0
    raise RankReadError(
        "the rank was read while a graph was traced: one program serves all ranks, so a rank has to come in as a tensor "
        "(the plan's rank_tensors)"
    )

"""Tracing where a rank cannot be read: one program is run by all ranks, and a rank read in Python is a constant in it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class RankReadError(RuntimeError):
    """A module asked Python for its rank while it was traced."""


@contextmanager
def rankless(*groups: Any) -> Iterator[None]:
    """While it lasts, every process group refuses to say its rank, and so does torch.distributed; ``groups`` are further
    objects that stand for one.

    The SDK's own tracing does not: its mocked groups answer 0, which is then baked into the program of all ranks.
    """
    import torch

    dist = torch.distributed  # the SDK puts another in its place while it traces
    kinds = [dist.ProcessGroup] if isinstance(dist.ProcessGroup, type) else []
    places = [(dist, "get_rank"), (dist, "get_node_local_rank"), *((one, "rank") for one in (*kinds, *groups))]
    # from __dict__: what getattr gives of a class of pybind is no method any more
    held = [(owner, name, vars(owner).get(name, _NOTHING)) for owner, name in places]
    for owner, name, _ in held:
        setattr(owner, name, _refuse)
    try:
        yield
    finally:
        for owner, name, value in held:
            if value is _NOTHING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


@contextmanager
def sdk_rankless() -> Iterator[None]:
    """The same inside the SDK's parallel state: its tensor-parallel group refuses too, and what it remembers of a rank is
    forgotten for as long."""
    state: Any = sys.modules.get("neuronx_distributed.parallel_layers.parallel_state")
    if state is None or not state.model_parallel_is_initialized():
        with rankless():
            yield
        return
    remembered = vars(state).get(_REMEMBERED)
    setattr(state, _REMEMBERED, None)
    try:
        with rankless(state.get_tensor_model_parallel_group()):
            yield
    finally:
        setattr(state, _REMEMBERED, remembered)


_NOTHING = object()

_REMEMBERED = "_MPU_TENSOR_MODEL_PARALLEL_RANK"

_LOGS = "torch._logging"
"""Torch's structured log notes a rank beside every record; nothing of it comes near a graph."""


def _refuse(*args: Any, **kwargs: Any) -> int:  # noqa: ARG001
    if sys._getframe(1).f_globals.get("__name__", "").startswith(_LOGS):
        return 0
    raise RankReadError(
        "the rank was read while a graph was traced: one program serves all ranks, so a rank has to come in as a tensor "
        "(the plan's rank_tensors)"
    )

"""A graph's HLO as torch_xla lowers it: what the SDK's tracer would hand to the compiler. Needs torch_xla, no device."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from gemma4cfg.compile.modules import graph_module
from gemma4cfg.plan.records import Graph, Plan
from gemma4cfg.runtime.kv import example_inputs
from gemma4cfg.runtime.rankless import rankless
from gemma4cfg.runtime.weights import zero_weights
from sharding.collectives.alone import Alone
from sharding.collectives.protocol import Collectives


def hlo_text(plan: Plan, graph: Graph) -> str:
    """The HLO of any rank's ``graph``: weights are parameters of it, collectives carry all ranks as one group."""
    os.environ.setdefault("PJRT_DEVICE", "CPU")
    xla: Any = import_module("torch_xla")
    device = xla.device()
    # The token of a graph's collectives outlives it, and would bring them into the next graph.
    xla._XLAC._set_all_reduce_token(str(device), None)
    collectives: Collectives = Alone() if plan.tp == 1 else _Lowered(plan.tp)
    with _world(plan.tp):
        module: Any = zero_weights(graph_module(plan, graph, collectives)).to(device)
        inputs = {name: tensor.to(device) for name, tensor in example_inputs(graph).items()}
        state = tuple(module._buffers)
        with torch.no_grad(), rankless():
            returned = module(**inputs) if state else module(*inputs.values())
        results = [returned, *(module._buffers[name] for name in state)] if state else list(returned)
        text: str = xla._XLAC._get_xla_tensors_hlo([one for one in results if isinstance(one, Tensor)])
    return text


class _Lowered:
    """Collectives as torch_xla's own operators. See ``sharding.collectives.Collectives``."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._groups = [list(range(size))]
        self._model: Any = import_module("torch_xla.core.xla_model")

    def all_reduce(self, tensor: Tensor) -> Tensor:
        reduced: Tensor = self._model.all_reduce(self._model.REDUCE_SUM, tensor, groups=self._groups)
        return reduced

    def all_gather(self, tensor: Tensor, dim: int) -> Tensor:
        gathered: Tensor = self._model.all_gather(tensor, dim=dim, groups=self._groups, pin_layout=False)
        return gathered


@contextmanager
def _world(size: int) -> Iterator[None]:
    """torch_xla drops the collectives of a world of one, which this process is."""
    runtime: Any = import_module("torch_xla.runtime")
    real = runtime.world_size
    runtime.world_size = lambda: size
    try:
        yield
    finally:
        runtime.world_size = real

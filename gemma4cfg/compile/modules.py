"""The modules that a plan's graphs are traced from, and the memory behind their weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from gemma4cfg.plan.records import Graph, Plan
from gemma4cfg.runtime.graphs import BufferGraphs, ParameterGraph, RankModule
from gemma4cfg.runtime.kv import empty
from sharding.collectives.protocol import Collectives

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode

StateKind = Literal["buffer", "parameter"]


def state_kind(plan: Plan) -> StateKind:
    """How the KV of the plan's modules is held: as its calls say."""
    return "buffer" if any(call.api == "neuronx_distributed.ModelBuilder" for call in plan.calls) else "parameter"


def graph_module(plan: Plan, graph: Graph, collectives: Collectives) -> RankModule:
    """The module that the plan's recipe traces ``graph`` from; its weights are on the meta device."""
    if state_kind(plan) == "buffer":
        return BufferGraphs(plan, collectives)
    return ParameterGraph(plan, graph, collectives)


def state_names(module: nn.Module) -> tuple[str, ...]:
    """Parameters of the module that hold KV, in the ports' order: no rank file has them."""
    return tuple(name for name, _ in module.named_parameters() if name.startswith("states."))


def example_inputs(graph: Graph) -> dict[str, Tensor]:
    """Zeros for every port, in the ports' order."""
    return {port.name: empty(port) for port in graph.inputs}


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
            _owner(module, name)._parameters[name.rpartition(".")[2]] = parameter


def assign(module: nn.Module, name: str, tensor: Tensor) -> None:
    """Put ``tensor`` where the module has the parameter ``name``."""
    _owner(module, name)._parameters[name.rpartition(".")[2]] = nn.Parameter(tensor, requires_grad=False)


def read_rank(path: Path, wanted: frozenset[str]) -> dict[str, Tensor]:
    """The state dict of a rank file.

    Raises PlanError where it lacks a name of ``wanted`` or has another: the SDK passes over both without a word.
    """
    from safetensors.torch import load_file

    from gemma4cfg.errors import PlanError

    if not path.is_file():
        raise PlanError(f"{path}: no such rank file; task=shard writes it, or give checkpoint=DIR here")
    found = load_file(str(path))
    missing, foreign = sorted(wanted - found.keys()), sorted(found.keys() - wanted)
    if missing or foreign:
        said = [f"{name} is missing" for name in missing] + [f"{name} has no place in the model" for name in foreign]
        raise PlanError(
            f"{path} is not of this plan: {'; '.join(said)}. The SDK would not say so: a weight that is missing keeps "
            "whatever memory held"
        )
    return found


def _owner(module: nn.Module, name: str) -> nn.Module:
    return module.get_submodule(name.rpartition(".")[0])

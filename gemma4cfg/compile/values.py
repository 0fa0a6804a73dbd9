"""A call's arguments as the plan spells them, to the objects that the API takes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gemma4cfg.compile.collectives import SdkCollectives
from gemma4cfg.compile.modules import read_rank, state_names
from gemma4cfg.compile.state_check import check_aliases, check_buffers
from gemma4cfg.errors import PlanError
from gemma4cfg.plan.records import Graph, Plan
from gemma4cfg.runtime.graphs import BufferGraphs, ParameterGraph, RankModule
from gemma4cfg.runtime.kv import empty, example_inputs
from gemma4cfg.runtime.rankless import sdk_rankless
from gemma4cfg.runtime.weights import assign, zero_weights
from sharding.collectives.alone import Alone
from sharding.collectives.protocol import Collectives


def named_graph(plan: Plan, path: str) -> Graph:
    """Of ``graphs/decode`` or ``graphs/decode/inputs``."""
    name = path.split("/")[1]
    return next(graph for graph in plan.graphs if graph.name == name)


def collectives_of(plan: Plan) -> Collectives:
    """What the SDK's tracing goes through; a group of one has no others."""
    return Alone() if plan.tp == 1 else SdkCollectives(plan.tp)


def make_module(plan: Plan, spelled: Mapping[str, Any]) -> RankModule:
    """The module that a call names, its weights zeros."""
    if spelled["state"] == "buffer":
        module: RankModule = BufferGraphs(plan, collectives_of(plan))
    else:
        module = ParameterGraph(plan, named_graph(plan, spelled["graph"]["ref"]), collectives_of(plan))
    zero_weights(module)
    module.eval()
    _refuse_ranks(module)
    return module


def _refuse_ranks(module: nn.Module) -> None:
    """Whatever the SDK traces of the module's call cannot have come to know a rank."""
    open_ones: list[ExitStack] = []

    def enter(*_: Any) -> None:
        stack = ExitStack()
        stack.enter_context(sdk_rankless())
        open_ones.append(stack)

    def leave(*_: Any) -> None:
        open_ones.pop().close()

    module.register_forward_pre_hook(enter)
    module.register_forward_hook(leave, always_call=True)


def check_module(plan: Plan, spelled: Mapping[str, Any], aliases: Mapping[str, int] | None) -> None:
    """Raises SilentLossError where the SDK would lose the KV of the module that a call names. It is built once more, with
    collectives that need no SDK."""
    local: Collectives = _Shapes(plan.tp)
    if spelled["state"] == "buffer":
        graphs = [named_graph(plan, graph["ref"]) for graph in spelled["graphs"]]
        check_buffers(BufferGraphs(plan, local), graphs)
    else:
        graph = named_graph(plan, spelled["graph"]["ref"])
        check_aliases(ParameterGraph(plan, graph, local), graph, aliases or {})


def aliases_of(module: nn.Module, aliases: Mapping[str, int]) -> dict[nn.Parameter, int]:
    """State port to output index, keyed by the module's Parameters as they are now."""
    states: Any = module.get_submodule("states")
    return {states[number]: index for number, index in enumerate(aliases.values())}


def port_tensors(plan: Plan, path: str) -> dict[str, Tensor]:
    """Of ``graphs/decode/inputs`` or ``…/state``: a tensor of zeros for each port, by name."""
    graph = named_graph(plan, path)
    if path.endswith("/state"):
        return {port.name: empty(port) for port in graph.state}
    return example_inputs(graph)


def weight_names(plan: Plan) -> frozenset[str]:
    """What every rank file of the plan holds."""
    local = {entry["local_name"] for entry in plan.tensors.values() if entry["home"] == "device"}
    return frozenset(local | set(plan.rank_tensors))


def read_ranks(spelled: Mapping[str, Any], directory: Path | None, names: frozenset[str]) -> list[dict[str, Tensor]]:
    """The state dicts of the rank files that a call names. Raises PlanError as ``read_rank``, and where there are none."""
    if directory is None:
        raise PlanError("there are no rank files: give checkpoint=DIR, from which they are cut")
    return [read_rank(directory / name, names) for name in spelled["rank_files"]]


@dataclass(frozen=True)
class RankFunction:
    """``parallel_model_trace``'s ``func``, in a process of each rank's own: the module with that rank's weights, and its
    aliases. A plain record, since it is sent to processes that are spawned; the rank picks a file and nothing else."""

    plan: Plan
    spelled: Mapping[str, Any]
    aliases: Mapping[str, int]
    directory: Path | None

    def __call__(self) -> tuple[nn.Module, dict[nn.Parameter, int]]:
        module = make_module(self.plan, self.spelled)
        names = frozenset(dict(module.named_parameters())) - frozenset(state_names(module))
        weights = read_ranks(_only(self.spelled["weights"], _own_rank()), self.directory, names)[0]
        for name, tensor in weights.items():
            assign(module, name, tensor)
        return module, aliases_of(module, self.aliases)


def _only(spelled: Mapping[str, Any], rank: int) -> Mapping[str, Any]:
    return {**spelled, "rank_files": [spelled["rank_files"][rank]]}


def _own_rank() -> int:
    from importlib import import_module

    rank: int = import_module("neuronx_distributed.parallel_layers.parallel_state").get_tensor_model_parallel_rank()
    return rank


class _Shapes:
    """Collectives that give results of the right shape and no others: enough where nothing has contents."""

    def __init__(self, size: int) -> None:
        self.size = size

    def all_reduce(self, tensor: Tensor) -> Tensor:
        return tensor.clone()

    def all_gather(self, tensor: Tensor, dim: int) -> Tensor:
        return torch.cat([tensor] * self.size, dim)

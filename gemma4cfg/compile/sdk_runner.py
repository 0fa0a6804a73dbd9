"""Loaded programs of the SDK behind the protocol that sessions drive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from gemma4cfg.compile.carry_out import CarryOut
from gemma4cfg.compile.hand_over import HandOver
from gemma4cfg.plan.records import Plan
from gemma4cfg.runtime.host.session import Runner

_LOADS = {"torch.jit.load": "f", "neuronx_distributed.trace.parallel_model_load": "model_dir"}


def runner_of(plan: Plan, carry: CarryOut) -> Runner:
    """What runs the graphs that ``carry`` has loaded."""
    if plan.recipe == "model_builder":
        return _Builder(plan, _last(plan, carry))
    programs: dict[str, Any] = {}
    for index, call in enumerate(plan.calls):
        if call.api in _LOADS:
            programs[str(call.args[_LOADS[call.api]]).removesuffix(".pt")] = carry.result(index)
    return _Apart(plan, programs)


class _Builder:
    """ModelBuilder: one program for all graphs. The second version takes inputs by name, the first finds the graph by their
    shapes."""

    def __init__(self, plan: Plan, program: Any) -> None:
        self._program = program
        self._by_name = any(call.api == "neuronx_distributed.ModelBuilder" for call in plan.calls)
        self._names = {graph.name: [port.name for port in graph.inputs] for graph in plan.graphs}

    def run(self, graph: str, inputs: Mapping[str, Tensor]) -> Tensor:
        given = {name: inputs[name] for name in self._names[graph]}
        if self._by_name:
            return _first(self._program(model_name=graph, **given))
        return _first(self._program(*given.values()))


class _Apart:
    """A program for each graph, on one core or on one a rank, its KV handed over as the plan's calls say."""

    def __init__(self, plan: Plan, programs: Mapping[str, Any]) -> None:
        self._programs = programs
        self._names = {graph.name: [port.name for port in graph.inputs] for graph in plan.graphs}
        self._hand_overs = [HandOver(plan) for _ in range(plan.tp)]

    def run(self, graph: str, inputs: Mapping[str, Tensor]) -> Tensor:
        for rank, hand_over in enumerate(self._hand_overs):
            hand_over.before(graph, inputs, {name: states_of(one, rank) for name, one in self._programs.items()})
        return _first(self._programs[graph](*(inputs[name] for name in self._names[graph])))


def states_of(program: Any, rank: int) -> Sequence[Tensor]:
    """The KV of a program on one rank, in the ports' order; read anew each time, since the first call swaps the tensors."""
    owner = program.models[rank] if hasattr(program, "models") else program
    parameters = owner.states._parameters
    ordered: list[Tensor] = [
        tensor for _, tensor in sorted(parameters.items(), key=lambda item: int(item[0].rpartition(".")[2]))
    ]
    return ordered


def _first(output: Any) -> Tensor:
    """The graph's own output; where the KV comes along it follows."""
    first: Tensor = output if isinstance(output, Tensor) else output[0]
    return first


def _last(plan: Plan, carry: CarryOut) -> Any:
    """The program that was loaded."""
    loads = ("torch.jit.load", "neuronx_distributed.NxDModel.load")
    return carry.result(max(index for index, call in enumerate(plan.calls) if call.api in loads))

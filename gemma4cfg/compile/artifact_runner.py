"""Exported programs, loaded from disk and run: what ``task=verify verify.backend=artifact`` proves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gemma4cfg.compile.hand_over import HandOver
from gemma4cfg.compile.modules import read_rank
from gemma4cfg.errors import PlanError
from gemma4cfg.plan.records import Graph, Plan
from gemma4cfg.runtime.kv import empty
from gemma4cfg.runtime.rank_files import RANK_FILE
from sharding.collectives.protocol import Collectives

PROGRAM_FILE = "program.pt2"


class ArtifactRank:
    """One rank of a plan on the CPU, made of the programs in ``directories`` (graph name to directory) and of its rank file.

    KV is where the recipe has it: one state for all graphs, or one for each, handed over as the plan's calls say. Raises
    PlanError for a rank file of another plan.
    """

    def __init__(
        self, plan: Plan, directories: Mapping[str, Path], rank_files: Path, rank: int, collectives: Collectives
    ) -> None:
        self._shared = plan.recipe == "model_builder"
        self._hand_over = HandOver(plan)
        self._programs: dict[str, _Program] = {}
        self.states: dict[str, Sequence[Tensor]] = {}
        weights: dict[str, Tensor] | None = None
        for graph in plan.graphs:
            state = self._state(graph)
            program = torch.export.load(directories[graph.name] / PROGRAM_FILE)
            if weights is None:
                path = rank_files / RANK_FILE.format(rank=rank)
                weights = read_rank(path, _weight_names(program))
            self._programs[graph.name] = _Program(graph, program, weights, state, collectives)
            self.states[graph.name] = state

    @torch.inference_mode()
    def run(self, graph: str, inputs: Mapping[str, Tensor]) -> Tensor:
        """See ``Runner``."""
        if not self._shared:
            self._hand_over.before(graph, inputs, self.states)
        return self._programs[graph](inputs)

    def _state(self, graph: Graph) -> Sequence[Tensor]:
        if self._shared and self.states:
            return next(iter(self.states.values()))
        return tuple(empty(port) for port in graph.state)


class _Program:
    """One graph. Its KV is either assigned inside it (buffers) or returned and put back here (parameters), as a device
    does with what is aliased."""

    def __init__(
        self,
        graph: Graph,
        program: Any,
        weights: Mapping[str, Tensor],
        state: Sequence[Tensor],
        collectives: Collectives,
    ) -> None:
        self._names = tuple(port.name for port in graph.inputs)
        self._state = state
        held = {port.name: tensor for port, tensor in zip(graph.state, state, strict=True)}
        self._returns_state = not held.keys() & program.constants.keys()
        if self._returns_state:
            held = {f"states.{number}": tensor for number, tensor in enumerate(state)}
        for name in program.graph_signature.parameters:
            program.state_dict[name] = nn.Parameter(held[name] if name in held else weights[name], requires_grad=False)
        for name in held.keys() & program.constants.keys():
            program.constants[name] = held[name]
        self._module = program.module()
        _through(self._module, collectives)

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        given = {name: inputs[name] for name in self._names}
        if not self._returns_state:
            output: Tensor = self._module(**given)
            return output
        output, *state = self._module(*given.values())
        for old, new in zip(self._state, state, strict=True):
            old.copy_(new)
        return output


def _weight_names(program: Any) -> frozenset[str]:
    return frozenset(name for name in program.graph_signature.parameters if not name.startswith("states."))


class _Collective(nn.Module):
    """A collective of the program, as a module that its graph can call."""

    def __init__(self, collectives: Collectives, kind: str) -> None:
        super().__init__()
        self._collectives, self._kind = collectives, kind

    def forward(self, tensor: Tensor) -> Tensor:
        if self._kind == "all_reduce":
            return self._collectives.all_reduce(tensor)
        return self._collectives.all_gather(tensor, dim=0)


def _through(module: torch.fx.GraphModule, collectives: Collectives) -> None:
    """Send the program's collectives over ``collectives``: a group's name means nothing in another process."""
    kinds = {
        "_c10d_functional.all_reduce.default": "all_reduce",
        "_c10d_functional.all_gather_into_tensor.default": "all_gather",
    }
    for kind in kinds.values():
        module.add_submodule(kind, _Collective(collectives, kind))
    for node in list(module.graph.nodes):
        if node.op != "call_function":
            continue
        target = str(node.target)
        if target in kinds:
            if target.endswith("all_reduce.default") and node.args[1] != "sum":
                raise PlanError(f"{node.name}: an all-reduce by {node.args[1]}, the plan knows sums only")
            node.op, node.target, node.args, node.kwargs = "call_module", kinds[target], node.args[:1], {}
        elif target == "_c10d_functional.wait_tensor.default":
            node.replace_all_uses_with(node.args[0])
            module.graph.erase_node(node)
    module.recompile()

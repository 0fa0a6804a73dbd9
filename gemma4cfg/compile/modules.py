"""The modules that a plan's graphs are traced from, and the rank files that fill them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from torch import Tensor, nn

from gemma4cfg.plan.records import Graph, Plan
from gemma4cfg.runtime.graphs import BufferGraphs, ParameterGraph, RankModule
from sharding.collectives.protocol import Collectives

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

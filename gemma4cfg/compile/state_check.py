"""Whether the SDK will find a module's KV. What it does not find it loses without a word, so it is looked for here first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from gemma4cfg.compile.modules import example_inputs, without_memory
from gemma4cfg.plan.records import Graph


class SilentLossError(RuntimeError):
    """A module whose KV or weights the SDK would drop without an error."""


def check_buffers(module: nn.Module, graphs: Sequence[Graph]) -> None:
    """ModelBuilder's second version takes for state the buffers that a call assigns anew. Calls ``module`` for each graph,
    without memory, and looks.

    Raises SilentLossError for state that is a Parameter, is written in place, is left as it was, or changes its type.
    """
    for graph in graphs:
        for port in graph.state:
            if port.name in dict(module.named_parameters()):
                raise _lost(graph, port.name, "is a Parameter; the second version's state is a buffer")
            if port.name not in dict(module.named_buffers()):
                raise _lost(graph, port.name, "is no buffer of the module")
        real = {port.name: module.get_buffer(port.name) for port in graph.state}
        try:
            _check_assigned(module, graph)
        finally:
            for name, buffer in real.items():
                module._buffers[name] = buffer


def _check_assigned(module: nn.Module, graph: Graph) -> None:
    with without_memory(module) as mode, torch.no_grad():
        before = {port.name: mode.from_tensor(module.get_buffer(port.name)) for port in graph.state}
        versions = {name: tensor._version for name, tensor in before.items()}
        module._buffers.update(before)
        module(**{name: mode.from_tensor(tensor) for name, tensor in example_inputs(graph).items()})
    for name, old in before.items():
        new = module._buffers[name]
        if old._version != versions[name]:
            raise _lost(graph, name, "is written in place; it has to be assigned anew")
        if new is old:
            raise _lost(graph, name, "is not assigned anew")
        if not isinstance(new, Tensor) or (new.shape, new.dtype) != (old.shape, old.dtype):
            raise _lost(graph, name, "changes its shape or type")


def check_aliases(module: nn.Module, graph: Graph, aliases: Mapping[str, int]) -> None:
    """Trace, parallel_model_trace and ModelBuilder's first version alias Parameters to outputs by a map from the names of
    the state's ports, in their order, to output indices.

    Raises SilentLossError where a state has no output, an output is not of its type, or a Parameter is written in place.
    """
    outputs = len(graph.outputs)
    expected = {port.name: outputs + number for number, port in enumerate(graph.state)}
    if dict(aliases) != expected:
        wrong = sorted(name for name in {*expected, *aliases} if expected.get(name) != aliases.get(name))
        raise _lost(graph, wrong[0], f"is output {expected.get(wrong[0])}, the alias map says {aliases.get(wrong[0])}")
    kept = {f"states.{number}" for number in range(len(graph.state))}
    parameters = dict(module.named_parameters())
    if missing := sorted(kept - parameters.keys()):
        raise _lost(graph, missing[0], "is no Parameter of the module")
    real = {name: parameters[name] for name in kept}
    holder = module.get_submodule("states")
    try:
        with without_memory(module) as mode, torch.no_grad():
            for name, parameter in real.items():
                fake = nn.Parameter(mode.from_tensor(parameter.detach()), requires_grad=False)
                holder._parameters[name.rpartition(".")[2]] = fake
            states = [holder._parameters[str(number)] for number in range(len(graph.state))]
            versions = [state._version for state in states if state is not None]
            given = [mode.from_tensor(tensor) for tensor in example_inputs(graph).values()]
            returned = module(*given)
    finally:
        for name, parameter in real.items():
            holder._parameters[name.rpartition(".")[2]] = parameter
    if not isinstance(returned, tuple) or len(returned) != outputs + len(states):
        raise _lost(graph, graph.state[0].name, "is not returned after the graph's outputs")
    for port, state, version, new in zip(graph.state, states, versions, returned[outputs:], strict=True):
        assert state is not None
        if state._version != version:
            raise _lost(graph, port.name, "is written in place; its new value has to be returned")
        if new is state:
            raise _lost(graph, port.name, "is returned as it came in: the graph never writes it")
        if (new.shape, new.dtype) != (state.shape, state.dtype):
            raise _lost(graph, port.name, "is returned in another shape or type")


def _lost(graph: Graph, name: str, why: str) -> SilentLossError:
    return SilentLossError(
        f"graph {graph.name}: state {name} {why}. The SDK would say nothing and lose it: every call would start from zeros"
    )

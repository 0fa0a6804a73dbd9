"""Whether the SDK will find a module's KV. What it does not find it loses without a word, so it is looked for here first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from gemma4cfg.plan.records import Graph
from gemma4cfg.runtime.kv import example_inputs


class SilentLossError(RuntimeError):
    """A module whose KV or weights the SDK would drop without an error."""


def check_buffers(module: nn.Module, graphs: Sequence[Graph]) -> None:
    """ModelBuilder's second version takes for state the buffers that a call assigns anew. Calls ``module`` for each graph
    and looks. The module is moved to the meta device, where a call costs no memory and gives no numbers.

    Raises SilentLossError for state that is a Parameter, is written in place, is left as it was, or changes its type.
    """
    module.to("meta")
    for graph in graphs:
        parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
        for port in graph.state:
            if port.name in parameters:
                raise _lost(graph, port.name, "is a Parameter; the second version's state is a buffer")
            if port.name not in buffers:
                raise _lost(graph, port.name, "is no buffer of the module")
        before = {port.name: buffers[port.name] for port in graph.state}
        versions = {name: tensor._version for name, tensor in before.items()}
        with torch.no_grad():
            module(**_inputs(graph))
        for name, old in before.items():
            new = module.get_buffer(name)
            if old._version != versions[name]:
                raise _lost(graph, name, "is written in place; it has to be assigned anew")
            if new is old:
                raise _lost(graph, name, "is not assigned anew")
            _same_type(graph, name, old, new)


def check_aliases(module: nn.Module, graph: Graph, aliases: Mapping[str, int]) -> None:
    """Trace, parallel_model_trace and ModelBuilder's first version alias Parameters, ``states.N`` in the order of the state's
    ports, to outputs. ``aliases``: port to output index. The module is moved to the meta device.

    Raises SilentLossError where a state has no output of its own or is no Parameter, and where its new value is not
    returned, has another type, or was written in place.
    """
    outputs = len(graph.outputs)
    expected = {port.name: outputs + number for number, port in enumerate(graph.state)}
    for name in (*expected, *aliases):
        if expected.get(name) != aliases.get(name):
            raise _lost(graph, name, f"is output {expected.get(name)}, the alias map says {aliases.get(name)}")
    module.to("meta")
    parameters = dict(module.named_parameters())
    for number, port in enumerate(graph.state):
        if f"states.{number}" not in parameters:
            raise _lost(graph, port.name, "is no Parameter of the module")
    states = [parameters[f"states.{number}"] for number in range(len(graph.state))]
    versions = [state._version for state in states]
    with torch.no_grad():
        returned = module(*_inputs(graph).values())
    if not isinstance(returned, tuple) or len(returned) != outputs + len(states):
        raise _lost(graph, graph.state[0].name, "is not returned after the graph's outputs")
    for port, old, version, new in zip(graph.state, states, versions, returned[outputs:], strict=True):
        if old._version != version:
            raise _lost(graph, port.name, "is written in place; its new value has to be returned")
        if new is old:
            raise _lost(graph, port.name, "is returned as it came in: the graph never writes it")
        _same_type(graph, port.name, old, new)


def _inputs(graph: Graph) -> dict[str, Tensor]:
    return {name: tensor.to("meta") for name, tensor in example_inputs(graph).items()}


def _same_type(graph: Graph, name: str, old: Tensor, new: Tensor) -> None:
    if (new.shape, new.dtype) != (old.shape, old.dtype):
        raise _lost(graph, name, f"changes from {_spelled(old)} to {_spelled(new)}")


def _spelled(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _lost(graph: Graph, name: str, why: str) -> SilentLossError:
    return SilentLossError(
        f"graph {graph.name}: state {name} {why}. The SDK would say nothing and lose it: every call would start from zeros"
    )

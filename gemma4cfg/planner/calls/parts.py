"""What the call lists of the recipes share: their inputs, and how arguments that are no plain value are written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from gemma4cfg.architecture.model import Architecture
from gemma4cfg.config.schema import Recipe
from gemma4cfg.config.sdk import Sdk
from gemma4cfg.config.target import Target
from gemma4cfg.plan.records import Call, Graph, HostPart, Shapes

Value = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CallInputs:
    """What decides the calls. ``graphs`` is empty where the recipe traces none, else holds one decode graph."""

    recipe: Recipe
    tp: int
    dtype: str
    graphs: tuple[Graph, ...]
    shapes: Shapes
    target: Target
    sdk: Sdk
    model: Architecture
    kv_slots: int
    host: tuple[HostPart, ...]

    @property
    def prefill(self) -> tuple[Graph, ...]:
        return tuple(graph for graph in self.graphs if graph.kind == "prefill")

    @property
    def decode(self) -> Graph:
        (graph,) = (graph for graph in self.graphs if graph.kind == "decode")
        return graph

    @property
    def prefill_first(self) -> tuple[Graph, ...]:
        return (*self.prefill, self.decode)


class Script:
    """Calls as they are written down; ``call`` returns the reference to what the call returns."""

    def __init__(self) -> None:
        self._calls: list[Call] = []

    def call(self, api: str, /, **args: Any) -> Value:
        self._calls.append(Call(api, args))
        return ref(f"calls/{len(self._calls) - 1}")

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(self._calls)


def ref(path: str, **more: Any) -> Value:
    """A part of the plan, or of what an earlier call returned."""
    return {"ref": path, **more}


def graph_ref(graph: Graph, part: Literal["inputs", "state"] | None = None) -> Value:
    return ref(f"graphs/{graph.name}" + (f"/{part}" if part else ""))


def rank_local_module(graph: Graph) -> Value:
    """The module of one graph, its KV held as Parameters without gradients that ``aliases`` names."""
    return {"module": ref("layers"), "graph": graph_ref(graph), "state": "parameter"}


def aliases(graph: Graph) -> dict[str, int]:
    """State name to output index: the module returns its outputs and then the new state, flat, in the state's order.

    In the script the keys are the Parameter objects of those names.
    """
    return {port.name: len(graph.outputs) + index for index, port in enumerate(graph.state)}


def hand_overs(inputs: CallInputs) -> Iterator[tuple[Graph, Graph, Literal["chunk", "prompt"]]]:
    """Where the KV of graphs that share nothing goes: (from, to, how often).

    After a prompt, from the graph that ran its end to decode. Of a chunked prompt the largest bucket runs every chunk
    but the last, so a smaller one starts from its KV.
    """
    if inputs.shapes.prompt_chunking:
        largest = max(inputs.prefill, key=lambda graph: sum(prod(port.shape) for port in graph.inputs))
        for graph in inputs.prefill:
            if graph != largest:
                yield largest, graph, "chunk"
    for graph in inputs.prefill:
        yield graph, inputs.decode, "prompt"


def reshard(script: Script, inputs: CallInputs) -> None:
    """Writes the rank files of this placement into the directory that its id names.

    The SDK's ``shard_checkpoint`` is not used: it takes a whole checkpoint in memory, passes over names that the
    checkpoint lacks without a word, and cuts where its own layers say, not where the plan does.
    """
    script.call(
        "sharding.reshard",
        placements={"tensors": ref("tensors"), "rank_tensors": ref("rank_tensors")},
        tp=inputs.tp,
        source=ref("provenance/checkpoint"),
        destination=ref("placement_id"),
        dtype=inputs.dtype,
        names=ref("provenance/checkpoint_names"),
        placement_id=ref("placement_id"),
    )


def rank_files(tp: int, names: Value | None = None) -> Value:
    """Every rank's state dict, by the file names that NxD loads; ``names``: what each must hold, no more, no less."""
    return {
        "rank_files": [f"tp{rank}_sharded_checkpoint.safetensors" for rank in range(tp)],
        "directory": ref("placement_id"),
        **({"names": names} if names else {}),
    }


def expected_names(script: Script, inputs: CallInputs, module: Value, **within: Value) -> Value:
    """The names that rank files must hold: those of the module, built on the meta device so that it takes no memory, less
    its KV. NxD passes over a name that the files lack without a word. Accelerate's version of the context breaks integer
    Parameters, hence ``force_custom_init_on_device``."""
    meta = script.call(
        "neuronx_distributed.utils.model_utils.init_on_device",
        device="meta",
        force_custom_init_on_device=True,
        **within,
    )
    names = script.call("torch.nn.Module.state_dict", self=module, within=meta)
    return {**names, "without": graph_ref(inputs.decode, "state")}


def require_one_state(inputs: CallInputs) -> None:
    """Raises ValueError where graphs that share their KV disagree about it.

    ModelBuilder makes the state of the first graph and hands it to all: nothing would say so.
    """
    for graph in inputs.graphs:
        if graph.state != inputs.decode.state:
            raise ValueError(f"graphs {graph.name} and {inputs.decode.name} share their state and differ in it")

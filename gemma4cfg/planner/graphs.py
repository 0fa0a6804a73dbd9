"""The graphs to compile: their named inputs, outputs and state, and the identity of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from gemma4cfg.architecture.model import Architecture
from gemma4cfg.config.schema import OffloadChoice, Recipe
from gemma4cfg.config.sdk import Sdk
from gemma4cfg.config.target import Target
from gemma4cfg.plan.encode import canonical, digest_of, to_plain
from gemma4cfg.plan.records import Collectives, Graph, Layer, Numerics, Port, Shapes

INDEX_DTYPE = "int32"
"""Of ids, positions and lengths: the device has no 64-bit integers."""


@dataclass(frozen=True, slots=True)
class GraphInputs:
    """What graphs are made from, beyond the layers."""

    architecture: Architecture
    layers: tuple[Layer, ...]
    shapes: Shapes
    dtype: str
    tp: int
    offload: OffloadChoice
    split_lm_head: bool
    numerics: Numerics
    recipe: Recipe
    sdk: Sdk
    target: Target
    compiler_flags: tuple[str, ...]


def plan_graphs(given: GraphInputs, known: dict[int, Any]) -> tuple[Graph, ...]:
    """A prefill graph per bucket, shortest first, then decode. None for a stack that makes its own.

    ``known`` is ``to_plain``'s memory, shared with whoever encodes the same layers.
    """
    if given.recipe.name == "vllm":
        return ()
    outputs, state, collectives = _outputs(given), _state(given), _collectives(given)
    common = _identity(given, known) | {
        "outputs": to_plain(outputs),
        "state": to_plain(state),
        "collectives": to_plain(collectives),
    }
    encoded = {key: canonical(value) for key, value in common.items()}
    rows = {} if given.recipe.prefill == "host" else {f"prefill_{n}": n for n in given.shapes.prefill_buckets}
    graphs = []
    for name, length in {**rows, "decode": 1}.items():
        inputs = _inputs(given, length)
        kind: Literal["prefill", "decode"] = "decode" if name == "decode" else "prefill"
        identity = digest_of({**encoded, "kind": canonical(kind), "inputs": canonical(to_plain(inputs))})
        graphs.append(Graph(identity, name, kind, inputs, outputs, state, collectives))
    return tuple(graphs)


def _inputs(given: GraphInputs, length: int) -> tuple[Port, ...]:
    """``valid_length`` counts the rows of each stream that are no padding (0: the stream sits this call out)."""
    batch = given.shapes.batch
    ports = []
    if given.offload.token_embedding == "host":
        ports.append(Port("inputs_embeds", (batch, length, given.architecture.hidden_size), given.dtype))
    else:
        ports.append(Port("input_ids", (batch, length), INDEX_DTYPE))
    ple = given.architecture.ple
    if ple and given.offload.per_layer_embedding == "host":
        ports.append(Port("per_layer_inputs", (batch, length, given.architecture.layers, ple.width), given.dtype))
    ports.append(Port("position_ids", (batch, length), INDEX_DTYPE))
    ports.append(Port("valid_length", (batch,), INDEX_DTYPE))
    return tuple(ports)


def _outputs(given: GraphInputs) -> tuple[Port, ...]:
    """Of each stream's last valid row only: never bucket x vocabulary logits."""
    batch = given.shapes.batch
    if given.offload.sampling == "device":
        return (Port("token_ids", (batch,), INDEX_DTYPE),)
    return (Port("logits", (batch, given.architecture.vocab_size), given.dtype),)


def _state(given: GraphInputs) -> tuple[Port, ...]:
    ports = []
    for layer in given.layers:
        if layer.kv.shape is not None:
            ports += [
                Port(f"{part}_{layer.kv.slot}", layer.kv.shape, given.shapes.kv_dtype) for part in ("key", "value")
            ]
    return tuple(ports)


def _collectives(given: GraphInputs) -> Collectives:
    reduces = 0
    for layer in given.layers:
        parts = (layer.attention, layer.mlp, layer.moe, layer.ple)
        reduces += sum(part is not None and part.reduce for part in parts)
    return Collectives(all_reduce=reduces, all_gather=int(given.split_lm_head and given.tp > 1))


def _identity(given: GraphInputs, known: dict[int, Any]) -> dict[str, Any]:
    """What decides a compiled graph besides its own ports. Ranks run one program, so heads are counted, not named."""
    return {
        "layers": [_local_layer(layer, known) for layer in given.layers],
        "numerics": to_plain(given.numerics),
        "vocab_size": given.architecture.vocab_size,
        "tp": given.tp,
        "dtype": given.dtype,
        "kv_layout": given.shapes.kv_layout,
        "prompt_chunking": given.shapes.prompt_chunking,
        "split_lm_head": given.split_lm_head,
        "offload": to_plain(given.offload),
        "recipe": to_plain(given.recipe),
        "compiler_flags": list(given.compiler_flags),
        "sdk": {"name": given.sdk.name, "pins": dict(given.sdk.pins)},
        "device": {"chip": given.target.chip.name, "cores_per_logical_core": given.target.cores_per_logical_core},
    }


def _local_layer(layer: Layer, known: dict[int, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = to_plain(layer, known)
    named = ("q_heads_of_rank", "kv_heads_of_rank")
    return {**plain, "attention": {key: value for key, value in plain["attention"].items() if key not in named}}

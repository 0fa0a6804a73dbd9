"""Bytes of host memory and disk: to shard, compile, load and serve; and which machine could compile."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from gemma4cfg.architecture.inventory import inventory
from gemma4cfg.architecture.model import Architecture
from gemma4cfg.config.schema import Recipe
from gemma4cfg.config.sdk import Sdk
from gemma4cfg.config.target import GIB, Target
from gemma4cfg.plan.bytes import ITEM_BYTES
from gemma4cfg.plan.records import CompilePeaks, DiskBudget, HostAbility, HostBudget, HostPart
from gemma4cfg.planner.division import Division
from sharding.limits import PEAK_BYTES


@dataclass(frozen=True, slots=True)
class HostInputs:
    """``graphs`` counts those of all cores; ``swap`` is what the machine has been given, in bytes."""

    architecture: Architecture
    division: Division
    tp: int
    recipe: Recipe
    sdk: Sdk
    target: Target
    known_targets: Sequence[Target]
    graphs: int
    host: tuple[HostPart, ...]
    swap: int


def host_budget(given: HostInputs) -> HostBudget:
    """Peaks, what they lack, the disk, and what the machine can do with them."""
    reserve = given.sdk.stack.estimates.host_reserve.bytes
    tables = sum(part.bytes for part in given.host) + _reference_bytes(given)
    load_peak = given.division.weights * _loaded_copies(given) + tables + _tower_bytes(given)
    peaks = compile_peaks(given)
    compile_peak = _compile_peak(given, peaks)
    room = given.target.host_bytes + given.swap
    return HostBudget(
        shard_peak=PEAK_BYTES,
        compile_peak=compile_peak,
        load_peak=load_peak,
        steady=tables,
        limit=given.target.host_bytes,
        swap=max(0, load_peak + reserve - given.target.host_bytes),
        compile_swap=max(0, compile_peak + reserve - given.target.host_bytes),
        compile=peaks,
        disk=_disk(given),
        can=HostAbility(
            shard=PEAK_BYTES + reserve <= room,
            compile=compile_peak + reserve <= room,
            load=load_peak + reserve <= room,
            serve=tables + reserve <= room,
        ),
        compile_on=_compile_on(given, compile_peak + reserve),
    )


def compile_peaks(given: HostInputs) -> CompilePeaks | None:
    """Host bytes by how many ranks are compiled at once, and how their weights come to the host.

    ``streamed`` is the plan's own way: one rank, its weights from its rank file, a compiler for every graph. The others
    read the whole checkpoint, as published ports do: in float32 the new copy stands beside the mapped file while it is
    made; later a rank's weights and a compiler come to it. All ranks at once hold their weights twice, the second time in
    the graphs, and have a compiler each; in float32 every one of them has made the whole model for itself.
    """
    if given.recipe.name == "vllm":
        return None
    weights, compiler = given.division.weights, given.sdk.stack.estimates.compiler_peak.bytes
    elements, _ = text_elements(given.architecture)
    whole, wide = elements * ITEM_BYTES[given.architecture.checkpoint_dtype], elements * 4
    widened = weights * 4 // ITEM_BYTES[given.division.dtype]
    return CompilePeaks(
        one_rank_streamed=weights + compiler * given.graphs,
        one_rank_bfloat16=whole + weights + compiler,
        one_rank_float32=max(wide + whole, wide + weights + compiler),
        all_ranks_bfloat16=all_ranks_peak(given.tp, weights, compiler),
        all_ranks_float32=given.tp * wide + all_ranks_peak(given.tp, widened, compiler),
    )


def all_ranks_peak(tp: int, weights: int, compiler: int) -> int:
    """Host bytes of all ranks compiled at once, each from its rank file: its weights, a second time in its graphs, and a
    compiler."""
    return tp * (2 * weights + compiler)


def compile_basis(given: HostInputs) -> str:
    """How the plan's own peak comes about."""
    compiler = given.sdk.stack.estimates.compiler_peak.source
    if build := given.sdk.stack.build:
        return f"the stack is built: a host of {build.host_memory_gib} GiB, as the published one, less the reserve"
    if given.recipe.name == "tp_alias":
        return f"all ranks at once: each one's weights, a second time in its graphs, and {compiler}"
    return f"one rank's weights, and for each graph {compiler}"


def _compile_peak(given: HostInputs, peaks: CompilePeaks | None) -> int:
    if build := given.sdk.stack.build:
        return build.host_memory_gib * GIB - given.sdk.stack.estimates.host_reserve.bytes
    assert peaks is not None, "a stack that is not built compiles graphs"
    return peaks.all_ranks_bfloat16 if given.recipe.name == "tp_alias" else peaks.one_rank_streamed


def _compile_on(given: HostInputs, need: int) -> str | None:
    """The machine with the same chip and the least host memory that is enough without swap."""
    enough = [
        target
        for target in given.known_targets
        if target.chip.name == given.target.chip.name and target.host_bytes >= need
    ]
    return min(enough, key=lambda target: (target.host_bytes, target.chips)).name if enough else None


def _disk(given: HostInputs) -> DiskBudget:
    """The published checkpoint, rank files with the host's tables, and what the compiler makes: a program for each graph,
    or for each graph and rank where programs carry a rank's weights."""
    stored = ITEM_BYTES[given.architecture.checkpoint_dtype]
    _, elements = text_elements(given.architecture)
    tables = sum(part.bytes for part in given.host)
    code = given.sdk.stack.estimates.code_per_layer.bytes * given.architecture.layers
    carried = (given.division.weights + code) * _loaded_copies(given)
    serves_itself = given.recipe.name == "vllm"
    return DiskBudget(
        checkpoint=(elements + (given.architecture.tower_elements or 0)) * stored,
        shards=0 if serves_itself else given.division.weights * given.tp + tables,
        artifacts=0 if serves_itself else carried if _carries_weights(given.recipe) else code * given.graphs,
    )


@functools.lru_cache(maxsize=64)
def text_elements(architecture: Architecture) -> tuple[int, int]:
    """Elements of the text decoder that are needed, and that a published file has."""
    required = stored = 0
    for facts in inventory(architecture).values():
        stored += facts.elements if facts.status != "tied" else 0
        required += facts.elements if facts.status == "required" else 0
    return required, stored


def _reference_bytes(given: HostInputs) -> int:
    """The reference model in float32, where the prompt runs on the host."""
    return 4 * text_elements(given.architecture)[0] if given.recipe.prefill == "host" else 0


def _tower_bytes(given: HostInputs) -> int:
    """A stack that serves by itself loads vision and audio towers too."""
    if given.recipe.name != "vllm":
        return 0
    return (given.architecture.tower_elements or 0) * ITEM_BYTES[given.division.dtype]


def _loaded_copies(given: HostInputs) -> int:
    """Copies of a rank's weights that pass through the host: one per rank, or one per graph where graphs own theirs."""
    return given.tp * given.graphs if _carries_weights(given.recipe) else given.tp


def _carries_weights(recipe: Recipe) -> bool:
    """Whether every program is saved and loaded with weights of its own."""
    return recipe.name in ("trace", "tp_alias")

"""Bytes on the device and on the host. Weights and KV are counted; the rest are estimates that name their source."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gemma4cfg.architecture.inventory import inventory
from gemma4cfg.architecture.model import Architecture
from gemma4cfg.config.schema import Recipe
from gemma4cfg.config.sdk import Sdk
from gemma4cfg.config.target import Target
from gemma4cfg.plan.bytes import ITEM_BYTES
from gemma4cfg.plan.records import Budget, HbmBudget, HostBudget, HostPart, Layer, Shapes
from gemma4cfg.planner.division import Division
from sharding.limits import PEAK_BYTES


@dataclass(frozen=True, slots=True)
class BudgetInputs:
    """``copies`` of weights and KV are on the fullest core, beside ``graphs_on_core`` programs; ``graphs`` counts those of
    all cores."""

    architecture: Architecture
    layers: tuple[Layer, ...]
    division: Division
    tp: int
    recipe: Recipe
    sdk: Sdk
    target: Target
    copies: int
    graphs_on_core: int
    graphs: int
    host: tuple[HostPart, ...]


def plan_budget(given: BudgetInputs) -> Budget:
    """Device and host bytes, and where each inexact figure comes from."""
    estimates = given.sdk.stack.estimates
    weights, kv = given.division.weights * given.copies, given.division.kv * given.copies
    scratch = activation_bytes(given.architecture, given.layers, given.division.shapes, given.division.dtype)
    scratch += estimates.spill_per_graph.bytes * given.graphs_on_core
    code = estimates.code_per_layer.bytes * len(given.layers) * given.graphs_on_core
    runtime = given.target.chip.runtime_bytes_per_core * given.target.cores_per_logical_core
    total = weights + kv + scratch + code + runtime
    device = HbmBudget(weights, kv, scratch, code, runtime, total, given.target.hbm_bytes_per_core)
    basis = {
        "weights": f"exact: local tensors and rank tensors x {given.copies}",
        "kv": f"exact: K and V of every slot x {given.copies}",
        "scratch": f"activations of the longest graph, counted, and {estimates.spill_per_graph.source}",
        "code": estimates.code_per_layer.source,
        "runtime": given.target.chip.runtime_source,
        "host.shard_peak": "bound of the streaming resharder",
        "host.compile_peak": _compile_basis(given),
        "host.load_peak": "every copy of every rank's weights, and what is there anyway",
        "host.steady": "the host's tables, and the model in float32 where the prompt runs on the host",
        "host.swap": f"what load_peak lacks, with a reserve: {estimates.host_reserve.source}",
    }
    return Budget(device, _host(given), basis)


def activation_bytes(architecture: Architecture, layers: Iterable[Layer], shapes: Shapes, dtype: str) -> int:
    """Activations alive at once in the largest graph: the residual with its norms, one layer's widest part (attention
    scores in fp32, or both MLP branches), and the logits of one row a stream in fp32."""
    rows = shapes.batch * shapes.prefill_buckets[-1]
    item = ITEM_BYTES[dtype]
    widest = 0
    for layer in layers:
        heads = (layer.attention.local_q_heads + 2 * layer.attention.local_kv_heads) * layer.head_dim
        scores = layer.attention.local_q_heads * shapes.kv_length * 4
        mlp = 2 * layer.mlp.local_intermediate * item
        if layer.moe:
            mlp += 2 * layer.moe.local_experts * layer.moe.local_intermediate * item
        widest = max(widest, heads * item + scores, mlp)
    ple = architecture.layers * architecture.ple.width * item if architecture.ple else 0
    residual = 4 * architecture.hidden_size * item
    return rows * (residual + ple + widest) + shapes.batch * architecture.vocab_size * 4


def _host(given: BudgetInputs) -> HostBudget:
    tables = sum(part.bytes for part in given.host) + _reference_bytes(given)
    load_peak = given.division.weights * _loaded_copies(given) + tables
    reserve = given.sdk.stack.estimates.host_reserve.bytes
    return HostBudget(
        shard_peak=PEAK_BYTES,
        compile_peak=_compile_peak(given),
        load_peak=load_peak,
        steady=tables,
        limit=given.target.host_bytes,
        swap=max(0, load_peak + reserve - given.target.host_bytes),
    )


def _reference_bytes(given: BudgetInputs) -> int:
    """The reference model in float32, where the prompt runs on the host."""
    if given.recipe.prefill != "host":
        return 0
    return 4 * sum(facts.elements for facts in inventory(given.architecture).values() if facts.status == "required")


def _loaded_copies(given: BudgetInputs) -> int:
    """Copies of a rank's weights that pass through the host: one per rank, or one per graph where graphs own theirs."""
    if given.recipe.name in ("trace", "tp_alias"):
        return given.tp * given.graphs
    return given.tp


def _compile_peak(given: BudgetInputs) -> int:
    estimates = given.sdk.stack.estimates
    if given.recipe.name == "vllm":
        return 0
    if given.recipe.name == "tp_alias":
        return int(given.division.weights * given.tp * estimates.all_ranks_compile.ratio)
    return given.division.weights + estimates.compiler_peak.bytes * given.graphs


def _compile_basis(given: BudgetInputs) -> str:
    estimates = given.sdk.stack.estimates
    if given.recipe.name == "vllm":
        return "nothing is compiled ahead"
    if given.recipe.name == "tp_alias":
        return estimates.all_ranks_compile.source
    return f"one rank's weights, and for each graph {estimates.compiler_peak.source}"

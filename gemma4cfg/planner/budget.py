"""Bytes on the device and on the host. Weights and KV are counted; the rest are estimates that name their source."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gemma4cfg.architecture.model import Architecture
from gemma4cfg.config.schema import Recipe
from gemma4cfg.config.sdk import Sdk
from gemma4cfg.config.target import Target
from gemma4cfg.plan.bytes import ITEM_BYTES
from gemma4cfg.plan.records import Budget, HbmBudget, HostBudget, HostPart, Layer, Shapes
from sharding.limits import PEAK_BYTES


@dataclass(frozen=True, slots=True)
class BudgetInputs:
    """``weights`` and ``kv``: bytes of one copy on one rank. ``graphs_on_core`` and ``graphs`` (of all cores) own copies
    where ``copies`` says that they share none."""

    architecture: Architecture
    layers: tuple[Layer, ...]
    shapes: Shapes
    dtype: str
    tp: int
    recipe: Recipe
    sdk: Sdk
    target: Target
    weights: int
    kv: int
    copies: int
    graphs_on_core: int
    graphs: int
    host: tuple[HostPart, ...]


def plan_budget(given: BudgetInputs) -> Budget:
    """Device and host bytes, and where each inexact figure comes from."""
    estimates = given.sdk.estimates
    weights, kv = given.weights * given.copies, given.kv * given.copies
    scratch = activation_bytes(given.architecture, given.layers, given.shapes, given.dtype)
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
        "host.load_peak": "every copy of every rank's weights, and the host's tables",
        "host.steady": "the host's tables",
        "host.swap": f"what the larger of load_peak and steady lacks, with a reserve: {estimates.host_reserve.source}",
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
    tables = sum(part.bytes for part in given.host)
    load_peak = given.weights * _loaded_copies(given) + tables
    reserve = given.sdk.estimates.host_reserve.bytes
    return HostBudget(
        shard_peak=PEAK_BYTES,
        compile_peak=_compile_peak(given),
        load_peak=load_peak,
        steady=tables,
        limit=given.target.host_bytes,
        swap=max(0, max(load_peak, tables) + reserve - given.target.host_bytes),
    )


def _loaded_copies(given: BudgetInputs) -> int:
    """Copies of a rank's weights that pass through the host: one per rank, or one per graph where graphs own theirs."""
    if given.recipe.name in ("trace", "tp_alias"):
        return given.tp * given.graphs
    return given.tp


def _compile_peak(given: BudgetInputs) -> int:
    estimates = given.sdk.estimates
    if given.recipe.name == "vllm":
        return 0
    if given.recipe.name == "tp_alias":
        return int(given.weights * given.tp * estimates.all_ranks_compile.ratio)
    return given.weights + estimates.compiler_peak.bytes * given.graphs


def _compile_basis(given: BudgetInputs) -> str:
    estimates = given.sdk.estimates
    if given.recipe.name == "vllm":
        return "nothing is compiled ahead"
    if given.recipe.name == "tp_alias":
        return estimates.all_ranks_compile.source
    return f"one rank's weights, and for each graph {estimates.compiler_peak.source}"

"""Bytes of one rank's device memory, line by line, for any length of its KV. Weights and KV are counted; the rest are
estimates that name their source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gemma4cfg.architecture.model import Architecture
from gemma4cfg.config.schema import Recipe
from gemma4cfg.config.sdk import Sdk
from gemma4cfg.config.target import Target
from gemma4cfg.plan.bytes import ITEM_BYTES
from gemma4cfg.plan.records import BudgetLine, GraphMemory, HbmBudget, MaximumContext, Shapes
from gemma4cfg.planner.division import Division
from gemma4cfg.planner.kinds import LayerKind


@dataclass(frozen=True, slots=True)
class DeviceInputs:
    """``copies`` of weights and KV are on the fullest core, beside ``graphs_on_core`` programs."""

    architecture: Architecture
    kinds: tuple[LayerKind, ...]
    division: Division
    recipe: Recipe
    sdk: Sdk
    target: Target
    copies: int
    graphs_on_core: int

    @property
    def shapes(self) -> Shapes:
        return self.division.shapes

    @property
    def layers(self) -> int:
        return self.architecture.layers


def device_lines(given: DeviceInputs) -> tuple[BudgetLine, ...]:
    """Every line of the budget, in the order of its parts."""
    estimates, copies, shapes = given.sdk.stack.estimates, given.copies, given.shapes
    runtime = given.target.chip.runtime_bytes_per_core * given.target.cores_per_logical_core
    lines = [
        BudgetLine(
            "weights", f"weights x {copies}", given.division.weights * copies, "counted: tensors and rank tensors"
        )
    ]
    for kind in given.kinds:
        if kind.owners:
            rows = kind.kv_rows(shapes.kv_length)
            what = f"KV of {kind.owners} {kind.layer.type} layers, {kind.slot.layout}, {rows} rows, x {copies}"
            held = kind.owners * rows * kind.kv_row_bytes(shapes) * copies
            lines.append(BudgetLine("kv", what, held, "counted: K and V of every slot"))
    if estimates.serving:
        lines += _serving_lines(given, runtime)
    else:
        longest = shapes.prefill_buckets[-1]
        activations = activation_bytes(given, longest, shapes.kv_length)
        lines += [
            BudgetLine(
                "scratch", f"activations of a prefill of {longest}", activations, "counted: the largest graph's"
            ),
            BudgetLine("scratch", "logits of the last rows, float32", logit_bytes(given), "counted"),
        ]
    spill = estimates.spill_per_graph
    lines += [
        BudgetLine("scratch", f"spill x {given.graphs_on_core}", spill.bytes * given.graphs_on_core, spill.source),
        BudgetLine(
            "code",
            f"instructions of {given.layers} layers x {given.graphs_on_core}",
            estimates.code_per_layer.bytes * given.layers * given.graphs_on_core,
            estimates.code_per_layer.source,
        ),
        BudgetLine("runtime", "runtime", runtime, given.target.chip.runtime_source),
    ]
    return tuple(lines)


def _serving_lines(given: DeviceInputs, runtime: int) -> Iterator[BudgetLine]:
    """What a stack that serves by itself takes or leaves beside the plan's own tensors."""
    serving = given.sdk.stack.estimates.serving
    assert serving is not None
    towers = (given.architecture.tower_elements or 0) * ITEM_BYTES[given.division.dtype]
    yield BudgetLine("scratch", "vision and audio towers, loaded too", towers, "counted: the published checkpoint's")
    pages = serving_pages(given, given.shapes.kv_length)
    yield BudgetLine("scratch", "pages of sliding layers beside the window", pages, serving.source)
    left = round((1 - serving.memory_share) * (given.target.hbm_bytes_per_core - runtime))
    yield BudgetLine("runtime", f"left free beside a share of {serving.memory_share}", left, serving.source)


def serving_pages(given: DeviceInputs, kv_length: int) -> int:
    """KV bytes that sliding layers take beside their window while a chunk of a prompt runs, to whole pages and one more."""
    serving = given.sdk.stack.estimates.serving
    assert serving is not None
    total = 0
    for kind in given.kinds:
        if kind.owners and kind.layer.window is not None:
            tokens = min(kind.layer.window - 1 + serving.chunk_tokens, kv_length)
            pages = -(-tokens // serving.page_tokens) + 1
            extra = pages * serving.page_tokens - kind.kv_rows(kv_length)
            total += kind.owners * extra * kind.kv_row_bytes(given.shapes)
    return total


def hbm_budget(lines: tuple[BudgetLine, ...], limit: int) -> HbmBudget:
    """The lines summed by their parts, against the memory of one core."""
    parts = dict.fromkeys(("weights", "kv", "scratch", "code", "runtime"), 0)
    for line in lines:
        parts[line.part] += line.bytes
    return HbmBudget(**parts, total=sum(parts.values()), limit=limit)


def graph_memory(given: DeviceInputs) -> tuple[GraphMemory, ...]:
    """What each graph takes beside weights and KV; graphs of a core do not run at once, so only the largest one's
    activations count."""
    if given.recipe.name == "vllm":
        return ()
    estimates, shapes = given.sdk.stack.estimates, given.shapes
    rows = {} if given.recipe.prefill == "host" else {f"prefill_{n}": n for n in shapes.prefill_buckets}
    return tuple(
        GraphMemory(
            graph=name,
            activations=activation_bytes(given, length, shapes.kv_length),
            logits=logit_bytes(given),
            spill=estimates.spill_per_graph.bytes,
            code=estimates.code_per_layer.bytes * given.layers,
        )
        for name, length in {**rows, "decode": 1}.items()
    )


def logit_bytes(given: DeviceInputs) -> int:
    """Logits of each stream's last row in fp32."""
    return given.shapes.batch * given.architecture.vocab_size * 4


def activation_bytes(given: DeviceInputs, length: int, kv_length: int) -> int:
    """Activations alive at once in a graph of ``length`` rows a stream: the residual with its norms, one layer's widest part
    (attention scores in fp32, or both MLP branches), and the rows of the PLE table."""
    architecture, rows = given.architecture, given.shapes.batch * length
    item = ITEM_BYTES[given.division.dtype]
    widest = 0
    for kind in given.kinds:
        layer = kind.layer
        heads = (layer.attention.local_q_heads + 2 * layer.attention.local_kv_heads) * layer.head_dim
        keys = kv_length if kind.slot.layout == "linear" else min(kind.kv_rows(kv_length) + length, kv_length)
        scores = layer.attention.local_q_heads * keys * 4
        mlp = 2 * layer.mlp.local_intermediate * item
        if layer.moe:
            mlp += 2 * layer.moe.local_experts * layer.moe.local_intermediate * item
        widest = max(widest, heads * item + scores, mlp)
    ple = architecture.layers * architecture.ple.width * item if architecture.ple else 0
    return rows * (4 * architecture.hidden_size * item + ple + widest)


def maximum_context(given: DeviceInputs, hbm: HbmBudget) -> MaximumContext:
    """The longest KV, in steps of the largest prefill bucket or of a serving stack's page, that fits with all else as
    planned; no less than the plan's own where that fits."""
    shapes, serving = given.shapes, given.sdk.stack.estimates.serving
    step = serving.page_tokens if serving else shapes.prefill_buckets[-1]
    most = given.architecture.max_positions // step

    def growing(kv_length: int) -> int:
        """The bytes that depend on the length."""
        held = sum(kind.owners * kind.kv_rows(kv_length) * kind.kv_row_bytes(shapes) for kind in given.kinds)
        more = serving_pages(given, kv_length) if serving else activation_bytes(given, step, kv_length)
        return held * given.copies + more

    room = hbm.limit - hbm.total + growing(shapes.kv_length)
    low, high = 0, most  # low fits, or is nothing; what is above high is out of reach
    while low < high:
        middle = (low + high + 1) // 2
        if growing(middle * step) <= room:
            low = middle
        else:
            high = middle - 1
    fits = hbm.total <= hbm.limit
    tokens = max(low * step, shapes.kv_length if fits else 0)
    return MaximumContext(tokens=tokens, step=step, limited_by="positions" if low == most else "memory")

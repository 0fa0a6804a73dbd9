"""Decisions that follow from the model's structure, and what a reader should know about the result."""

from __future__ import annotations

from collections.abc import Sequence

from gemma4cfg.architecture.model import LAYER_TYPES, Architecture, layer_facts
from gemma4cfg.config.target import GIB, Target
from gemma4cfg.findings import Finding
from gemma4cfg.plan.bytes import ITEM_BYTES
from gemma4cfg.plan.reasons import Reason
from gemma4cfg.plan.records import Budget, Decision, Layer, Shapes, TurnedDown
from gemma4cfg.planner.division import Division
from gemma4cfg.planner.heads import HeadLayout
from gemma4cfg.planner.kv import kv_length_of
from gemma4cfg.runs import index_runs


def structure_decisions(architecture: Architecture, division: Division, served: bool) -> tuple[Decision, ...]:
    """KV sharing, what V is made of, the layout of the cache, and how a long prompt is run. ``served``: by a stack of its
    own, which decides the last two."""
    layers, shapes = layer_facts(architecture), division.shapes
    owners: dict[int, list[int]] = {}
    for layer in layers:
        if layer.borrows:
            owners.setdefault(layer.owner, []).append(layer.index)
    shared = "; ".join(f"layer {owner} is read by {index_runs(readers)}" for owner, readers in owners.items())
    slots = sum(not layer.borrows for layer in layers)
    decisions = [
        Decision(
            "kv.sharing",
            "owner",
            (),
            Reason.ARCHITECTURE,
            f"{slots} slots for {len(layers)} layers{'; ' + shared if shared else ''}; only owners write",
        )
    ]
    doubled = [layer.index for layer in layers if layer.value_source == "k_proj"]
    if doubled:
        detail = f"layers {index_runs(doubled)}: V is k_proj's output before k_norm and rotary; K and V are kept apart"
        decisions.append(Decision("kv.value_source", "k_proj", (), Reason.ARCHITECTURE, detail))
    reason = Reason.STACK_OF_TARGET if served else Reason.REQUESTED
    other = "ring" if shapes.kv_layout == "linear" else "linear"
    lengths = ", ".join(f"{name}: {length} rows" for name, length in _lengths(architecture, shapes).items())
    decisions.append(
        Decision(
            "kv.layout",
            shapes.kv_layout,
            () if served else (TurnedDown(other, Reason.NOT_REQUESTED, ""),),
            reason,
            f"{lengths}; {division.kv_per_token:,} bytes a token and rank; {_kv_bytes(architecture, division)}",
        )
    )
    longest = shapes.prefill_buckets[-1]
    chunking = (
        f"a prompt over {longest} tokens runs in chunks, each attending to the cache"
        if shapes.prompt_chunking
        else f"a prompt over {longest} tokens is refused"
    )
    decisions.append(Decision("prompt_chunking", shapes.prompt_chunking, (), reason, chunking))
    return tuple(decisions)


def structure_findings(
    layers: Sequence[Layer], layouts: Sequence[HeadLayout], tp: int, target: Target, budget: Budget, swap_gib: int
) -> tuple[Finding, ...]:
    """Idle ranks, ragged cuts, little memory left, and a host too small for its part. ``swap_gib``: swap that it has."""
    findings = []
    for kind in LAYER_TYPES:
        idle = next((layouts[layer.index].idle_ranks for layer in layers if layer.type == kind), 0)
        first = next((layer.index for layer in layers if layer.type == kind), None)
        if idle:
            message = f"{idle} of {tp} ranks hold only padding in the attention of {kind} layers"
            findings.append(
                Finding("warning", "idle_ranks", first, message, "a TP degree that divides the query heads")
            )
    known = target.chip.tensor_parallel
    if known and tp not in known.degrees:
        message = f"tp={tp} is not among the degrees published for {target.chip.name}: {known.degrees} ({known.source})"
        findings.append(Finding("warning", "tensor_parallel_degree", None, message, "one of them"))
    findings += _ragged(layers)
    findings += _headroom(budget)
    host, swap = budget.host, swap_gib * GIB
    if host.swap > swap:
        message = f"loading peaks at {host.load_peak / GIB:.1f} GiB of host memory, {target.name} has {target.host_memory_gib}"
        fix = f"{host.swap / GIB:.1f} GiB of swap or more, and swap_gib={-(-host.swap // GIB)} to say so"
        findings.append(Finding("warning", "host_swap", None, message, fix))
    if not host.can.compile:
        message = (
            f"compiling peaks at about {host.compile_peak / GIB:.1f} GiB of host memory, {target.name} has "
            f"{target.host_memory_gib} and {swap_gib} of swap"
        )
        where = f"compile on {host.compile_on}" if host.compile_on else "no known machine with this chip has enough"
        fix = (
            f"{where}, or {host.compile_swap / GIB:.1f} GiB of swap (swap_gib={-(-host.compile_swap // GIB)} to say so)"
        )
        findings.append(Finding("warning", "host_compile", None, message, fix))
    return tuple(findings)


def _headroom(budget: Budget) -> list[Finding]:
    """A warning where the plan would not fit if what is estimated came out twice as large."""
    hbm = budget.hbm_per_rank
    left, estimated = hbm.limit - hbm.total, hbm.scratch + hbm.code
    if not 0 <= left < estimated:
        return []
    message = f"{left:,} bytes a core are left, and {estimated:,} of those counted are estimates (scratch and code)"
    return [Finding("warning", "little_headroom", None, message, "a smaller shapes.kv_length or a higher tp")]


def _kv_bytes(architecture: Architecture, division: Division) -> str:
    """What either layout takes of a rank."""
    length, totals = division.shapes.kv_length, {"linear": 0, "ring": 0}
    for layer, slot in zip(layer_facts(architecture), division.slots, strict=True):
        if slot.shape is not None:
            batch, heads, _, head_dim = slot.shape
            row = 2 * batch * heads * head_dim * ITEM_BYTES[division.shapes.kv_dtype]
            totals["linear"] += row * length
            totals["ring"] += row * min(layer.attention.window or length, length)
    return f"{', '.join(f'{layout} {size:,}' for layout, size in totals.items())} bytes a rank"


def _lengths(architecture: Architecture, shapes: Shapes) -> dict[str, int]:
    return {layer.type: kv_length_of(layer, shapes) for layer in layer_facts(architecture)}


def _ragged(layers: Sequence[Layer]) -> list[Finding]:
    """Local widths that do not fill the 128 partitions of a core."""
    widths: dict[str, int] = {}
    for layer in layers:
        widths.setdefault(f"mlp {layer.mlp.intermediate}", layer.mlp.local_intermediate)
        if layer.moe:
            widths.setdefault(f"experts {layer.moe.intermediate}", layer.moe.local_intermediate)
    return [
        Finding("info", "alignment", None, f"{name}: {width} a rank is no multiple of 128", "")
        for name, width in widths.items()
        if width % 128
    ]

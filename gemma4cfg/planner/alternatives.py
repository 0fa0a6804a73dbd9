"""Options that are open on this plan, each with its predicted figures, so that a person can look before they compile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gemma4cfg.plan.bytes import ITEM_BYTES
from gemma4cfg.plan.records import Alternative, Layer
from gemma4cfg.planner.device_memory import DeviceInputs, device_lines, hbm_budget
from gemma4cfg.planner.implementation import fused_working_set
from gemma4cfg.planner.on_chip import keys_of

MATRIX_ROWS = 128
"""Rows of the systolic array that one matrix product can fill."""


def alternatives(device: DeviceInputs, layers: tuple[Layer, ...], tp: int) -> tuple[Alternative, ...]:
    """Eager or fused attention, the experts' partition, and where trace's graphs lie. Nothing on a stack that serves by
    itself."""
    if device.recipe.name == "vllm":
        return ()
    return (
        *_attention(device, layers[0].attention.implementation),
        *_experts(layers[0], tp),
        *_placement(device),
    )


def _attention(device: DeviceInputs, taken: str) -> Iterator[Alternative]:
    """Eager attention writes scores and probabilities of the largest prefill to memory and reads them again."""
    shapes, item = device.shapes, ITEM_BYTES[device.division.dtype]
    bucket = shapes.prefill_buckets[-1]
    passed = sum(
        kind.count
        * kind.layer.attention.local_q_heads
        * shapes.batch
        * bucket
        * keys_of(kind, shapes.kv_length, bucket)
        * 2
        * (4 + item)
        for kind in device.kinds
    )
    chip = device.target.chip
    limit = float(chip.sbuf.bytes_per_partition) if chip.sbuf else 0.0
    eager = max(keys_of(kind, shapes.kv_length, bucket) * 4 for kind in device.kinds)
    fused = fused_working_set(device.architecture, shapes, device.division.dtype)
    for option, moved, row in (("eager", passed, eager), ("sdpa", 0, fused)):
        figures = {
            "prefill_score_bytes": float(moved),
            "prefill_score_ms_floor": _round(1e3 * moved / device.target.bandwidth_per_core),
            "bytes_per_partition": float(row),
            "limit": limit,
        }
        yield Alternative("attention.implementation", option, option == taken, figures)


def _experts(layer: Layer, tp: int) -> Iterator[Alternative]:
    """Both read the same bytes; a slice of every expert fills fewer rows of the systolic array than a whole expert."""
    moe = layer.moe
    if moe is None:
        return
    widths = {"intermediate": -(-moe.intermediate // tp), "experts": moe.intermediate}
    for option, width in widths.items():
        if option == "experts" and moe.experts % tp:
            continue
        figures = {
            "experts_on_a_rank": float(moe.experts if option == "intermediate" else moe.experts // tp),
            "intermediate_on_a_rank": float(width),
            "array_rows_filled": _round(width / (-(-width // MATRIX_ROWS) * MATRIX_ROWS)),
        }
        yield Alternative("moe.partition", option, option == moe.partition, figures)


def _placement(device: DeviceInputs) -> Iterator[Alternative]:
    """trace's graphs own their weights: on one core they lie there together, on a core each they take two."""
    if device.recipe.name != "trace":
        return
    prefills = len(device.shapes.prefill_buckets)
    for option, graphs in (("core_each", prefills), ("one_core", prefills + 1)):
        lines = device_lines(replace(device, copies=graphs, graphs_on_core=graphs))
        hbm = hbm_budget(lines, device.target.hbm_bytes_per_core)
        figures = {
            "cores": 2.0 if option == "core_each" else 1.0,
            "graphs_on_core": float(graphs),
            "bytes_on_core": float(hbm.total),
            "limit": float(hbm.limit),
        }
        yield Alternative("recipe.placement", option, option == device.recipe.placement, figures)


def _round(value: float) -> float:
    """Six significant digits."""
    return float(f"{value:.6g}")

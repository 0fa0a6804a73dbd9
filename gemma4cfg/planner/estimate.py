"""How fast it may be: bytes over bandwidth at the efficiency that published ports reach. Always a range."""

from __future__ import annotations

from gemma4cfg.config.target import Target
from gemma4cfg.plan.bytes import ITEM_BYTES
from gemma4cfg.plan.records import BytesPerToken, Estimate, Span
from gemma4cfg.planner.division import Division


def plan_estimate(division: Division, target: Target) -> Estimate:
    """Decode reads the weights once a step for all streams, and all of the KV: the slowest it gets."""
    shapes, dtype = division.shapes, division.dtype
    read, step = division.weights_read, division.weights_read + division.kv
    share, chip = target.chip.bandwidth_efficiency, target.chip
    decode = {
        side: shapes.batch * target.bandwidth_per_core * efficiency / step
        for side, efficiency in (("low", share.low), ("high", share.high))
    }
    rows = shapes.batch * shapes.prefill_buckets[-1]
    elements = read / ITEM_BYTES[dtype]
    compute = 2 * elements * rows / (target.tflops_per_core(dtype) * 1e12)
    floor = max(read / target.bandwidth_per_core, compute)
    prefill = chip.prefill_efficiency
    return Estimate(
        decode_tokens_per_s=Span(_round(decode["low"]), _round(decode["high"])),
        prefill_ms=Span(_round(1e3 * floor / prefill.high), _round(1e3 * floor / prefill.low)),
        bytes_per_token_per_rank=BytesPerToken(weights=read, kv=division.kv_per_token),
        basis=(
            f"decode: {step:,} bytes a step (weights, and KV at full length) over {share.low:.3g}-{share.high:.3g} of "
            f"{target.bandwidth_per_core:,} bytes/s a core ({share.source}). prefill of {rows} rows: the larger of bytes and "
            f"operations over the chip's limits, at {prefill.low:.3g}-{prefill.high:.3g} of them ({prefill.source})"
        ),
    )


def _round(value: float) -> float:
    """Six significant digits."""
    return float(f"{value:.6g}")

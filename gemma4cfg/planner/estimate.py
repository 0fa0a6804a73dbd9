"""How fast it may be: bytes over bandwidth at the efficiency that published ports reach. Always a range."""

from __future__ import annotations

from gemma4cfg.config.schema import Recipe
from gemma4cfg.config.sdk import Sdk
from gemma4cfg.config.target import Target
from gemma4cfg.plan.bytes import ITEM_BYTES
from gemma4cfg.plan.records import BytesPerToken, Estimate, Span
from gemma4cfg.planner.division import GATHERED, Division


def plan_estimate(division: Division, target: Target, recipe: Recipe, sdk: Sdk) -> Estimate:
    """Decode reads the weights once a step for all streams, and all of the KV: the slowest it gets."""
    step = division.weights_read + division.kv
    share = target.chip.bandwidth_efficiency
    rate = division.shapes.batch * target.bandwidth_per_core / step
    prefill, basis = _host_prefill(division, sdk) if recipe.prefill == "host" else _prefill(division, target)
    return Estimate(
        decode_tokens_per_s=Span(_round(rate * share.low), _round(rate * share.high)),
        prefill_ms=prefill,
        bytes_per_token_per_rank=BytesPerToken(weights=division.weights_read, kv=division.kv_per_token),
        basis=(
            f"decode: {step:,} bytes a step (weights, and KV at full length) over {share.low:.3g}-{share.high:.3g} of "
            f"{target.bandwidth_per_core:,} bytes/s a core ({share.source}). {basis}"
        ),
    )


def _prefill(division: Division, target: Target) -> tuple[Span, str]:
    """Milliseconds of the largest bucket: the tighter of the chip's two limits, at the share of it that ports reach."""
    rows = division.shapes.batch * division.shapes.prefill_buckets[-1]
    operations = 2 * division.weights_read / ITEM_BYTES[division.dtype] * rows
    compute = operations / (target.tflops_per_core(division.dtype) * 1e12)
    floor = 1e3 * max(division.weights_read / target.bandwidth_per_core, compute)
    share = target.chip.prefill_efficiency
    return Span(_round(floor / share.high), _round(floor / share.low)), (
        f"prefill of {rows} rows: the larger of bytes and operations over the chip's limits, at {share.low:.3g}-"
        f"{share.high:.3g} of them ({share.source})"
    )


def _host_prefill(division: Division, sdk: Sdk) -> tuple[Span, str]:
    """Milliseconds of a prompt on the host, whose float32 weights are gone through once."""
    rates = sdk.stack.estimates.host_prefill
    assert rates is not None, "only a stack with such a recipe has a prompt on the host"
    elements = sum(
        tensor.facts.elements
        for tensor in division.placed.values()
        if tensor.home != "unused" and tensor.facts.role not in GATHERED
    )
    low, high = 4e3 * elements / rates.high, 4e3 * elements / rates.low
    return Span(_round(low), _round(high)), f"prefill on the host in float32: {4 * elements:,} bytes ({rates.source})"


def _round(value: float) -> float:
    """Six significant digits."""
    return float(f"{value:.6g}")

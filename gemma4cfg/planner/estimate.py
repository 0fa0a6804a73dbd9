"""How fast it may be, what it costs and how long it compiles: floors by the chip's limits, and ranges at the efficiency that
published runs of this stack reach. Always a range with its basis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gemma4cfg.architecture.model import Architecture
from gemma4cfg.config.schema import Recipe
from gemma4cfg.config.sdk import Sdk
from gemma4cfg.config.speeds import Speeds
from gemma4cfg.config.target import Price, Target
from gemma4cfg.plan.records import Alternative, BytesPerToken, Costs, Estimate, Floors, Shapes, Span
from gemma4cfg.planner.division import GATHERED, Division
from gemma4cfg.planner.kinds import LayerKind
from gemma4cfg.planner.traffic import PLANNED, Edges, Traffic, decode_traffic, prefill_traffic


@dataclass(frozen=True, slots=True)
class EstimateInputs:
    architecture: Architecture
    division: Division
    kinds: tuple[LayerKind, ...]
    tp: int
    target: Target
    recipe: Recipe
    sdk: Sdk

    @property
    def shapes(self) -> Shapes:
        return self.division.shapes

    @property
    def speeds(self) -> Speeds:
        return self.sdk.stack.estimates.speeds_on(self.target.chip.name)


def plan_estimate(given: EstimateInputs, alternatives: tuple[Alternative, ...]) -> Estimate:
    """Floors, ranges and costs of a plan."""
    division, shapes = given.division, given.shapes
    decode = decode_traffic(given.architecture, division, given.kinds, given.tp)
    longest = _prefill_traffic(given, shapes.prefill_buckets[-1], PLANNED)
    rate = decode_span(given)
    buckets = {str(bucket): prefill_span(given, bucket) for bucket in shapes.prefill_buckets}
    price = given.target.price
    return Estimate(
        decode_tokens_per_s=rate,
        prefill_ms=buckets[str(shapes.prefill_buckets[-1])],
        bytes_per_token_per_rank=BytesPerToken(weights=division.weights_read, kv=division.kv_per_token),
        basis=_basis(given, decode),
        floors=Floors(_round(1e3 * floor_seconds(given, decode)), _round(1e3 * floor_seconds(given, longest))),
        prefill_ms_by_bucket=buckets,
        compile_s=compile_span(given),
        usd_per_million_tokens=Costs(_cost(price.on_demand, rate), _cost(price.spot, rate)),
        alternatives=alternatives,
    )


def floor_seconds(given: EstimateInputs, traffic: Traffic) -> float:
    """The larger of bytes and operations over the chip's limits, and the collectives' latency and bytes."""
    memory = (traffic.weights + traffic.kv) / given.target.bandwidth_per_core
    compute = traffic.operations / (given.target.tflops_per_core(given.division.dtype) * 1e12)
    return max(memory, compute) + _collective_seconds(given, traffic)


def decode_span(given: EstimateInputs, edges: Edges = PLANNED) -> Span:
    """Tokens a second of all streams together."""
    traffic = decode_traffic(given.architecture, given.division, given.kinds, given.tp, edges)
    fixed = _collective_seconds(given, traffic) + traffic.host_bytes * given.speeds.host_byte.seconds
    read = (traffic.weights + traffic.kv) / given.target.bandwidth_per_core
    share = given.speeds.bandwidth
    low, high = (given.shapes.batch / (read / part + fixed) for part in (share.low, share.high))
    return Span(_round(low), _round(high))


def prefill_span(given: EstimateInputs, bucket: int, edges: Edges = PLANNED) -> Span:
    """Milliseconds of one prompt of ``bucket`` tokens in every stream."""
    if given.recipe.prefill == "host":
        return _host_prefill(given)
    traffic = _prefill_traffic(given, bucket, edges)
    fit = given.speeds.prefill
    memory = (traffic.weights + traffic.kv) / (given.target.bandwidth_per_core * given.speeds.bandwidth.middle)
    peak = given.target.tflops_per_core(given.division.dtype) * 1e12
    compute, least = traffic.operations / (peak * fit.compute_share), fit.seconds_per_layer * given.architecture.layers
    crossing = traffic.host_bytes * given.speeds.host_byte.seconds
    seconds = max(memory, compute, least) + _collective_seconds(given, traffic) + crossing
    return Span(_round(1e3 * seconds / fit.factor), _round(1e3 * seconds * fit.factor))


def compile_span(given: EstimateInputs) -> Span | None:
    """Seconds to compile every graph of the plan, one after another; null where nothing is compiled ahead."""
    if given.speeds.compile is None:
        return None
    return compile_seconds(given, (1,) if given.recipe.prefill == "host" else (*given.shapes.prefill_buckets, 1))


def compile_seconds(given: EstimateInputs, rows: Sequence[int]) -> Span:
    """Seconds to compile a graph for each number of rows."""
    fit = given.speeds.compile
    assert fit is not None, "a stack that compiles"
    layers = given.architecture.layers
    seconds = sum(layers * (fit.seconds_per_layer + fit.seconds_per_layer_and_row * length) for length in rows)
    return Span(_round(seconds / fit.factor), _round(seconds * fit.factor))


def _prefill_traffic(given: EstimateInputs, bucket: int, edges: Edges) -> Traffic:
    """A graph is padded to its bucket and its whole KV; a stack that serves by itself goes through the prompt's own keys."""
    length = edges.prompt or bucket
    held = length if given.sdk.stack.estimates.serving else given.shapes.kv_length
    return prefill_traffic(given.architecture, given.division, given.kinds, given.tp, length, held, edges)


def _collective_seconds(given: EstimateInputs, traffic: Traffic) -> float:
    return traffic.collectives * given.speeds.collective.seconds + traffic.ring_bytes / given.target.link_per_core


def _host_prefill(given: EstimateInputs) -> Span:
    """Milliseconds of a prompt on the host, whose float32 weights are gone through once."""
    rates = given.speeds.host_prefill
    assert rates is not None, "only a stack with such a recipe has a prompt on the host"
    elements = sum(
        tensor.facts.elements
        for tensor in given.division.placed.values()
        if tensor.home != "unused" and tensor.facts.role not in GATHERED
    )
    return Span(_round(4e3 * elements / rates.high), _round(4e3 * elements / rates.low))


def _cost(price: Price | None, rate: Span) -> Span | None:
    """US dollars per million decoded tokens: the whole machine paid for one copy of the model."""
    if price is None:
        return None
    low, high = (price.usd_per_hour / 3600 / tokens * 1e6 for tokens in (rate.high, rate.low))
    return Span(_round(low), _round(high))


def _basis(given: EstimateInputs, decode: Traffic) -> str:
    speeds, target = given.speeds, given.target
    share, fit, compiling = speeds.bandwidth, speeds.prefill, speeds.compile
    text = (
        f"decode: {decode.weights + decode.kv:,} bytes a step (weights, and KV at full length) over {share.low:.3g}-"
        f"{share.high:.3g} of {target.bandwidth_per_core:,} bytes/s a core ({share.source}); {decode.collectives} collectives "
        f"of {1e6 * speeds.collective.seconds:.3g} us ({speeds.collective.source}); {decode.host_bytes:,} bytes across at "
        f"{1e9 * speeds.host_byte.seconds:.3g} ms a MB ({speeds.host_byte.source}). "
    )
    if given.recipe.prefill == "host" and speeds.host_prefill:
        text += f"prefill on the host in float32 ({speeds.host_prefill.source})"
    else:
        text += (
            f"prefill: the largest of bytes at the middle of that share, operations at {fit.compute_share:.3g} of the peak "
            f"and {1e3 * fit.seconds_per_layer:.3g} ms a layer, then collectives and what crosses; within {fit.factor:.4g} "
            f"either way ({fit.source})"
        )
    if compiling:
        text += (
            f". compile: {compiling.seconds_per_layer:.3g} s a layer and graph, {compiling.seconds_per_layer_and_row:.3g} s "
            f"a layer and row, within {compiling.factor:.4g} either way ({compiling.source})"
        )
    return text


def _round(value: float) -> float:
    """Six significant digits."""
    return float(f"{value:.6g}")

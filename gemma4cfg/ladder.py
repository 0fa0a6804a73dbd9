"""Prefill buckets for a distribution of prompt lengths: ``python -m gemma4cfg.ladder --lengths 40:3,200:5,900 model=31b tp=8``.

Every further bucket saves padding and costs a graph: minutes to compile, and instructions and spill on the device.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from gemma4cfg.config.compose import load_config
from gemma4cfg.config.schema import Config
from gemma4cfg.errors import ConfigError, PlanError, UserError
from gemma4cfg.plan.records import Plan, Span
from gemma4cfg.planner.build import build_plan
from gemma4cfg.views.console import forgive_streams

SMALLEST_BUCKET = 16
MOST_BUCKETS = 4


@dataclass(frozen=True, slots=True)
class Ladder:
    """``prefill_ms`` is the mean over the prompts, ``padding`` the share of all rows that hold no token, ``compile_s`` and
    ``bytes_per_rank`` what all graphs take. ``context`` is the plan's longest."""

    buckets: tuple[int, ...]
    prefill_ms: Span
    padding: float
    compile_s: Span | None
    bytes_per_rank: int
    context: int


def ladders(config: Config, lengths: Mapping[int, float]) -> tuple[tuple[Ladder, ...], PlanError | None]:
    """The quickest ladder of each number of buckets, from one to ``MOST_BUCKETS``, all on one machine; powers of two that
    hold every prompt. They end where one more bucket does not fit, with its refusal.

    Raises ConfigError for a length that the plan's KV does not hold and for a plan without prefill graphs, PlanError where
    not even one bucket fits.
    """
    longest = max(lengths)
    if longest > config.settings.shapes.kv_length:
        raise ConfigError(
            f"--lengths: {longest} tokens do not fit shapes.kv_length={config.settings.shapes.kv_length}; e.g. "
            f"shapes.kv_length={_power(longest)}"
        )
    largest = min(_power(longest), config.settings.shapes.kv_length)
    choices = [size for size in _powers(largest) if size < largest]
    whole = _plan(config, (largest,))
    _refuse_without_graphs(whole)
    here = replace(config, targets=tuple(target for target in config.known_targets if target.name == whole.target))
    times = {size: _plan(here, (size,)).estimate.prefill_ms for size in choices} | {largest: whole.estimate.prefill_ms}
    found: list[Ladder] = []
    for count in range(min(MOST_BUCKETS, len(choices) + 1)):
        options = [(*few, largest) for few in combinations(choices, count)]
        best = min(options, key=lambda buckets: _mean(lengths, buckets, times).high)
        try:
            plan = _plan(here, best)
        except PlanError as error:  # what a graph takes beside the largest does not depend on its bucket
            return tuple(found), error
        rows = sum(weight * _bucket(length, best) for length, weight in lengths.items())
        tokens = sum(weight * length for length, weight in lengths.items())
        found.append(
            Ladder(
                buckets=best,
                prefill_ms=_mean(lengths, best, times),
                padding=1 - tokens / rows,
                compile_s=plan.estimate.compile_s,
                bytes_per_rank=sum(graph.code + graph.spill for graph in plan.budget.graphs),
                context=plan.budget.maximum_context.tokens,
            )
        )
    return tuple(found), None


def _refuse_without_graphs(plan: Plan) -> None:
    if any(graph.name.startswith("prefill") for graph in plan.graphs):
        return
    why = (
        "vLLM cuts prompts into chunks by itself; choose a Neuron machine, e.g. target=inf2.xlarge"
        if plan.recipe == "vllm"
        else "the prompt runs on the host; e.g. recipe.prefill=device"
    )
    raise ConfigError(f"{plan.model} by {plan.recipe} on {plan.target} has no prefill graphs, and no buckets: {why}")


def _plan(config: Config, buckets: tuple[int, ...]) -> Plan:
    shapes = replace(config.settings.shapes, prefill_buckets=buckets)
    return build_plan(replace(config, settings=replace(config.settings, shapes=shapes)))


def _mean(lengths: Mapping[int, float], buckets: Sequence[int], times: Mapping[int, Span]) -> Span:
    total = sum(lengths.values())
    spans = [(weight / total, times[_bucket(length, buckets)]) for length, weight in lengths.items()]
    return Span(sum(share * span.low for share, span in spans), sum(share * span.high for share, span in spans))


def _bucket(length: int, buckets: Sequence[int]) -> int:
    return next(bucket for bucket in buckets if bucket >= length)


def _power(length: int) -> int:
    return max(SMALLEST_BUCKET, 1 << (length - 1).bit_length())


def _powers(largest: int) -> list[int]:
    sizes = [SMALLEST_BUCKET]
    while sizes[-1] * 2 <= largest:
        sizes.append(sizes[-1] * 2)
    return sizes


def parse_lengths(text: str) -> dict[int, float]:
    """``40:3,200:5,900``: tokens, and how often (once where nothing is said). Raises ConfigError for anything else."""
    lengths: dict[int, float] = {}
    for part in text.split(","):
        tokens, _, weight = part.partition(":")
        try:
            length, times = int(tokens), float(weight or 1)
        except ValueError as error:
            raise ConfigError(
                f"--lengths={text}: {part!r} is no LENGTH:WEIGHT; e.g. --lengths 40:3,200:5,900"
            ) from error
        if length < 1 or not 0 < times < float("inf"):
            raise ConfigError(f"--lengths={text}: {part!r} must be above 0; e.g. --lengths 40:3,200:5,900")
        lengths[length] = lengths.get(length, 0.0) + times
    return lengths


def main(arguments: list[str] | None = None) -> int:
    """0; 2 where the configuration or a length is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m gemma4cfg.ladder", description="Prefill buckets for prompt lengths."
    )
    parser.add_argument("--lengths", required=True, help="tokens of prompts and how often: 40:3,200:5,900")
    parser.add_argument("overrides", nargs="*", help="as of python -m gemma4cfg: model=31b tp=8")
    given = parser.parse_args(arguments)
    try:
        found, refused = ladders(load_config(given.overrides), parse_lengths(given.lengths))
    except UserError as error:
        print(f"error {error}", file=sys.stderr)
        return 2
    for ladder in found:
        compiling = (
            f"{ladder.compile_s.low / 60:.0f}-{ladder.compile_s.high / 60:.0f} min to compile, "
            if ladder.compile_s
            else ""
        )
        print(
            f"shapes.prefill_buckets=[{','.join(map(str, ladder.buckets))}]: prefill {ladder.prefill_ms.low:.3g}-"
            f"{ladder.prefill_ms.high:.3g} ms, padding {ladder.padding:.0%}, {compiling}{ladder.bytes_per_rank:,} bytes of "
            f"graphs a rank, context up to {ladder.context:,}"
        )
    if refused:
        print(f"one bucket more: {refused}")
    return 0


if __name__ == "__main__":
    forgive_streams()
    sys.exit(main())

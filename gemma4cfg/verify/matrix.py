"""Many plans instead of one: a covering array of what a plan can be, or all of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, product
from typing import Any, Literal

from gemma4cfg.config.compose import load_config
from gemma4cfg.config.schema import Config, MoeChoice
from gemma4cfg.errors import ConfigError, PlanError
from gemma4cfg.plan.records import Plan
from gemma4cfg.planner.build import build_plan

MODELS = ("e2b", "e4b", "12b", "26b-a4b", "31b")
DEGREES = (1, 2, 4, 8, 12)
"""12 divides no model's heads: they are padded."""

BUCKETS = (512, 1024)

Feature = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Case:
    """A plan by its overrides; ``features`` are what it exhibits, e.g. ``("attention", "group")``."""

    overrides: tuple[str, ...]
    features: tuple[Feature, ...]
    cost: int

    @property
    def pairs(self) -> frozenset[tuple[Feature, Feature]]:
        """Features of different axes that meet in it."""
        return frozenset((a, b) for a, b in combinations(sorted(self.features), 2) if a[0] != b[0])


def cases(models: Sequence[str], extent: Literal["covering", "full"]) -> tuple[Case, ...]:
    """The whole product, or so many of it that every pair of features that meets anywhere meets in one of them."""
    every = every_case(tuple(models))
    return every if extent == "full" else covering(every)


@cache
def every_case(models: tuple[str, ...]) -> tuple[Case, ...]:
    """Every plan that is possible, each once: where a policy changes nothing it is not asked for."""
    found: dict[str, Case] = {}
    for model in models:
        base = load_config([f"model={model}"])
        for choices in _choices(base):
            try:
                plan = _fitting(_chosen(base, choices))
            except ConfigError:
                continue  # whole experts that TP does not divide
            shortened = (f"model.layers={len(plan.layers)}",) if len(plan.layers) < base.model.layers else ()
            overrides = (f"model={model}", *(f"{key}={value}" for key, value in choices.items()), *shortened)
            case = Case(overrides, (("model", model), *_features(plan)), plan.tp * len(plan.layers))
            found.setdefault(plan.plan_id, case)
    return tuple(found.values())


def _choices(base: Config) -> Iterator[dict[str, str]]:
    """Override keys and values."""
    partitions = ("intermediate", "experts") if base.model.moe else (None,)
    for tp, policy, partition, layout, chunking in product(
        DEGREES, ("auto", "replicate"), partitions, ("linear", "ring"), ("true", "false")
    ):
        yield {
            "tp": str(tp),
            "attention.policy": policy,
            **({"moe.partition": partition} if partition else {}),
            "shapes.kv_layout": layout,
            "shapes.prompt_chunking": chunking,
            "shapes.prefill_buckets": f"[{','.join(map(str, BUCKETS))}]",
        }


def _chosen(base: Config, choices: Mapping[str, Any]) -> Config:
    """What the overrides would compose to, without composing."""
    settings = base.settings
    shapes = replace(
        settings.shapes,
        prefill_buckets=BUCKETS,
        kv_layout=choices["shapes.kv_layout"],
        prompt_chunking=choices["shapes.prompt_chunking"] == "true",
    )
    attention = replace(settings.attention, policy=choices["attention.policy"])
    moe = MoeChoice(choices.get("moe.partition", "auto"))
    return replace(base, settings=replace(settings, tp=int(choices["tp"]), attention=attention, moe=moe, shapes=shapes))


def _fitting(config: Config) -> Plan:
    """The plan, of half the layers (in whole repetitions of their pattern) as often as it takes to fit a machine."""
    period, layers = len(config.model.layer_pattern), config.model.layers
    while True:
        try:
            return build_plan(config)
        except PlanError:
            layers = layers // 2 // period * period
            config = replace(config, model=replace(config.model, layers=layers, name="custom"))


def covering(every: Sequence[Case]) -> tuple[Case, ...]:
    """Greedy: always the case that brings the most new pairs for what it costs."""
    missing = frozenset(pair for case in every for pair in case.pairs)
    chosen: list[Case] = []
    while missing:
        best = max(every, key=lambda case: (len(case.pairs & missing) / case.cost, case.overrides))
        chosen.append(best)
        missing -= best.pairs
    return tuple(sorted(_necessary(chosen), key=every.index))


def _necessary(chosen: Sequence[Case]) -> Iterable[Case]:
    """Without those whose pairs later choices brought as well."""
    kept = list(chosen)
    for case in chosen:
        others = frozenset(pair for other in kept if other is not case for pair in other.pairs)
        if case.pairs <= others:
            kept.remove(case)
    return kept


def _features(plan: Plan) -> tuple[Feature, ...]:
    modes = {layer.attention.mode for layer in plan.layers}
    moe = plan.layers[0].moe
    return (
        ("tp", str(plan.tp)),
        *(("attention", mode) for mode in sorted(modes)),
        *((("moe", moe.partition),) if moe else ()),
        ("kv_layout", plan.shapes.kv_layout),
        ("prefill", "chunked" if plan.shapes.prompt_chunking else "one_shot"),
    )

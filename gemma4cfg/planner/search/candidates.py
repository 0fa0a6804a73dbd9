"""The combinations of a search space, in order of preference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from gemma4cfg.config.schema import Config, SearchSpace, Settings
from gemma4cfg.config.target import Target
from gemma4cfg.planner.attention import distinct_policies
from gemma4cfg.planner.stack import choose_sdk

TARGET, TP, POLICY, MOE, LM_HEAD, PLE, OFFLOAD = (
    "target",
    "tp",
    "attention.policy",
    "moe.partition",
    "lm_head.partition",
    "ple.partition",
    "offload",
)
"""The keys of a space, as a user spells them, the most preferred machine first, then the fewest ranks, and so on."""

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Variant:
    """Everything but the machine: ``values`` by key, and the configuration with them."""

    values: Values
    rank: tuple[int, ...]
    config: Config


@dataclass(frozen=True, slots=True)
class Candidate:
    """A variant on a machine. Candidates are ordered by ``rank``, the places of their values."""

    target: Target
    variant: Variant
    rank: tuple[int, ...]

    @property
    def values(self) -> Values:
        return {TARGET: self.target.name, **self.variant.values}

    @property
    def config(self) -> Config:
        return replace(self.variant.config, targets=(self.target,))


def open_values(config: Config) -> dict[str, tuple[Any, ...]]:
    """The values of each key with more than one, in order of preference."""
    keys = {TARGET: tuple(target.name for target in config.targets), **_dimensions(_space(config))}
    return {key: values for key, values in keys.items() if len(values) > 1}


def combinations(config: Config) -> int:
    """How many there are, those that come to the same plan included."""
    count = len(config.targets)
    for values in _dimensions(_space(config)).values():
        count *= max(1, len(values))
    return count


def variants(config: Config) -> Iterator[Variant]:
    """Every combination but for the machine; of policies that come to the same plan at a TP degree the first."""
    space = _space(config)
    dimensions = {key: values for key, values in _dimensions(space).items() if values}
    same = {tp: distinct_policies(config.model, space.policies, tp) for tp in space.degrees}
    for places in product(*(range(len(values)) for values in dimensions.values())):
        values = {key: choices[place] for (key, choices), place in zip(dimensions.items(), places, strict=True)}
        if same[values[TP]][values[POLICY]] == values[POLICY]:
            settings = _settings(config.settings, space, values)
            yield Variant(values, places, replace(config, settings=settings, search=None))


def candidates_of(config: Config, variant: Variant) -> Iterator[Candidate]:
    """``variant`` on every machine. A stack that serves by itself reads no offload: there the first stands for all."""
    for place, target in enumerate(config.targets):
        first_offload = variant.values.get(OFFLOAD) in (None, *list(_space(config).offloads)[:1])
        if first_offload or choose_sdk(config.sdks, target)[0].stack.name != "vllm":
            yield Candidate(target, variant, (place, *variant.rank))


def same_policies(config: Config, candidate: Candidate) -> frozenset[str]:
    """The policies with which ``candidate`` is the same plan."""
    taken = distinct_policies(config.model, _space(config).policies, candidate.values[TP])
    return frozenset(policy for policy, first in taken.items() if first == candidate.values[POLICY])


def _space(config: Config) -> SearchSpace:
    assert config.search is not None, "only a configuration with an objective is searched"
    return config.search


def _dimensions(space: SearchSpace) -> dict[str, tuple[Any, ...]]:
    return {
        TP: space.degrees,
        POLICY: space.policies,
        MOE: space.moe_partitions,
        LM_HEAD: space.lm_head_partitions,
        PLE: space.ple_partitions,
        OFFLOAD: tuple(space.offloads),
    }


def _settings(settings: Settings, space: SearchSpace, values: Values) -> Settings:
    return replace(
        settings,
        tp=values[TP],
        attention=replace(settings.attention, policy=values[POLICY]),
        moe=replace(settings.moe, partition=values.get(MOE, settings.moe.partition)),
        lm_head=replace(settings.lm_head, partition=values[LM_HEAD]),
        ple=replace(settings.ple, partition=values.get(PLE, settings.ple.partition)),
        offload=space.offloads[values[OFFLOAD]] if OFFLOAD in values else settings.offload,
    )

"""Rows with their predictions: inside or not, and by what ratio."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import exp, log, sqrt

from gemma4cfg.architecture.inventory import inventory
from gemma4cfg.calibration.quantities import QUANTITIES
from gemma4cfg.calibration.rows import Row
from gemma4cfg.config.compose import load_config
from gemma4cfg.config.schema import Config
from gemma4cfg.config.speeds import Estimates
from gemma4cfg.errors import ConfigError, UserError
from gemma4cfg.plan.records import Span
from gemma4cfg.planner.build import too_few_cores
from gemma4cfg.planner.check import check
from gemma4cfg.planner.division import Divider
from gemma4cfg.planner.draft import Draft, draft_plan
from gemma4cfg.planner.offload import check_offload


@dataclass(frozen=True, slots=True)
class Compared:
    """A row, the stack's constants that predicted it (``speeds``: their name), and the range. A published range is inside
    where its middle is."""

    row: Row
    speeds: str
    predicted: Span

    @property
    def inside(self) -> bool:
        return self.predicted.low <= self.row.middle <= self.predicted.high

    @property
    def ratio(self) -> float:
        """Published over predicted, both by their middle; of a range of times the middle is the geometric one."""
        return self.row.middle / middle(self.predicted)


def middle(span: Span) -> float:
    return sqrt(span.low * span.high)


def compare(rows: Iterable[Row], change: Callable[[Estimates], Estimates] | None = None) -> list[Compared]:
    """Every row beside its prediction; ``change`` is applied to the stack's constants first.

    Raises ConfigError, naming file, line and row, for overrides that are no plan on one machine, and for a quantity or an
    edge that this plan does not have.
    """
    return [_compare(row, change) for row in rows]


def _compare(row: Row, change: Callable[[Estimates], Estimates] | None) -> Compared:
    try:
        config = _config(row.overrides)
        draft = _drafted(row.overrides)
    except UserError as error:
        raise ConfigError(f"{row.where}: {row.name}: {error}") from error
    _check(row, draft)
    chip, known = draft.target.chip.name, draft.sdk.stack.estimates
    if change:
        draft = _changed(config, draft, change(known))
    speeds = next(name for name, speeds in known.speeds.items() if chip in speeds.chips)
    predicted = QUANTITIES[row.quantity].predict(draft, row.edges)
    assert predicted is not None, "constants make no figure come or go"
    return Compared(row, speeds, predicted)


def _check(row: Row, draft: Draft) -> None:
    plan = f"{row.where}: {row.name}: {draft.speed.architecture.name} on {draft.target.name} ({draft.recipe.name})"
    if QUANTITIES[row.quantity].predict(draft, row.edges) is None:
        there = [name for name, quantity in QUANTITIES.items() if quantity.predict(draft, row.edges) is not None]
        raise ConfigError(f"{plan} has no quantity={row.quantity}; it has {', '.join(there)}")
    if (row.edges.prompt or row.edges.held) and not draft.sdk.stack.estimates.serving:
        raise ConfigError(
            f"{plan} is padded to its buckets and its KV whatever prompt it is given, so edges=prompt=… or held=… say "
            f"nothing of it; set shapes.prefill_buckets and shapes.kv_length in overrides"
        )


def _changed(config: Config, draft: Draft, estimates: Estimates) -> Draft:
    """The draft with other constants: speeds decide nothing, so only other ones have it made anew."""
    sdk = replace(draft.sdk, stack=replace(draft.sdk.stack, estimates=estimates))
    if replace(estimates, speeds=draft.sdk.stack.estimates.speeds) == draft.sdk.stack.estimates:
        return replace(draft, speed=replace(draft.speed, sdk=sdk))
    return draft_of(replace(config, sdks=(sdk,)))


@functools.cache
def _config(overrides: tuple[str, ...]) -> Config:
    config = load_config(overrides)
    if config.search is not None:
        raise ConfigError("a search is no run; name what was run and leave objective out")
    if len(config.targets) != 1:
        raise ConfigError("name the machine it ran on, e.g. target=inf2.8xlarge")
    (target,) = config.targets
    if config.settings.tp > target.cores:
        raise too_few_cores(config, target)
    check(config)
    check_offload(config.settings.offload, config.model)
    return config


@functools.cache
def _drafted(overrides: tuple[str, ...]) -> Draft:
    return draft_of(_config(overrides))


def draft_of(config: Config) -> Draft:
    """Every decision on the one machine, whether the plan fits it or not."""
    (target,) = config.targets
    dtypes = dict.fromkeys(inventory(config.model), config.model.checkpoint_dtype)
    return draft_plan(config, target, dtypes, Divider(config))


def geometric_mean(values: Iterable[float]) -> float:
    logs = [log(value) for value in values]
    return exp(sum(logs) / len(logs))

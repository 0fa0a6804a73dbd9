"""What each candidate comes to: a point, or why it is none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gemma4cfg.config.schema import Config, Objective
from gemma4cfg.errors import UserError
from gemma4cfg.plan.reasons import Reason
from gemma4cfg.planner.division import Divider
from gemma4cfg.planner.draft import Draft, draft_plan
from gemma4cfg.planner.fit import figures
from gemma4cfg.planner.offload import check_offload
from gemma4cfg.planner.search.candidates import TP, Candidate, Variant, candidates_of, variants
from gemma4cfg.planner.stack import cores_needed


@dataclass(frozen=True, slots=True)
class Figures:
    """What is made least. ``latency_ms``: milliseconds a token of each stream, at the low end of the estimated speed, as
    ``usd_per_million_tokens`` is (null where no price is known); ``device_bytes``: of every core that is used, each counted
    as the fullest."""

    latency_ms: float
    usd_per_million_tokens: float | None
    device_bytes: int
    tokens_per_s: float
    usd_per_hour: float | None

    @classmethod
    def of(cls, draft: Draft, tp: int) -> Figures:
        rate, cost = draft.estimate.decode_tokens_per_s.low, draft.estimate.usd_per_million_tokens.on_demand
        return cls(
            latency_ms=float(f"{1e3 * draft.division.shapes.batch / rate:.6g}"),
            usd_per_million_tokens=cost.high if cost else None,
            device_bytes=draft.budget.hbm_per_rank.on_cores(cores_needed(draft.recipe, tp)),
            tokens_per_s=rate,
            usd_per_hour=draft.target.usd_per_hour,
        )


@dataclass(frozen=True, slots=True)
class Point:
    """A candidate that fits, within the objective's bounds."""

    candidate: Candidate
    figures: Figures


@dataclass(frozen=True, slots=True)
class Miss:
    """A candidate that is none; ``error`` is what the configuration or the planner refused, if they did. ``lacking``: by how
    much, in bytes a core, dollars an hour or tokens a second. ``figures`` are of one that fits."""

    candidate: Candidate
    reason: Reason
    detail: str
    error: UserError | None = None
    lacking: float = 0.0
    figures: Figures | None = None


def measure(config: Config, dtypes: Mapping[str, str]) -> Iterator[Point | Miss]:
    """Every candidate, drafted. ``dtypes``: as for ``draft_plan``."""
    for variant in variants(config):
        try:
            check_offload(variant.config.settings.offload, config.model)
        except UserError as error:
            yield from (Miss(it, Reason.NOT_POSSIBLE, str(error), error) for it in candidates_of(config, variant))
            continue
        yield from _on_machines(config, variant, dtypes)


def _on_machines(config: Config, variant: Variant, dtypes: Mapping[str, str]) -> Iterator[Point | Miss]:
    divide, tp = Divider(variant.config), variant.values[TP]
    for candidate in candidates_of(config, variant):
        cores = candidate.target.cores
        if cores < tp:
            yield Miss(candidate, Reason.TOO_FEW_CORES, f"{cores} cores")
            continue
        try:
            draft = draft_plan(variant.config, candidate.target, dtypes, divide)
        except UserError as error:
            yield Miss(candidate, Reason.NOT_POSSIBLE, str(error), error)
            continue
        if not draft.fits:
            hbm = draft.budget.hbm_per_rank
            yield Miss(candidate, Reason.DOES_NOT_FIT, figures(draft), lacking=hbm.total - hbm.limit)
            continue
        yield _bounded(candidate, Figures.of(draft, tp), config.settings.objective)


def _bounded(candidate: Candidate, found: Figures, objective: Objective) -> Point | Miss:
    ceiling, floor, price = objective.max_usd_per_hour, objective.min_tokens_per_s, found.usd_per_hour
    if price is None and (objective.minimise == "cost" or ceiling is not None):
        return Miss(candidate, Reason.PRICE_UNKNOWN, "")
    if price is not None and ceiling is not None and price > ceiling:
        detail = f"{price} $/h of {ceiling:g}"
        return Miss(candidate, Reason.ABOVE_PRICE_CEILING, detail, lacking=price - ceiling, figures=found)
    if floor is not None and found.tokens_per_s < floor:
        detail = f"{found.tokens_per_s:.4g} tokens/s of {floor:g}"
        return Miss(candidate, Reason.BELOW_SPEED_FLOOR, detail, lacking=floor - found.tokens_per_s, figures=found)
    return Point(candidate, found)

"""A search that leaves nothing: what came nearest, and what would leave something."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import inf

from gemma4cfg.config.schema import Config
from gemma4cfg.errors import PlanError, UserError
from gemma4cfg.findings import Finding
from gemma4cfg.plan.reasons import Reason
from gemma4cfg.planner.search.candidates import combinations, open_values
from gemma4cfg.planner.search.measure import Figures, Miss
from gemma4cfg.planner.search.ranking import STAGES, words

_CEILING, _FLOOR = "objective.max_usd_per_hour", "objective.min_tokens_per_s"


def nothing_left(config: Config, misses: Sequence[Miss], unpriced: tuple[Finding, ...]) -> UserError:
    """One refusal that all ``misses`` share is that; else why they were turned down, those that came farthest
    first, and what came nearest. ``unpriced`` are findings about machines without a price."""
    errors = {str(miss.error): miss.error for miss in misses if miss.error is not None}
    if len(errors) == 1 and all(miss.error or miss.reason == Reason.TOO_FEW_CORES for miss in misses):
        return next(iter(errors.values()))
    counts = Counter(miss.reason for miss in misses)
    told = [
        f"{counts[reason]:,}: {reason.sentence}{_nearest(config, misses, reason)}"
        for reason in reversed(STAGES)
        if reason in counts
    ]
    message = (
        f"{_asked(config)}: nothing is left of {combinations(config):,} combinations for {config.model.name}; "
        f"of the {len(misses):,} that differ, {'; '.join(told)}"
    )
    fixes = [*_bounds(config, misses), *(finding.fix for finding in unpriced if finding.severity == "warning")]
    fix = "; or ".join(fixes) or "tp=auto target=auto, or a smaller shapes.kv_length"
    return PlanError(f"{message}. {fix}", (Finding("error", "nothing_left", None, message, fix), *unpriced))


def _nearest(config: Config, misses: Sequence[Miss], reason: Reason) -> str:
    """The candidate that lacks least, for a reason that has a measure or that all share."""
    alike = [miss for miss in misses if miss.reason == reason]
    nearest = min(alike, key=lambda miss: (miss.lacking, miss.candidate.rank))
    if not nearest.lacking and len(alike) < len(misses):
        return ""
    return ": ".join(filter(None, (f", nearest {_words(config, nearest)}", nearest.detail)))


def _asked(config: Config) -> str:
    """The objective and its bounds as a user spells them."""
    objective = config.settings.objective
    bounds = {_CEILING: objective.max_usd_per_hour, _FLOOR: objective.min_tokens_per_s}
    given = [f"{key}={value:g}" for key, value in bounds.items() if value is not None]
    return " ".join((f"objective={objective.minimise}", *given))


def _bounds(config: Config, misses: Sequence[Miss]) -> Iterator[str]:
    """The nearest bound with which something is left while the other is kept; both where it takes both."""
    ceiling, floor = config.settings.objective.max_usd_per_hour, config.settings.objective.min_tokens_per_s
    fitting = [(miss, miss.figures) for miss in misses if miss.figures is not None]
    fast = [it for it in fitting if floor is None or it[1].tokens_per_s >= floor]
    cheap = [it for it in fitting if ceiling is None or _price(it[1]) <= ceiling]
    if ceiling is not None and fast:
        miss, figures = min(fast, key=lambda it: _price(it[1]))
        yield f"{_CEILING}={figures.usd_per_hour} leaves {_words(config, miss)}"
    if floor is not None and cheap:
        miss, figures = max(cheap, key=lambda it: it[1].tokens_per_s)
        yield f"{_FLOOR}={figures.tokens_per_s} leaves {_words(config, miss)}"
    if fitting and not fast and not cheap:
        miss, figures = max(fitting, key=lambda it: (-_price(it[1]), it[1].tokens_per_s))
        yield f"{_CEILING}={figures.usd_per_hour} {_FLOOR}={figures.tokens_per_s} leaves {_words(config, miss)}"


def _price(figures: Figures) -> float:
    return inf if figures.usd_per_hour is None else figures.usd_per_hour


def _words(config: Config, miss: Miss) -> str:
    return words(miss, open_values(config)) or config.model.name

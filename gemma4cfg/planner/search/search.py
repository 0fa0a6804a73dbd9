"""An objective's search from end to end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from gemma4cfg.architecture.stored import Audit
from gemma4cfg.config.schema import Config, Objective
from gemma4cfg.findings import Finding
from gemma4cfg.plan.encode import to_plain
from gemma4cfg.plan.reasons import Reason
from gemma4cfg.plan.records import Decision, Plan, TurnedDown
from gemma4cfg.planner.check import check
from gemma4cfg.planner.division import Divider
from gemma4cfg.planner.draft import draft_plan
from gemma4cfg.planner.finish import finish_plan
from gemma4cfg.planner.machine import describe_machine
from gemma4cfg.planner.search.candidates import (
    LM_HEAD,
    MOE,
    OFFLOAD,
    PLE,
    POLICY,
    TARGET,
    combinations,
    open_values,
    same_policies,
)
from gemma4cfg.planner.search.measure import Figures, Miss, Point, measure
from gemma4cfg.planner.search.nothing import nothing_left
from gemma4cfg.planner.search.ranking import describe, losses, pareto_front, ranked, words

_DECIDED_BY = {MOE: "experts", LM_HEAD: "lm_head.", PLE: "ple.", POLICY: "attention.", OFFLOAD: "offload."}
"""A key of the space to how the ids of the decisions begin that it settles."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One combination: the overrides that lead to it without a search, and what it comes to."""

    overrides: str
    figures: Figures


@dataclass(frozen=True, slots=True)
class SearchResult:
    """``combinations`` were in the space, ``fitting`` of them (same plans counted once) fit within the bounds; ``lost`` has
    an entry for every value that was not chosen. ``config`` is that of the best, without an objective."""

    plan: Plan
    config: Config
    objective: Objective
    combinations: int
    fitting: int
    best: Choice
    front: tuple[Choice, ...]
    lost: tuple[TurnedDown, ...]

    def to_json(self) -> dict[str, Any]:
        """Everything but the plan and its configuration."""
        plain: dict[str, Any] = to_plain(
            {name: getattr(self, name) for name in ("objective", "combinations", "fitting", "best", "front", "lost")}
        )
        return plain


def search_plans(config: Config) -> SearchResult:
    """The best plan of the space of ``config``, whatever else there is in it.

    Raises ConfigError or PlanError where nothing is left, saying why.
    """
    objective, open_keys = config.settings.objective, open_values(config)
    assert objective.minimise is not None
    checked = check(config)
    points: list[Point] = []
    misses: list[Miss] = []
    for found in measure(config, checked.dtypes):
        points.append(found) if isinstance(found, Point) else misses.append(found)
    unpriced = _unpriced(config, points, misses)
    if not points:
        raise nothing_left(config, misses, unpriced)
    points = ranked(points, objective.minimise)
    best = points[0]
    lost = tuple(losses(best, points, misses, open_keys, same_policies(config, best.candidate), objective.minimise))
    count = combinations(config)
    decision = Decision(
        "objective",
        words(best, open_keys),
        lost,
        Reason.BEST_BY_OBJECTIVE,
        f"{objective.minimise}: {describe(best)}; {len(points):,} of {count:,} combinations fit and differ",
    )
    return SearchResult(
        plan=_plan(config, best, checked, decision, unpriced),
        config=best.candidate.config,
        objective=objective,
        combinations=count,
        fitting=len(points),
        best=Choice(words(best, open_keys), best.figures),
        front=tuple(Choice(words(point, open_keys), point.figures) for point in pareto_front(points)),
        lost=lost,
    )


def _plan(config: Config, best: Point, checked: Audit, decision: Decision, unpriced: tuple[Finding, ...]) -> Plan:
    chosen, target = best.candidate.config, best.candidate.target
    draft = draft_plan(chosen, target, checked.dtypes, Divider(chosen))
    open_keys = open_values(config)
    searched = tuple(_DECIDED_BY[key] for key in open_keys if key in _DECIDED_BY)
    draft = replace(
        draft,
        decisions=(decision, *(_by_search(it, searched) for it in draft.decisions)),
        findings=(*unpriced, *draft.findings),
    )
    reason = Reason.BEST_BY_OBJECTIVE if TARGET in open_keys else Reason.REQUESTED
    others = tuple(
        replace(it, choice=it.choice.removeprefix(f"{TARGET}="))
        for it in decision.over
        if it.choice.startswith(f"{TARGET}=")
    )
    return finish_plan(
        chosen, draft, Decision("target", target.name, others, reason, describe_machine(target)), checked
    )


def _by_search(decision: Decision, searched: tuple[str, ...]) -> Decision:
    """The planner takes a searched value for the user's: it was the search that asked."""
    asked = decision.reason == Reason.REQUESTED and decision.id.startswith(searched) if searched else False
    return replace(decision, reason=Reason.BEST_BY_OBJECTIVE) if asked else decision


def _unpriced(config: Config, points: Sequence[Point], misses: Sequence[Miss]) -> tuple[Finding, ...]:
    """Machines on which something fits and whose price nobody knows."""
    fitting = {point.candidate.target.name for point in points}
    fitting |= {miss.candidate.target.name for miss in misses if miss.reason == Reason.PRICE_UNKNOWN}
    names = [target.name for target in config.targets if target.usd_per_hour is None and target.name in fitting]
    if not names:
        return ()
    decisive = config.settings.objective.minimise == "cost" or config.settings.objective.max_usd_per_hour is not None
    message = f"no price on demand is known for {', '.join(names)}: left out where cost is compared"
    price = "{usd_per_hour: …, region: …, date: …, source: …}"
    fix = f"name a machine and its price: target={names[0]} 'target.price.on_demand={price}'"
    return (Finding("warning" if decisive else "info", "price_unknown", None, message, fix),)

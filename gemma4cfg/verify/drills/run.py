"""Running drills: a fault each, over weights and a reference that they share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gemma4cfg.config.schema import Config
from gemma4cfg.errors import ConfigError, UserError
from gemma4cfg.runtime.processes import RankError
from gemma4cfg.verify.drills.records import Drill
from gemma4cfg.verify.place import Place
from gemma4cfg.verify.proof import Preparations, Prepared, RankRun, judge, prove, run_ranks
from gemma4cfg.verify.records import Check
from gemma4cfg.verify.subject import Subject


@dataclass(frozen=True, slots=True)
class DrillResult:
    """``found_by``: the checks that failed; ``figure``: the largest error that one of them gave, null where none gives one;
    ``evidence`` in a sentence. ``applies`` is false where the plan cannot have the fault."""

    name: str
    room: str
    what: str
    applies: bool
    detected: bool
    found_by: tuple[str, ...]
    figure: float | None
    evidence: str


@dataclass(frozen=True, slots=True)
class Drilled:
    """A drill and what its run left behind; ``ended``: why it ended before it left anything. ``prepared`` is null where the
    plan cannot have the fault."""

    drill: Drill
    prepared: Prepared | None
    run: RankRun | None = None
    ended: str = ""


def run_drills(
    config: Config,
    drills: Sequence[Drill],
    make_subject: Callable[[Config], Subject],
    steps: int,
    seed: int,
    work: Path,
    place: Place,
) -> Iterator[Drilled]:
    """Each drill in turn. Raises UserError where the plan without a fault does not hold: then no drill would say a thing."""
    preparations = Preparations(steps, seed, work, place)
    prepared: dict[tuple[tuple[str, str], ...], Prepared | None] = {}
    for drill in drills:
        if drill.choices not in prepared:
            prepared[drill.choices] = _prepared(config, drill, make_subject, preparations, work, place)
        ready = prepared[drill.choices]
        applies = ready is not None and drill.applies(ready.subject.plan)
        yield run_drill(drill, ready, work, place) if ready and applies else Drilled(drill, None)


def with_choices(config: Config, choices: Sequence[tuple[str, str]]) -> Config:
    """``config`` with other plan choices, e.g. ``("shapes.kv_layout", "ring")``."""
    settings: Any = config.settings
    for key, value in choices:
        node, _, leaf = key.partition(".")
        settings = replace(settings, **{node: replace(getattr(settings, node), **{leaf: value})})
    return replace(config, settings=settings)


def _prepared(
    config: Config,
    drill: Drill,
    make_subject: Callable[[Config], Subject],
    preparations: Preparations,
    work: Path,
    place: Place,
) -> Prepared | None:
    """Null where the choices are impossible for this model and TP degree."""
    try:
        subject = make_subject(with_choices(config, drill.choices))
    except ConfigError:
        return None
    ready = preparations.of(subject)
    control = prove(ready, work, place)
    if not control.holds:
        names = ", ".join(check.name for check in control.failed)
        raise UserError(f"the plan does not hold without a fault ({names}): drills would prove nothing")
    return ready


def run_drill(drill: Drill, prepared: Prepared, work: Path, place: Place) -> Drilled:
    """The run with the fault planted."""
    try:
        return Drilled(drill, prepared, run_ranks(prepared, work, place, drill.plant(prepared.subject.plan)))
    except (RankError, UserError, LookupError) as error:
        return Drilled(drill, prepared, ended=str(error).strip().splitlines()[-1])


def result_of(drilled: Drilled) -> DrillResult:
    """What the checks say of a drill's run. Pure."""
    drill, prepared = drilled.drill, drilled.prepared
    if prepared is None:
        return DrillResult(drill.name, drill.room, drill.what, False, False, (), None, "the plan cannot have it")
    if drilled.run is None:
        evidence = f"the run ended: {drilled.ended}"
        return DrillResult(drill.name, drill.room, drill.what, True, True, ("run",), None, evidence)
    failed = judge(prepared, drilled.run).failed
    figures = [check.figure for check in failed if check.figure is not None]
    return DrillResult(
        name=drill.name,
        room=drill.room,
        what=drill.what,
        applies=True,
        detected=bool(failed),
        found_by=tuple(check.name for check in failed),
        figure=max(figures, default=None),
        evidence=_evidence(failed),
    )


def _evidence(failed: Sequence[Check]) -> str:
    if not failed:
        return "NOT DETECTED: every check holds"
    first = failed[0]
    if first.figure is None or first.limit is None:
        return f"{first.name}: {first.detail}"
    return f"{first.name}: {first.figure:.1e}, limit {first.limit:.1e}"

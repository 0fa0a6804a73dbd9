"""Running drills: a fault each, over weights and a reference that they share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gemma4cfg.config.schema import Config
from gemma4cfg.errors import ConfigError, DisprovedError, UserError
from gemma4cfg.runtime.processes import RankError
from gemma4cfg.verify.drills.records import Drill
from gemma4cfg.verify.place import Place
from gemma4cfg.verify.proof import Preparations, Prepared, RankRun, judge, prove, run_ranks
from gemma4cfg.verify.records import Check, finding_of
from gemma4cfg.verify.subject import Subject

Choices = tuple[tuple[str, str], ...]
"""Override keys and values."""


@dataclass(frozen=True, slots=True)
class DrillResult:
    """``choices``: overrides that the drill was run with in place of the user's own. ``found_by``: the checks that failed,
    in their order; ``figure``: the error that the first of them gave, null where it gives none; ``evidence``: the first's, in a
    sentence. ``applies`` is false where the plan cannot have the fault."""

    name: str
    room: str
    what: str
    choices: tuple[str, ...]
    applies: bool
    detected: bool
    found_by: tuple[str, ...]
    figure: float | None
    evidence: str


@dataclass(frozen=True, slots=True)
class DrillReport:
    """What was drilled and what came of it. ``steps`` decoded after each prompt; ``versions`` of the reference's packages;
    ``detected`` of the ``total`` that apply."""

    subject: str
    tp: int
    layers: int
    steps: int
    versions: Mapping[str, str]
    drills: tuple[DrillResult, ...]
    detected: int
    total: int


@dataclass(frozen=True, slots=True)
class Drilled:
    """A drill and what its run left behind. ``prepared`` is null where the plan cannot have the fault. ``ended``: why there
    was no run, or why it ended before it left anything."""

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
    """Each drill in turn.

    Raises what ``make_subject`` raises of ``config`` itself, ConfigError as well for a plan in another type than float32 and
    where no drill applies, before anything is run; DisprovedError where a plan without a fault does not hold: then no drill
    would say a thing.
    """
    subjects = _subjects(config, drills, make_subject)
    preparations = Preparations(steps, seed, work, place)
    prepared: dict[Choices, Prepared] = {}
    for drill in drills:
        subject, why_not = subjects[drill.choices], _why_not(drill, subjects)
        if isinstance(subject, str) or why_not:
            yield Drilled(drill, None, ended=why_not)
            continue
        if drill.choices not in prepared:
            prepared[drill.choices] = _sound(preparations.of(subject), work, place)
        yield run_drill(drill, prepared[drill.choices], work, place)


def report_of(drilled: Iterable[Drilled], steps: int) -> DrillReport:
    """Of drills of one subject, of which one at least applies. No run is kept longer than it takes to judge it."""
    results, prepared = [], None
    for one in drilled:
        results.append(result_of(one))
        prepared = prepared or one.prepared
    assert prepared is not None
    return DrillReport(
        subject=prepared.subject.name,
        tp=prepared.subject.plan.tp,
        layers=len(prepared.subject.plan.layers),
        steps=steps,
        versions=prepared.reference.versions,
        drills=tuple(results),
        detected=sum(result.detected for result in results),
        total=sum(result.applies for result in results),
    )


def with_choices(config: Config, choices: Choices) -> Config:
    """``config`` with other plan choices, e.g. ``("shapes.kv_layout", "ring")``."""
    settings: Any = config.settings
    for key, value in choices:
        node, _, leaf = key.partition(".")
        settings = replace(settings, **{node: replace(getattr(settings, node), **{leaf: value})})
    return replace(config, settings=settings)


def _subjects(
    config: Config, drills: Sequence[Drill], make_subject: Callable[[Config], Subject]
) -> Mapping[Choices, Subject | str]:
    """By the drills' choices; why there is none, where those cannot be for this model, TP degree and machine."""
    plain = make_subject(config)
    _refuse_rounding(plain)
    subjects: dict[Choices, Subject | str] = {(): plain}
    for choices in dict.fromkeys(drill.choices for drill in drills if drill.choices):
        try:
            subjects[choices] = make_subject(with_choices(config, choices))
        except UserError as error:
            subjects[choices] = str(error)
    why_not = {drill.name: _why_not(drill, subjects) for drill in drills}
    if all(why_not.values()):
        names = "; ".join(f"verify.inject={name} {why}" for name, why in why_not.items())
        raise ConfigError(f"{names}; verify.inject=all runs every drill that the plan can have")
    return subjects


def _refuse_rounding(subject: Subject) -> None:
    dtype = subject.plan.dtype
    if dtype != "float32":
        remedy = "leave verify.dtype out" if subject.twin else "add dtype=float32"
        raise ConfigError(f"verify.inject in {dtype}: rounding would hide faults that are small; {remedy}")


def _why_not(drill: Drill, subjects: Mapping[Choices, Subject | str]) -> str:
    """Why the plan cannot have the drill's fault; empty where it can."""
    subject = subjects[drill.choices]
    if isinstance(subject, str):
        return f"needs {' '.join(_words(drill.choices))}: {subject}"
    return "" if drill.needs.met(subject) else f"needs {drill.needs.what}"


def _words(choices: Choices) -> tuple[str, ...]:
    return tuple(f"{key}={value}" for key, value in choices)


def _sound(prepared: Prepared, work: Path, place: Place) -> Prepared:
    """``prepared``, whose plan holds without a fault."""
    control = prove(prepared, work, place)
    if not control.holds:
        raise DisprovedError(
            f"the plan does not hold without a fault ({', '.join(check.name for check in control.failed)}): drills would "
            "prove nothing; leave verify.inject out to see all of the proof",
            tuple(finding_of(check.name, check.detail) for check in control.failed),
        )
    return prepared


def run_drill(drill: Drill, prepared: Prepared, work: Path, place: Place) -> Drilled:
    """The run with the fault planted. Raises as ``run_ranks`` where the run ends and the drill is none that has to."""
    try:
        return Drilled(drill, prepared, run_ranks(prepared, work, place, drill.plant(prepared.subject.plan)))
    except (RankError, UserError, LookupError) as error:
        if not drill.refused:
            raise
        return Drilled(drill, prepared, ended=str(error).strip().splitlines()[-1])


def result_of(drilled: Drilled) -> DrillResult:
    """What the checks say of a drill's run. Pure."""
    drill, prepared, run = drilled.drill, drilled.prepared, drilled.run
    failed = judge(prepared, run).failed if prepared and run else ()
    refused = prepared is not None and run is None
    return DrillResult(
        name=drill.name,
        room=drill.room,
        what=drill.what,
        choices=_words(drill.choices),
        applies=prepared is not None,
        detected=refused or bool(failed),
        found_by=("run",) if refused else tuple(check.name for check in failed),
        figure=failed[0].figure if failed else None,
        evidence=_evidence(failed) if run else f"the run ended: {drilled.ended}" if refused else drilled.ended,
    )


def _evidence(failed: Sequence[Check]) -> str:
    if not failed:
        return "NOT DETECTED: every check holds"
    first = failed[0]
    if first.figure is None or first.limit is None:
        return f"{first.name}: {first.detail}"
    return f"{first.name}: {first.figure:.1e}, limit {first.limit:.1e}"

"""``task=verify``: make the plan and prove it on CPU ranks, or drill the proof with planted faults."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from gemma4cfg.config.schema import Config
from gemma4cfg.errors import DisprovedError
from gemma4cfg.findings import Finding
from gemma4cfg.plan.encode import to_plain
from gemma4cfg.planner.build import build_plan
from gemma4cfg.planner.search import search_plans
from gemma4cfg.planner.unread import refuse_unread_by_artifact, refuse_unread_by_drills, refuse_unread_by_matrix
from gemma4cfg.tasks.files import PLAN_FILE, write_json
from gemma4cfg.views.proof import show_case, show_drills, show_proof

if TYPE_CHECKING:
    from gemma4cfg.verify.meaning import Question
    from gemma4cfg.verify.place import Place
    from gemma4cfg.verify.proof import Prepared
    from gemma4cfg.verify.records import Proof

PROOF_FILE = "verify.json"
WORK = "gemma4cfg-verify-"

DRILL_STEPS = 8
"""Tokens decoded in a drill, at most: a fault that needs more to show would be one of a single position."""


def run(config: Config, directory: Path, console: Console) -> tuple[Finding, ...]:
    """Writes ``verify.json`` and, of a single plan, ``plan.json`` into ``directory``.

    Raises UserError where there is no plan or nothing to run it on, DisprovedError where a check fails, a drill is not
    detected, or the one that was asked for is.
    """
    refuse_unread_by_matrix(config.overrides, config.settings.verify.matrix)
    refuse_unread_by_artifact(config.overrides, config.settings.verify.backend)
    if config.settings.verify.inject is not None:
        refuse_unread_by_drills(config.overrides, config.settings.verify.steps, DRILL_STEPS)
    if config.settings.verify.matrix is not None:
        _matrix(config, directory, console)
        return ()
    if config.search is not None:
        config = search_plans(config).config
    plan = build_plan(config)
    write_json(directory / PLAN_FILE, plan.to_json())
    from gemma4cfg.verify.meaning import question_of  # torch is not paid for by what is refused above
    from gemma4cfg.verify.place import place_of

    place = place_of(config.settings.verify.transport)
    question = question_of(config, plan)
    with tempfile.TemporaryDirectory(prefix=WORK) as work:
        if config.settings.verify.inject is None:
            _prove(config, plan.plan_id, question, directory, Path(work), place, console)
        else:
            _drill(config, directory, Path(work), place, console)
    return plan.findings


def _prove(
    config: Config,
    plan_id: str,
    question: Question | None,
    directory: Path,
    work: Path,
    place: Place,
    console: Console,
) -> None:
    from gemma4cfg.verify.proof import prepare, prove
    from gemma4cfg.verify.records import finding_of
    from gemma4cfg.verify.subject import subject_of

    choice = config.settings.verify
    prepared = prepare(subject_of(config), choice.steps, choice.seed, work, place)
    if choice.backend == "artifact":
        proof = _prove_artifact(config, prepared, work, console)
    else:
        proof = prove(prepared, work, place, spmd=choice.spmd, question=question)
    plain = {"plan_id": plan_id, "holds": proof.holds, **to_plain(proof)}
    if place.leads:
        _write_report(directory, plain)
        show_proof(plain, console)
        console.print(f"\n{directory / PROOF_FILE}", style="dim", soft_wrap=True)
    if not proof.holds:
        findings = tuple(finding_of(check.name, check.detail) for check in proof.failed)
        raise DisprovedError(f"the plan is disproved: {', '.join(check.name for check in proof.failed)}", findings)


def _prove_artifact(config: Config, prepared: Prepared, work: Path, console: Console) -> Proof:
    """The subject's programs, made where they are not there yet and read back."""
    from gemma4cfg.tasks.compile import compiled_runner
    from gemma4cfg.verify.artifact import prove_artifact, refuse_sampling
    from gemma4cfg.verify.proof import rank_files

    plan = prepared.subject.plan
    refuse_sampling(plan)
    ranks = rank_files(plan, prepared.checkpoint, work)
    return prove_artifact(prepared, ranks, lambda files: compiled_runner(config, plan, files, console))


def _drill(config: Config, directory: Path, work: Path, place: Place, console: Console) -> None:
    from gemma4cfg.verify.drills.catalogue import DRILLS, drill_named
    from gemma4cfg.verify.drills.run import report_of, run_drills
    from gemma4cfg.verify.records import finding_of
    from gemma4cfg.verify.subject import subject_of

    choice = config.settings.verify
    choice = replace(choice, steps=min(choice.steps, DRILL_STEPS))
    config = replace(config, settings=replace(config.settings, verify=choice))
    asked = choice.inject or ""
    drills = list(DRILLS.values()) if asked == "all" else [drill_named(asked)]
    runs = run_drills(config, drills, subject_of, choice.steps, choice.seed, work, place)
    report = report_of(runs, choice.steps)
    missed = [result for result in report.drills if result.applies and not result.detected]
    plain = to_plain(report)
    if place.leads:
        _write_report(directory, plain)
        show_drills(plain, console)
    if missed:
        findings = tuple(finding_of(result.name, result.evidence) for result in missed)
        raise DisprovedError(f"not detected: {', '.join(result.name for result in missed)}", findings)
    if asked != "all":
        (found,) = report.drills
        raise DisprovedError(
            f"verify.inject={asked} is detected: {found.evidence}", (finding_of(asked, found.evidence),)
        )


def _matrix(config: Config, directory: Path, console: Console) -> None:
    from gemma4cfg.verify.matrix import cases
    from gemma4cfg.verify.matrix_run import run_cases
    from gemma4cfg.verify.place import place_of
    from gemma4cfg.verify.records import finding_of

    choice = config.settings.verify
    assert choice.matrix is not None
    wanted = cases((config.model.name,), choice.matrix)
    results = []
    with tempfile.TemporaryDirectory(prefix=WORK) as work:
        for result in run_cases(wanted, choice.steps, choice.seed, Path(work), place_of("auto")):
            results.append(result)
            show_case(to_plain(result), len(results), len(wanted), console)
            _write_report(directory, {"cases": to_plain(tuple(results)), "of": len(wanted)})
    wrong = [" ".join(result.overrides) for result in results if not result.holds]
    if wrong:
        raise DisprovedError(f"disproved: {'; '.join(wrong)}", tuple(finding_of("matrix", case) for case in wrong))


def _write_report(directory: Path, plain: Mapping[str, Any]) -> None:
    write_json(directory / PROOF_FILE, _numbers(plain))


def _numbers(value: Any) -> Any:
    """``value`` with null for every figure that is no number: JSON has none of those."""
    if isinstance(value, Mapping):
        return {key: _numbers(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_numbers(item) for item in value]
    return None if isinstance(value, float) and not isfinite(value) else value

"""A plan run on CPU ranks with weights from the resharder, against the reference's run of the same checkpoint."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gemma4cfg.architecture.model import Architecture
from gemma4cfg.plan.records import Plan
from gemma4cfg.runtime.cut import write_rank_files
from gemma4cfg.runtime.host.session import Session
from gemma4cfg.runtime.host.tables import HostTables
from gemma4cfg.verify.checks import proof_checks
from gemma4cfg.verify.compare import layer_errors, stream_result
from gemma4cfg.verify.constants import wrong_host_constants
from gemma4cfg.verify.faults import NO_FAULT, Fault
from gemma4cfg.verify.logits import LogitsRunner
from gemma4cfg.verify.meaning import Question, answer_to, text_as_expected
from gemma4cfg.verify.observe import Observed
from gemma4cfg.verify.place import Place
from gemma4cfg.verify.placements import placement_kinds
from gemma4cfg.verify.records import Check, Proof
from gemma4cfg.verify.reference_process import PromptRun, ReferenceJob, ReferenceResult, run_reference
from gemma4cfg.verify.subject import Subject

if TYPE_CHECKING:
    from gemma4cfg.verify.group import Ranks


TWIN_DRAWS, CHECKPOINT_DRAWS = 24, 2
"""Prompts drawn at most for each length, until the reference's tokens are beyond its noise. Real weights are slow to run."""


@dataclass
class Clock:
    """Seconds by part."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[part] = round(time.perf_counter() - began, 3)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What every run of a subject is compared with: its weights and the reference's run over them."""

    subject: Subject
    checkpoint: Path
    reference: ReferenceResult
    seconds: Mapping[str, float]


def prepare(subject: Subject, steps: int, seed: int, work: Path, place: Place) -> Prepared:
    """The reference's run: a prompt of each length, and ``steps`` tokens decoded after it. ``seed`` draws prompts, and a
    twin's weights, which go to ``work``.

    Raises UserError where the checkpoint or the reference cannot be run.
    """
    clock = Clock()
    with clock.measure("weights"):
        checkpoint = place.per_machine(lambda: subject.weights(seed, work))
    job = ReferenceJob(
        directory=str(checkpoint),
        dtype=subject.plan.dtype,
        steps=steps,
        prompt_lengths=subject.lengths,
        max_draws=TWIN_DRAWS if subject.twin else CHECKPOINT_DRAWS,
        seed=seed,
        layers=subject.layers,
    )
    with clock.measure("reference"):
        reference = place.once(lambda: run_reference(job))
    return Prepared(subject, checkpoint, reference, clock.seconds)


class Preparations:
    """Subjects that differ in their plan alone share weights and the reference's run."""

    def __init__(self, steps: int, seed: int, work: Path, place: Place) -> None:
        self._given = steps, seed
        self._work, self._place = work, place
        self._made: dict[tuple[Architecture | None, tuple[int, ...]], Prepared] = {}

    def of(self, subject: Subject) -> Prepared:
        """Raises as ``prepare``."""
        key = subject.twin, subject.lengths
        if key not in self._made:
            self._made[key] = prepare(subject, *self._given, Path(tempfile.mkdtemp(dir=self._work)), self._place)
        return replace(self._made[key], subject=subject)


@dataclass(frozen=True, slots=True)
class HostRun:
    """``logits`` [1 + steps, vocabulary] and layers' outputs [layers, prompt tokens, hidden] of each of the reference's runs;
    ``wrong_constants`` are sentences. A runner that is not watched gives no ``layers``."""

    logits: Sequence[Tensor]
    layers: Sequence[Tensor]
    wrong_constants: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RankRun:
    """What running a plan left behind, and all that checks are given of it. ``hosted`` is what the host saw, ``observed`` what
    the ranks did; ``answer`` to the question and ``spmd`` are null where neither was asked for."""

    hosted: HostRun
    observed: Sequence[Observed]
    answer: str | None
    spmd: Check | None
    seconds: Mapping[str, float]


def prove(
    prepared: Prepared,
    work: Path,
    place: Place,
    fault: Fault = NO_FAULT,
    spmd: bool = False,
    question: Question | None = None,
) -> Proof:
    """Run the plan and compare it with the reference. Arguments and errors are those of ``run_ranks``."""
    return judge(prepared, run_ranks(prepared, work, place, fault, spmd, question), question)


def run_ranks(
    prepared: Prepared,
    work: Path,
    place: Place,
    fault: Fault = NO_FAULT,
    spmd: bool = False,
    question: Question | None = None,
) -> RankRun:
    """Cut the weights and run the plan on CPU ranks; ``fault`` is planted in the run. With ``spmd`` every graph is exported as
    well, and has to be one program for all ranks. A ``question`` is asked as well.

    ``work`` is a directory for rank files. Raises UserError where the weights are not those of the plan, RankError where a
    rank fails.
    """
    plan, clock = prepared.subject.plan, Clock()
    with clock.measure("reshard"):
        ranks = place.per_machine(lambda: rank_files(fault.planned(plan), prepared.checkpoint, work))
    with clock.measure("ranks"), place.ranks(plan, ranks, fault) as group:
        hosted = run_plan(plan, fault, group, ranks, prepared.reference.runs)
        observed = group.observed()
        answer = answer_to(question, plan, group, ranks) if question else None
    one_program = None
    if spmd:
        with clock.measure("export"):
            one_program = place.once(lambda: _one_program(plan, ranks))
    return RankRun(hosted, observed, answer, one_program, clock.seconds)


def judge(prepared: Prepared, run: RankRun, question: Question | None = None) -> Proof:
    """What every check says of a run. Pure."""
    plan, reference = prepared.subject.plan, prepared.reference
    noise = max(one.noise for one in reference.runs)
    streams = tuple(
        stream_result(ours, theirs, noise, plan.dtype)
        for ours, theirs in zip(run.hosted.logits, reference.runs, strict=True)
    )
    errors = layer_errors(run.hosted.layers, reference.runs)
    kinds = placement_kinds(plan)
    checks = proof_checks(plan, reference, streams, errors, run.observed, run.hosted.wrong_constants, kinds)
    if question is not None and run.answer is not None:
        checks += (text_as_expected(question, run.answer),)
    if run.spmd is not None:
        checks += (run.spmd,)
    return Proof(
        subject=prepared.subject.name,
        model=plan.model,
        tp=plan.tp,
        dtype=plan.dtype,
        reference={
            "class_name": reference.class_name,
            "versions": reference.versions,
            "self_check": reference.self_check,
            "noise": noise,
            "draws": [one.draws for one in reference.runs],
        },
        checks=checks,
        streams=streams,
        layers=errors,
        exercised={
            "graphs": dict(run.observed[0].graph_calls),
            "slots": {str(slot): writes for slot, writes in sorted(run.observed[0].slot_writes.items())},
            "placements": {kind: len(names) for kind, names in kinds.items()},
        },
        seconds={**prepared.seconds, **run.seconds},
    )


def run_plan(plan: Plan, fault: Fault, ranks: Ranks, directory: Path, runs: Sequence[PromptRun]) -> HostRun:
    """As many prompts as the plan has streams are rows of one batch, then the reference's own tokens are fed one by one. As
    long as ours are equal to them, that is greedy decoding."""
    hosted = fault.hosted(fault.planned(plan))
    opened = HostTables.open(hosted, directory)
    tables = fault.tables(opened) if fault.tables else opened
    runner = LogitsRunner(hosted, ranks, fault.inputs)
    session = Session(hosted, tables, runner)
    logits: list[Tensor] = []
    layers: list[Tensor] = []
    for first in range(0, len(runs), plan.shapes.batch):
        group = runs[first : first + plan.shapes.batch]
        for stream in range(len(group)):
            session.reset(stream)
        found = [runner.finished(session.prefill({stream: run.prompt for stream, run in enumerate(group)}))]
        layers += [outputs for _, outputs in sorted(ranks.layers().items())]
        for step in range(len(group[0].tokens) - 1):
            found.append(
                runner.finished(session.decode({stream: run.tokens[step] for stream, run in enumerate(group)}))
            )
        logits += torch.stack(found, dim=1).float()
    return HostRun(logits, layers, wrong_host_constants(tables, hosted, plan))


def _one_program(plan: Plan, ranks: Path) -> Check:
    from gemma4cfg.verify.spmd import one_program

    return one_program(plan, ranks)


def rank_files(plan: Plan, checkpoint: Path, work: Path) -> Path:
    """A new directory in ``work`` with the rank files of ``plan``, as the resharder makes them."""
    destination = tempfile.mkdtemp(prefix="ranks-", dir=work)
    write_rank_files(plan, str(checkpoint), destination)
    return Path(destination)

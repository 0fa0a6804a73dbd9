"""``gemma4cfg.sweep``: thousands of plans in one process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gemma4cfg.config.compose import config_from_plain, hydra_initialised
from gemma4cfg.errors import ConfigError, UserError
from gemma4cfg.plan.encode import to_plain
from gemma4cfg.planner.build import build_plan
from gemma4cfg.sweeps.composer import Composer
from gemma4cfg.sweeps.jobs import Parser, check_words, jobs_of
from gemma4cfg.sweeps.row import Row, compared, row_of_plan, row_without_plan


def sweep(overrides: Sequence[str] | Sequence[Sequence[str]]) -> tuple[Row, ...]:
    """A row for every job, the same that ``-m`` gathers of ``task=plan``.

    ``overrides``: words as after ``-m``, multiplied out (``["model=e2b,31b", "tp=1,2"]``: four jobs), or a list of words
    for each job. A job that cannot be is a row with its reason. Raises ConfigError, before any job is planned, for words
    that cannot be composed (an unknown key or choice), a key given twice, a sweep over nothing and any other task.
    """
    with hydra_initialised():
        parser = Parser()
        jobs = _jobs(overrides, parser)
        compose = Composer(parser)
        composed = [compose(job) for job in jobs]
        _check_tasks(composed)
        return compared(_row(number, *job) for number, job in enumerate(zip(jobs, composed, strict=True)))


def _jobs(overrides: Sequence[str] | Sequence[Sequence[str]], parser: Parser) -> list[tuple[str, ...]]:
    if isinstance(overrides, str):
        raise ConfigError(f"sweep: expected a list of words, e.g. sweep(['{overrides}'])")
    words = [item for item in overrides if isinstance(item, str)]
    if len(words) == len(overrides):
        return jobs_of(words, parser)
    lists = [tuple(item) for item in overrides if not isinstance(item, str)]
    if words:
        raise ConfigError(f"sweep: {words[0]} stands among lists of words; put it into every one of them")
    for job in lists:
        swept = [override.input_line for override in check_words(job, parser) if override.is_sweep_override()]
        if swept:
            raise ConfigError(
                f"sweep: {swept[0]} has several values, and each list is one job; e.g. sweep(['{swept[0]}'])"
            )
    return lists


def _check_tasks(jobs: Iterable[Mapping[str, Any]]) -> None:
    """Raises ConfigError for a task that would not be run."""
    for task in (job.get("task", "plan") for job in jobs):
        if task not in ("plan", None):
            raise ConfigError(
                f"task={task}: sweep() makes plans and runs no task; leave task out here, python -m gemma4cfg -m runs it"
            )


def _row(number: int, words: tuple[str, ...], composed: Mapping[str, object]) -> Row:
    try:
        plan = build_plan(config_from_plain(composed, words))
    except UserError as error:
        return row_without_plan(number, words, "refused", to_plain(error.recorded))
    read = replace(plan, layers=(), tensors={}, rank_tensors={}, decisions=(), host=(), findings=())
    return row_of_plan(number, words, read.to_json())

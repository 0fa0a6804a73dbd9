"""``task=shard``: make the plan, and the rank files that it asks for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from gemma4cfg.architecture.stored import Checkpoint
from gemma4cfg.config.schema import Config
from gemma4cfg.errors import ConfigError, PlanError
from gemma4cfg.findings import Finding
from gemma4cfg.plan.records import Plan
from gemma4cfg.planner.build import build_plan
from gemma4cfg.tasks.files import PLAN_FILE, write_json
from gemma4cfg.views.progress import shown_progress, summary
from sharding.files import join

if TYPE_CHECKING:
    from sharding import ShardingError
    from sharding.verify import Problem

SHARDS = Path("outputs") / "shards"


def run(config: Config, directory: Path, console: Console) -> tuple[Finding, ...]:
    """Writes ``plan.json`` into ``directory`` and the rank files into ``output``, or under ``outputs/shards`` by the
    placements' id. With ``shard.check`` nothing is written there: what is there is compared with its manifest and the
    checkpoint.

    Raises UserError where there is no plan, the checkpoint or the files are unsound, or there is too little room; OSError.
    """
    checkpoint = checkpoint_of(config)
    plan = build_plan(config)
    if config.settings.shard.check:
        _check(plan, checkpoint, destination_of(config, plan), console)
    else:
        destination = destination_of(config, plan)
        write_rank_files(config, plan, destination, console)
        console.print(escape(destination), style="dim", soft_wrap=True)
    write_json(directory / PLAN_FILE, plan.to_json())
    return plan.findings


def checkpoint_of(config: Config) -> Checkpoint:
    """Raises ConfigError where none is given."""
    if config.checkpoint is None:
        raise ConfigError(
            f"task={config.settings.task} needs the weights: checkpoint=DIR, a Hugging Face directory or fsspec URL"
        )
    return config.checkpoint


def destination_of(config: Config, plan: Plan) -> str:
    """Where the plan's rank files are, or go."""
    return config.settings.output or str(SHARDS / plan.placement_id)


def write_rank_files(config: Config, plan: Plan, destination: str, console: Console) -> None:
    """The plan's rank files in ``destination``, made or completed, and what was done in a line. Raises as ``run``."""
    from gemma4cfg.runtime.cut import write_rank_files as cut  # numpy is not paid for by a plan
    from sharding import ShardingError

    choice = config.settings.shard
    try:
        with shown_progress(console) as progress:
            result = cut(
                plan,
                checkpoint_of(config).location,
                destination,
                mirror=choice.mirror,
                digests=choice.digests,
                progress=progress,
            )
    except ShardingError as error:
        raise _refused(error) from error
    console.print(summary(result), soft_wrap=True)


def _check(plan: Plan, checkpoint: Checkpoint, destination: str, console: Console) -> None:
    from sharding import ShardingError, check

    try:
        with shown_progress(console) as progress:
            problems = check(destination, checkpoint.location, placement_id=plan.placement_id, progress=progress)
    except ShardingError as error:
        raise _refused(error) from error
    if problems:
        raise _unsound(problems, destination)
    console.print(f"{escape(destination)}: every file is as the manifest and the checkpoint say", soft_wrap=True)


def _refused(error: ShardingError) -> PlanError:
    return PlanError(str(error), (Finding("error", "shard", None, str(error), ""),))


def _unsound(problems: tuple[Problem, ...], destination: str) -> PlanError:
    fix = "run the same command without shard.check to make it again"
    findings = tuple(
        Finding("error", "rank_file", None, f"{join(destination, problem.file)}: {problem.message}", fix)
        for problem in problems
    )
    return PlanError("\n".join(f"{finding.message}. {finding.fix}" for finding in findings), findings)

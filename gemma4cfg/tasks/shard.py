"""``task=shard``: make the plan, and the rank files that it asks for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from gemma4cfg.config.schema import Config, ShardChoice
from gemma4cfg.errors import ConfigError, PlanError
from gemma4cfg.findings import Finding
from gemma4cfg.plan.records import Plan
from gemma4cfg.planner.build import build_plan
from gemma4cfg.tasks.files import PLAN_FILE, write_json
from gemma4cfg.views.progress import shown_progress, summary
from sharding.files import join

if TYPE_CHECKING:
    from sharding.verify import Problem

SHARDS = Path("outputs") / "shards"


def run(config: Config, directory: Path, console: Console) -> tuple[Finding, ...]:
    """Writes ``plan.json`` into ``directory`` and the rank files into ``output``, or under ``outputs/shards`` by the
    placements' id. With ``shard.check`` nothing is written there: what is there is compared with its manifest and the
    checkpoint.

    Raises UserError where there is no plan, the checkpoint or the files are unsound, or there is too little room; OSError.
    """
    from sharding import ShardingError, check  # numpy is not paid for by a plan

    checkpoint = config.checkpoint
    if checkpoint is None:
        raise ConfigError("task=shard needs the weights: checkpoint=DIR, a Hugging Face directory or fsspec URL")
    plan = build_plan(config)
    destination = config.settings.output or str(SHARDS / plan.placement_id)
    choice = config.settings.shard
    try:
        if choice.check:
            with shown_progress(console) as progress:
                problems = check(destination, checkpoint.location, placement_id=plan.placement_id, progress=progress)
            if problems:
                raise _unsound(problems, destination)
            console.print(
                f"{escape(destination)}: every file is as the manifest and the checkpoint say", soft_wrap=True
            )
        else:
            cut(plan, checkpoint.location, destination, choice, console)
    except ShardingError as error:
        raise PlanError(str(error), (Finding("error", "shard", None, str(error), ""),)) from error
    write_json(directory / PLAN_FILE, plan.to_json())
    return plan.findings


def cut(plan: Plan, source: str, destination: str, choice: ShardChoice, console: Console) -> None:
    """Write the rank files of ``plan``; what is complete there is kept. Raises PlanError where the source or what lies
    there is unsound, OSError."""
    from sharding import ShardingError, reshard

    plain = plan.to_json()
    try:
        with shown_progress(console) as progress:
            result = reshard(
                {"tensors": plain["tensors"], "rank_tensors": plain["rank_tensors"]},
                plan.tp,
                source,
                destination,
                plan.dtype,
                names=plan.provenance["checkpoint_names"],
                placement_id=plan.placement_id,
                mirror=choice.mirror,
                digests=choice.digests,
                progress=progress,
            )
    except ShardingError as error:
        raise PlanError(str(error), (Finding("error", "shard", None, str(error), ""),)) from error
    console.print(summary(result), soft_wrap=True)
    console.print(escape(destination), style="dim", soft_wrap=True)


def _unsound(problems: tuple[Problem, ...], destination: str) -> PlanError:
    fix = "run the same command without shard.check to make it again"
    findings = tuple(
        Finding("error", "rank_file", None, f"{join(destination, problem.file)}: {problem.message}", fix)
        for problem in problems
    )
    return PlanError("\n".join(f"{finding.message}. {finding.fix}" for finding in findings), findings)

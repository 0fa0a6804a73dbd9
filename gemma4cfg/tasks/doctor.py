"""``task=doctor``: make the plan and hold this machine against it."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from gemma4cfg.config.schema import Config
from gemma4cfg.doctor.machine import read_machine
from gemma4cfg.doctor.needs import Line, Visit, examine
from gemma4cfg.doctor.tokenizer import read_tokenizer
from gemma4cfg.errors import PlanError
from gemma4cfg.findings import Finding
from gemma4cfg.plan.encode import to_plain
from gemma4cfg.planner.build import build_plan
from gemma4cfg.tasks.compile import artifact_root, sdk_of, target_of
from gemma4cfg.tasks.files import PLAN_FILE, write_json
from gemma4cfg.tasks.shard import SHARDS
from gemma4cfg.views.doctor import show_examination

DOCTOR_FILE = "doctor.json"


def run(config: Config, directory: Path, console: Console) -> tuple[Finding, ...]:
    """Writes ``plan.json`` and ``doctor.json`` into ``directory``.

    Raises UserError where there is no plan or task=compile would refuse ``output``, PlanError where a hard need is missing.
    """
    plan = build_plan(config)
    sdk = sdk_of(config, plan)
    artifacts = artifact_root(config)
    machine = read_machine(sdk, (SHARDS, artifacts))
    tokenizer = read_tokenizer(config.settings.checkpoint)
    here = next((target for target in config.known_targets if target.name == machine.instance_type), None)
    lines = examine(Visit(plan, sdk, target_of(config, plan), here, machine, str(SHARDS), str(artifacts), tokenizer))
    write_json(directory / PLAN_FILE, plan.to_json())
    write_json(directory / DOCTOR_FILE, {"plan_id": plan.plan_id, "lines": to_plain(lines)})
    console.print(
        f"this machine for {plan.model} tp {plan.tp} on {plan.target} with {plan.sdk}, recipe {plan.recipe}\n"
    )
    show_examination(to_plain(lines), console)
    findings = tuple(_finding(line) for line in lines if line.status in ("missing", "warning"))
    missing = [line for line in lines if line.status == "missing"]
    if missing:
        raise PlanError(f"{len(missing)} hard needs are missing: {', '.join(_names(missing))}", findings)
    return (*plan.findings, *findings)


def _names(lines: list[Line]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(line.need for line in lines))


def _finding(line: Line) -> Finding:
    code = f"doctor.{line.need.replace(' ', '_')}"
    return Finding(
        "error" if line.status == "missing" else "warning", code, None, f"{line.need}: {line.found}", line.remedy
    )

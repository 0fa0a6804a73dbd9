"""``task=plan``: make the plan, write it, show it."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from gemma4cfg.config.schema import Config
from gemma4cfg.findings import Finding
from gemma4cfg.planner.build import build_plan
from gemma4cfg.tasks.files import PLAN_FILE, write_json
from gemma4cfg.views.terminal import show_plan


def run(config: Config, directory: Path, console: Console) -> tuple[Finding, ...]:
    """Writes ``plan.json`` into ``directory``. Raises UserError where there is no plan."""
    plan = build_plan(config)
    plain = plan.to_json()
    write_json(directory / PLAN_FILE, plain)
    show_plan(plain, console)
    console.print(f"\n{directory / PLAN_FILE}", style="dim", soft_wrap=True)
    return plan.findings

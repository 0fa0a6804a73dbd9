"""``task=plan``: make the plan, write it, show it."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from gemma4cfg.config.schema import Config
from gemma4cfg.findings import Finding
from gemma4cfg.plan.records import Plan
from gemma4cfg.planner.build import build_plan
from gemma4cfg.tasks.files import PLAN_FILE, SEARCH_FILE, write_json
from gemma4cfg.views.terminal import show_plan


def run(config: Config, directory: Path, console: Console) -> tuple[Finding, ...]:
    """Writes ``plan.json`` into ``directory``, with an objective ``search.json`` too.

    Raises UserError where there is no plan.
    """
    plan = build_plan(config) if config.search is None else _searched(config, directory, console)
    plain = plan.to_json()
    write_json(directory / PLAN_FILE, plain)
    show_plan(plain, console)
    console.print(f"\n{directory / PLAN_FILE}", style="dim", soft_wrap=True)
    return plan.findings


def _searched(config: Config, directory: Path, console: Console) -> Plan:
    """The best plan by the objective, and what it was chosen from in ``search.json``."""
    from gemma4cfg.planner.search import search_plans  # not paid for by a plan
    from gemma4cfg.views.search import show_search

    result = search_plans(config)
    plain = result.to_json()
    write_json(directory / SEARCH_FILE, plain)
    show_search(plain, console)
    return result.plan

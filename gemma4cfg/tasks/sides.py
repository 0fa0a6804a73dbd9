"""The two sides of a comparison: a plan's file, a run's or job's directory, or overrides."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from gemma4cfg.decode import decode
from gemma4cfg.errors import ConfigError
from gemma4cfg.findings import Finding, errors_of
from gemma4cfg.plan.records import Plan
from gemma4cfg.tasks.files import PLAN_FILE, RESULT_FILE

_EXAMPLE = 'a plan.json, a directory that holds one, or overrides in quotes, e.g. "model=31b tp=8"'


def plan_of(words: str) -> Plan:
    """The plan that one argument names. What is there as a file or directory is read; anything else is overrides.

    Raises UserError where there is none: nothing there, not a plan, changed after it was made, or refused by the planner.
    """
    path = Path(words)
    try:
        if words and path.is_dir():
            return _read(path / PLAN_FILE) if (path / PLAN_FILE).exists() else _without_plan(path)
        if words and path.exists():
            return _read(path)
    except OSError as error:
        raise ConfigError(f"{words}: {error.strerror or error}") from error
    return _planned(words)


def _read(path: Path) -> Plan:
    try:
        plain: Any = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON ({error}); expected {_EXAMPLE}") from error
    if not isinstance(plain, dict) or "format_version" not in plain:
        raise ConfigError(f"{path}: no plan; expected {_EXAMPLE}")
    try:
        return Plan.from_json(plain)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _without_plan(directory: Path) -> Plan:
    """Raises ConfigError that says why a directory holds no plan, as far as it can be seen."""
    jobs = sorted((path.parent.name for path in directory.glob(f"*/{PLAN_FILE}")), key=lambda name: (len(name), name))
    if jobs:
        first = directory / jobs[0]
        raise ConfigError(
            f"{directory}: has no plan of its own; name one of its {len(jobs)} directories that do, e.g. {first}"
        )
    result = directory / RESULT_FILE
    if result.exists():
        raise ConfigError(f"{directory}: this run has no plan: {_why_not(result)}")
    raise ConfigError(f"{directory}: holds no {PLAN_FILE}; expected {_EXAMPLE}")


def _why_not(result: Path) -> str:
    """The first error that a run recorded."""
    try:
        findings = decode(tuple[Finding, ...], json.loads(result.read_text(encoding="utf-8"))["findings"], "findings")
    except (ValueError, KeyError, TypeError, RecursionError, ConfigError) as error:
        return f"its {RESULT_FILE} cannot be read either ({error}); run it again"
    return next((finding.message for finding in errors_of(findings)), "it was refused")


def _planned(words: str) -> Plan:
    from gemma4cfg.config.compose import load_config  # not paid for where both plans are read
    from gemma4cfg.planner.build import build_plan

    try:
        overrides = shlex.split(words)
    except ValueError as error:
        raise ConfigError(f"{words}: {error}; expected {_EXAMPLE}") from error
    if not overrides or any("=" not in word for word in overrides):
        raise ConfigError(f"{words or '(empty)'}: nothing there, and no overrides; expected {_EXAMPLE}")
    return build_plan(load_config(overrides))

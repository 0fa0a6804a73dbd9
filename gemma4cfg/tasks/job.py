"""One job: a composed configuration to a directory with ``result.json``, whatever happens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console

from gemma4cfg.config.compose import config_from_plain
from gemma4cfg.errors import DisprovedError, UserError
from gemma4cfg.findings import Finding
from gemma4cfg.plan.encode import to_plain
from gemma4cfg.tasks.files import MADE_OF_A_PLAN, RESULT_FILE, write_json
from gemma4cfg.views.console import error_console
from gemma4cfg.views.terminal import show_refusal

DONE, FAILED, REFUSED, DISPROVED = 0, 1, 2, 3
"""Exit codes: done; a defect or an I/O failure, which is raised; the configuration, an input or the fit is wrong; a plan was
run and is not right."""


def run_job(composed: Mapping[str, Any], overrides: Sequence[str], directory: Path, console: Console) -> int:
    """Run the task that ``composed`` names, a module beside this one, and return its exit code.

    A user's mistake is recorded, shown and returned, never raised, so that a sweep goes on.
    """
    try:
        for stale in (*MADE_OF_A_PLAN, RESULT_FILE):
            (directory / stale).unlink(missing_ok=True)
        config = config_from_plain(composed, overrides)
        task = import_module(f"gemma4cfg.tasks.{config.settings.task}")
        findings = task.run(config, directory, console)
    except DisprovedError as error:
        write_result(directory, "disproved", DISPROVED, error.recorded)
        show_refusal(error, error_console())
        return DISPROVED
    except UserError as error:
        refuse(error, directory)
        return REFUSED
    except Exception as error:
        with suppress(OSError):  # it may be the directory that fails
            defect = Finding("error", "defect", None, f"{type(error).__name__}: {error}", "")
            write_result(directory, "failed", FAILED, (defect,))
        raise
    write_result(directory, "done", DONE, findings)
    return DONE


def refuse(error: UserError, directory: Path) -> None:
    """Record a user's mistake in ``result.json`` and say it on standard error; no plan of an earlier run is left."""
    for stale in MADE_OF_A_PLAN:
        (directory / stale).unlink(missing_ok=True)
    write_result(directory, "refused", REFUSED, error.recorded)
    show_refusal(error, error_console())


def write_result(directory: Path, status: str, exit_code: int, findings: Sequence[Finding]) -> None:
    """``result.json``: how a job ended."""
    write_json(
        directory / RESULT_FILE, {"status": status, "exit_code": exit_code, "findings": to_plain(tuple(findings))}
    )

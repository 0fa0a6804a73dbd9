"""Runs of the real command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Job:
    """What one directory holds; null where there is no such file. ``overrides`` are the sweep's words for this job."""

    directory: Path
    plan: dict[str, Any] | None
    result: dict[str, Any] | None
    overrides: tuple[str, ...] = ()

    @property
    def told(self) -> str:
        """Every finding's message and fix."""
        findings = self.result["findings"] if self.result else ()
        return "\n".join(f"{finding['message']}. {finding['fix']}" for finding in findings)


@dataclass(frozen=True)
class Result:
    """How one command ended. ``directory`` is the newest under outputs/, null where the command made none."""

    exit_code: int
    out: str
    err: str
    directory: Path | None
    plan: dict[str, Any] | None
    result: dict[str, Any] | None

    @property
    def jobs(self) -> list[Job]:
        """The jobs of a sweep, in order."""
        assert self.directory is not None
        numbers = sorted(int(path.name) for path in self.directory.iterdir() if path.name.isdigit())
        return [read_job(self.directory / str(number)) for number in numbers]


def run(
    *overrides: str,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    module: str = "gemma4cfg",
    timeout: float = 120,
) -> Result:
    """``python -m gemma4cfg`` (or another ``module``) in ``cwd``; ``env`` is added to this process's."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-m", module, *overrides],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=timeout,
    )
    ran = (*cwd.glob("outputs/runs/*"), *cwd.glob("outputs/sweeps/*"))
    directory = max(ran, key=lambda path: path.name, default=None)
    left = read_job(directory) if directory else Job(cwd, None, None)
    return Result(done.returncode, done.stdout, done.stderr, directory, left.plan, left.result)


def read_job(directory: Path) -> Job:
    """What a run or a job of a sweep left."""
    listed = directory / ".hydra" / "overrides.yaml"
    words = [line[2:].strip("'\"") for line in listed.read_text().splitlines()] if listed.is_file() else []
    return Job(directory, _read(directory / "plan.json"), _read(directory / "result.json"), tuple(words))


def _read(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return read

"""Hydra's callback: refuses a sweep that would lose words or jobs, and gathers its jobs when they are done."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback


class SweepStopped(BaseException):
    """Carries what was raised in the callback past Hydra, which makes a warning of every Exception there."""

    def __init__(self, error: Exception, directory: Path) -> None:
        super().__init__(str(error))
        self.error = error
        self.directory = directory


class SweepCallback(Callback):
    """Does nothing for a single run, and imports nothing for it."""

    def on_multirun_start(self, config: Any, **_: Any) -> None:
        from omegaconf import OmegaConf

        from gemma4cfg.sweeps.collect import marks
        from gemma4cfg.sweeps.directories import check_directories
        from gemma4cfg.sweeps.jobs import Parser, check_words

        directory = Path(config.hydra.sweep.dir)
        self._before = marks(directory)
        try:
            overrides = check_words(config.hydra.overrides.task, Parser())
            written: Any = OmegaConf.to_container(config.hydra.sweep, resolve=False)
            check_directories(config.hydra.output_subdir, str(written["subdir"]), overrides)
        except Exception as error:
            raise SweepStopped(error, directory) from error

    def on_multirun_end(self, config: Any, **_: Any) -> None:
        """Write the table, then exit with 1 where a job failed."""
        from gemma4cfg.plan.encode import to_plain
        from gemma4cfg.sweeps.collect import collect
        from gemma4cfg.sweeps.files import SWEEP_CSV, SWEEP_JSON, write_sweep
        from gemma4cfg.tasks.job import FAILED
        from gemma4cfg.views.console import output_console
        from gemma4cfg.views.sweep import show_sweep

        directory = Path(config.hydra.sweep.dir)
        try:
            rows = collect(directory, self._before)
            write_sweep(directory, rows)
            console = output_console()
            show_sweep(to_plain(rows), console)
            console.print(f"\n{directory / SWEEP_CSV}, {SWEEP_JSON}", style="dim", soft_wrap=True)
        except Exception as error:
            raise SweepStopped(error, directory) from error
        if any(row.status == "failed" for row in rows):
            sys.exit(FAILED)

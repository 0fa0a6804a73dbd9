"""The command line: an ordinary Hydra application whose user errors are sentences and exit with 2."""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gemma4cfg.config.catalog import conf_directory
from gemma4cfg.config.messages import chosen_too_late, translated
from gemma4cfg.errors import ConfigError
from gemma4cfg.sweeps.callback import SweepStopped
from gemma4cfg.sweeps.value import objective_value
from gemma4cfg.tasks.job import DONE, FAILED, REFUSED, refuse, run_job
from gemma4cfg.views.console import forgive_streams, output_console

CONTROLLERS = ("hydra/launcher", "hydra/sweeper")
"""What Hydra chooses before it composes a sweep's jobs."""


def main() -> None:
    """Run from ``sys.argv`` and exit: 0 done, 1 a defect (with its traceback), 2 a user's mistake."""
    forgive_streams()
    sys.exit(run())


def run() -> int:
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra would print what it raises and exit with 1
    outcomes: list[int] = []

    def job(composed: DictConfig) -> float:
        context = HydraConfig.get()
        directory = Path(context.runtime.output_dir)
        if context.mode != RunMode.MULTIRUN:
            outcomes.append(_run(composed, context, directory))
            return outcomes[-1]
        gc.enable()  # a sweep is long, see __main__
        try:
            code = _run(composed, context, directory)
        except Exception:
            traceback.print_exc()  # raised, it would end the sweep without its table
            code = FAILED
        minimise = OmegaConf.select(composed, "objective.minimise", throw_on_resolution_failure=False)
        if minimise is None:
            return code
        return objective_value(directory, minimise) if code == DONE else inf

    application = hydra.main(version_base="1.3", config_path=str(conf_directory()), config_name="config")(job)
    try:
        with translated():
            application()
    except ConfigError as error:
        refuse(error, run_directory(sys.argv[1:]))
        return REFUSED
    except SweepStopped as stopped:
        if not isinstance(stopped.error, ConfigError):
            raise stopped.error from None
        refuse(stopped.error, stopped.directory)
        return REFUSED
    return outcomes[-1] if outcomes else 0


def _run(composed: DictConfig, context: Any, directory: Path) -> int:
    """The exit code of one job."""
    try:
        _refuse_controllers(context)
        with translated():
            plain: Any = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except ConfigError as error:
        refuse(error, directory)
        return REFUSED
    quiet = context.mode == RunMode.MULTIRUN and plain.get("task") == "plan"  # they are lines of a sweep's table
    return run_job(plain, context.overrides.task, directory, output_console(quiet))


def _refuse_controllers(context: Any) -> None:
    """Raises ConfigError for a file that chooses what was chosen before any job's files were read."""
    for key in CONTROLLERS:
        choice = context.runtime.choices.get(key)
        said = any(word.lstrip("+").startswith(f"{key}=") for word in context.overrides.hydra)
        if choice != "basic" and not said:
            raise ConfigError(chosen_too_late(key, choice))


def run_directory(arguments: Sequence[str]) -> Path:
    """Where a run whose configuration cannot be composed records that: the directory it would have had."""
    from hydra import compose, initialize_config_dir

    key = "sweep" if {"-m", "--multirun"} & set(arguments) else "run"
    own = [argument for argument in arguments if argument.startswith(f"hydra.{key}.dir=")]
    with initialize_config_dir(str(conf_directory()), version_base="1.3"):
        try:
            composed = compose("config", overrides=own, return_hydra_config=True)
            return Path(composed.hydra[key].dir)
        except (HydraException, OmegaConfBaseException):  # the mistake itself
            composed = compose("config", return_hydra_config=True)
            return Path(composed.hydra[key].dir)

"""Which backend compiles a plan on this machine."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from gemma4cfg.compile.backend import Backend
from gemma4cfg.compile.carry_out import imported
from gemma4cfg.compile.export_backend import ExportBackend
from gemma4cfg.compile.sdk_backends import SdkBackend, weights_in
from gemma4cfg.compile.sdk_environment import prepare
from gemma4cfg.errors import ConfigError
from gemma4cfg.plan.records import Plan

NEEDS = {
    "trace": ("torch_neuronx",),
    "tp_alias": ("torch_neuronx", "neuronx_distributed"),
    "model_builder": ("torch_neuronx", "neuronx_distributed"),
}
"""What each recipe imports."""

DEVICES = Path("/dev")
"""Where the driver shows a machine's Neuron devices, as ``neuron0`` and so on."""


def backend_of(plan: Plan, asked: Literal["auto", "sdk", "export"], checkpoint: str | None) -> Backend:
    """Raises ConfigError for a plan whose stack compiles by itself, for ``sdk`` where it does not import, and for programs
    that carry weights without a checkpoint."""
    if not plan.graphs:
        raise ConfigError(
            f"recipe={plan.recipe} compiles nothing ahead: its calls are one command; e.g. recipe=model_builder"
        )
    why = None if asked == "export" else sdk_lacks(plan)
    if asked == "sdk" and why:
        raise ConfigError(
            f"compile.backend=sdk: {why}; pip install 'gemma4cfg[neuron]' with AWS's index, or compile.backend=export. "
            "task=doctor says what else is missing"
        )
    if asked == "export" or why:
        return ExportBackend()
    backend = SdkBackend(plan.recipe, checkpoint)
    if checkpoint is None and any(weights_in(plan, unit) for unit in backend.units(plan)):
        raise ConfigError(
            f"recipe={plan.recipe} compiles programs that carry the weights: add checkpoint=DIR, a Hugging Face directory"
        )
    return backend


def sdk_lacks(plan: Plan) -> str | None:
    """What keeps the plan's calls from the SDK on this machine; null where all that they name imports. Importing makes the
    process fit for it (``sdk_environment``)."""
    packages = NEEDS[plan.recipe]
    absent = [name for name in packages if find_spec(name) is None]
    if absent:
        return f"no {' and no '.join(absent)} is installed here"
    prepare()
    for api in dict.fromkeys((*packages, *(call.api for call in plan.calls if "self" not in call.args))):
        if api.startswith(packages):
            try:
                imported(api)
            except Exception as error:  # whatever a broken installation raises
                return f"{api} does not import: {type(error).__name__}: {error}"
    return None


def has_device() -> bool:
    """Whether this machine has a Neuron device."""
    return any(DEVICES.glob("neuron[0-9]*"))

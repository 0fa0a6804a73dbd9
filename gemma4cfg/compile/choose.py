"""Which backend compiles a plan on this machine."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from gemma4cfg.compile.backend import Backend
from gemma4cfg.compile.export_backend import ExportBackend
from gemma4cfg.compile.sdk_backends import SdkBackend
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
    """Raises ConfigError for a plan whose stack compiles by itself, and for ``sdk`` where it is not installed."""
    if not plan.graphs:
        raise ConfigError(
            f"recipe={plan.recipe} compiles nothing ahead: its calls are one command; e.g. recipe=model_builder"
        )
    lacking = [name for name in NEEDS[plan.recipe] if find_spec(name) is None]
    if asked == "sdk" and lacking:
        raise ConfigError(
            f"compile.backend=sdk: {', '.join(lacking)} is not installed here; pip install 'gemma4cfg[neuron]' with AWS's "
            "index, or compile.backend=export. task=doctor says what else is missing"
        )
    if asked == "export" or lacking:
        return ExportBackend()
    return SdkBackend(plan.recipe, checkpoint)


def has_device() -> bool:
    """Whether this machine has a Neuron device."""
    return any(DEVICES.glob("neuron[0-9]*"))

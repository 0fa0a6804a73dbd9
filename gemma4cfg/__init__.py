"""gemma4cfg: a Gemma-4 model, a machine and a few choices in; one explicit sharding plan out.

``load_config``, ``build_plan``, ``sweep`` and ``Plan``, ``diff_plans`` and ``apply_diff`` are the API; they are imported when
first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_EXPORTS = {
    "load_config": "gemma4cfg.config.compose",
    "build_plan": "gemma4cfg.planner.build",
    "Plan": "gemma4cfg.plan.records",
    "diff_plans": "gemma4cfg.difference.plans",
    "apply_diff": "gemma4cfg.difference.plans",
    "PlanDiff": "gemma4cfg.difference.plans",
    "sweep": "gemma4cfg.sweeps.run",
    "UserError": "gemma4cfg.errors",
}

__all__ = [
    "Plan",
    "PlanDiff",
    "UserError",
    "__version__",
    "apply_diff",
    "build_plan",
    "diff_plans",
    "load_config",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)

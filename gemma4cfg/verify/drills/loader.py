"""Faults of loading: a name passed over leaves what the module was made with, which is one."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gemma4cfg.plan.records import Plan
from gemma4cfg.runtime.graphs import RankModule
from gemma4cfg.verify.drills.records import MOE, NOTHING, Drill
from gemma4cfg.verify.faults import Fault


def _passed_over(wanted: Callable[[str, Plan], bool]) -> Callable[[Plan], Fault]:
    """Parameters whose name is wanted are left at one."""

    def edit(module: RankModule, plan: Plan) -> None:
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if wanted(name, plan):
                    parameter.data = torch.ones_like(parameter)

    return lambda plan: Fault(module=edit)  # noqa: ARG005


DRILLS = (
    Drill(
        "layer_scalar_dropped",
        "loader",
        "every layer's scalar is left at 1",
        _passed_over(lambda name, plan: name.endswith("layer_scalar")),  # noqa: ARG005
        NOTHING,
    ),
    Drill(
        "last_layer_scalar_dropped",
        "loader",
        "the last layer's scalar is left at 1, which the final norm hides",
        _passed_over(lambda name, plan: name == f"model.layers.{len(plan.layers) - 1}.layer_scalar"),
        NOTHING,
    ),
    Drill(
        "per_expert_scale_dropped",
        "loader",
        "the router's scale of each expert is left at 1",
        _passed_over(lambda name, plan: name.endswith("router.per_expert_scale")),  # noqa: ARG005
        MOE,
    ),
    Drill(
        "router_scale_dropped",
        "loader",
        "the router's input scale is left at 1",
        _passed_over(lambda name, plan: name.endswith("router.scale")),  # noqa: ARG005
        MOE,
    ),
)

"""What the page of a plan shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gemma4cfg.views.groups import layer_groups
from gemma4cfg.views.report.bars import device_bars, host_bars
from gemma4cfg.views.report.layer_map import layer_map
from gemma4cfg.views.sizes import billions, model_size

JsonPlan = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StateGroup:
    """State tensors of one shape and dtype."""

    names: tuple[str, ...]
    shape: list[int]
    dtype: str


def plan_context(plan: JsonPlan) -> dict[str, Any]:
    """The names that ``plan.html`` reads, of a plan in JSON form."""
    size = model_size(plan)
    ranks = "the only rank" if plan["tp"] == 1 else f"each of {plan['tp']} ranks"
    return {
        "title": f"{plan['model']} on {plan['target']}, tp {plan['tp']}",
        "plan": plan,
        "machine": next(decision["detail"] for decision in plan["decisions"] if decision["id"] == "target"),
        "parameters": f"{billions(size.total)} ({billions(size.active)} act on a token)",
        "size": size,
        "map": layer_map(plan),
        "groups": layer_groups(plan["layers"]),
        "device_bars": device_bars([(ranks, plan)]),
        "host_bars": host_bars([("", plan)]),
        "prefill": sorted(plan["estimate"]["prefill_ms_by_bucket"].items(), key=lambda item: int(item[0])),
        "states": {graph["name"]: list(_states(graph)) for graph in plan["graphs"]},
    }


def _states(graph: Mapping[str, Any]) -> Iterator[StateGroup]:
    groups: dict[tuple[Any, ...], list[str]] = {}
    for port in graph["state"]:
        groups.setdefault((*port["shape"], port["dtype"]), []).append(port["name"])
    for (*dimensions, dtype), names in groups.items():
        yield StateGroup(tuple(names), dimensions, dtype)

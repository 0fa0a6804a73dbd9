"""A fault planted in a run, for a drill: in the plan, the loader, the graph or the host's part, never in a check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gemma4cfg.plan.encode import identities
from gemma4cfg.plan.records import Plan
from gemma4cfg.runtime.graphs import RankModule
from gemma4cfg.runtime.host.tables import HostTables

InputsEdit = Callable[[str, Mapping[str, Tensor]], dict[str, Tensor]]
"""A graph's name and the inputs of one call to other inputs."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Where it is planted; null: nothing is changed there.

    ``plan`` edits the JSON of the plan that resharder, ranks and host follow, while the checks keep to the right one.
    ``module`` edits a rank's module after its weights are loaded. ``tables`` gives other host tables. ``inputs`` gives
    other inputs of a call: (graph, inputs) to inputs. ``host_plan`` edits the plan's JSON for the host alone.
    """

    plan: Callable[[dict[str, Any]], None] | None = None
    module: Callable[[RankModule, Plan], None] | None = None
    tables: Callable[[HostTables], HostTables] | None = None
    inputs: InputsEdit | None = None
    host_plan: Callable[[dict[str, Any]], None] | None = None

    def planned(self, plan: Plan) -> Plan:
        """The plan that is run."""
        return _edited(plan, self.plan)

    def hosted(self, plan: Plan) -> Plan:
        """The plan that the host follows."""
        return _edited(plan, self.host_plan)


NO_FAULT = Fault()


def _edited(plan: Plan, edit: Callable[[dict[str, Any]], None] | None) -> Plan:
    if edit is None:
        return plan
    import json

    plain: dict[str, Any] = json.loads(json.dumps(plan.to_json()))
    edit(plain)
    plain["placement_id"], plain["plan_id"] = identities(plain)
    return Plan.from_json(plain)

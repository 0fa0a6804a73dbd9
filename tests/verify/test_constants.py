"""Constants of the host are the plan's, or a sentence each."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gemma4cfg import build_plan, load_config
from gemma4cfg.plan.records import Plan
from gemma4cfg.runtime.host.tables import HostTables, _Projection
from gemma4cfg.verify.constants import wrong_host_constants


@pytest.fixture(scope="module")
def plan() -> Plan:
    return build_plan(load_config(["model=e2b", "offload.per_layer_projection=host"]))


def tables(plan: Plan) -> HostTables:
    """Without rows: constants are read from none."""
    projection = _Projection(plan.numerics, torch.empty(0), torch.empty(0))
    return HostTables(plan.numerics, torch.float32, 8, 2, None, None, projection)


def test_the_plans_own(plan: Plan) -> None:
    assert wrong_host_constants(tables(plan), plan, plan) == ()


def test_a_softcap_that_the_host_leaves_out(plan: Plan) -> None:
    without = replace(plan, host=tuple(part for part in plan.host if part.what != "softcap"))
    assert wrong_host_constants(tables(plan), without, plan) == ("softcap of the host is None, the plan says 30.0",)


@pytest.mark.parametrize("name", ["projection_scale", "combine_scale"])
def test_a_scale_of_the_projection(name: str, plan: Plan) -> None:
    """Which a norm hides."""
    ple, given = plan.numerics.ple, tables(plan)
    assert ple is not None and given.projection is not None
    numerics = replace(plan.numerics, ple=replace(ple, **{name: 1.0}))
    (found,) = wrong_host_constants(replace(given, projection=replace(given.projection, numerics=numerics)), plan, plan)
    assert found == f"ple.{name} of the host is 1.0, the plan says {getattr(ple, name)}"

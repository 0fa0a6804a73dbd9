"""Whether embeddings are scaled: by the plan, and by the host's tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gemma4cfg import build_plan, load_config
from gemma4cfg.errors import UserError
from gemma4cfg.plan.records import Plan
from gemma4cfg.runtime.cut import write_rank_files
from gemma4cfg.runtime.host.checks import check_applied_scale, check_planned_scale
from gemma4cfg.runtime.host.tables import HostTables
from tests.trained import MODELS, trained


def plan_of(model: str, *choices: str) -> Plan:
    return build_plan(load_config([f"checkpoint={trained(model)}", *choices]))


def scaled(plan: Plan, scale: float) -> Plan:
    return replace(plan, numerics=replace(plan.numerics, embedding_scale=scale))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("model", MODELS)
def test_the_plans_own_scale_passes(model: str, dtype: str) -> None:
    check_planned_scale(plan_of(model, f"dtype={dtype}"))


@pytest.mark.parametrize("scale", [1.0, 32.0, 5.6])
def test_another_scale_in_the_plan(scale: float) -> None:
    with pytest.raises(UserError, match=f"multiplied by {scale}, and .* hidden size 32, 5.65625; leave model.embed"):
        check_planned_scale(scaled(plan_of("12b"), scale))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_what_the_tables_give(dtype: str, tmp_path: Path) -> None:
    plan = plan_of("e2b", f"dtype={dtype}")
    write_rank_files(plan, str(trained("e2b")), str(tmp_path))
    check_applied_scale(plan, HostTables.open(plan, tmp_path), tmp_path)
    for scale in (1.0, 5.4, 5.9):
        with pytest.raises(UserError, match=r"token embeddings are multiplied by .* square root of its hidden size 32"):
            check_applied_scale(plan, HostTables.open(scaled(plan, scale), tmp_path), tmp_path)


def test_an_embedding_on_the_device_is_not_the_hosts_to_check(tmp_path: Path) -> None:
    plan = plan_of("12b", "offload.token_embedding=device")
    write_rank_files(plan, str(trained("12b")), str(tmp_path))
    check_applied_scale(plan, HostTables.open(plan, tmp_path), tmp_path)

"""A difference is exact and minimal: made to the first plan it gives the second, and it holds nothing that is equal."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from itertools import combinations
from operator import getitem
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from gemma4cfg import Plan, PlanDiff, UserError, apply_diff, build_plan, diff_plans
from gemma4cfg.difference.apply import apply_edits
from gemma4cfg.difference.edits import Edit, find_edits, is_equal
from gemma4cfg.errors import ConfigError
from gemma4cfg.plan.bytes import ITEM_BYTES
from gemma4cfg.plan.encode import canonical
from tests.architectures import SMALL, Choices, configurations, small
from tests.diff import CASES, compared, planned, record_lists

RECORD_LISTS = set(record_lists(Plan))
MODELS = ("model=e2b", "model=e4b tp=2", "model=12b tp=4", "model=26b-a4b tp=8", "model=31b tp=8")


def check_exact(old: Plan, new: Plan) -> PlanDiff:
    """Everything that holds of the difference of any two plans."""
    diff = diff_plans(old, new)
    plain = json.loads(json.dumps(diff.to_json()))
    assert canonical(apply_diff(old.to_json(), plain)) == canonical(new.to_json())
    check_minimal([*diff.changes, *diff.aside])
    assert canonical(PlanDiff.from_json(plain).to_json()) == canonical(plain)
    assert diff.totals.values == sum(1 for edit in diff.changes for _ in edit.each())
    assert diff.same == (diff.totals.values == 0)
    if old.plan_id != new.plan_id:
        assert not diff.same
    check_bytes(old, new, diff)
    return diff


def check_minimal(edits: list[Edit]) -> None:
    """No value that is equal on both sides, no place twice, no place inside another."""
    singles = [single for edit in edits for single in edit.each()]
    changed = [single.path for single in singles if single.op != "move"]
    assert len(set(changed)) == len(changed)
    whole = {single.path for single in singles if single.op != "move"}
    assert not any(path[:length] in whole for path in changed for length in range(1, len(path)))
    for single in singles:
        if single.op in ("change", "move"):
            assert not is_equal(single.old, single.new)
            assert not (isinstance(single.old, Mapping) and isinstance(single.new, Mapping))
        if single.op == "change":
            assert single.path not in RECORD_LISTS
            assert (*single.path[:1], "*", *single.path[2:]) not in RECORD_LISTS


def check_bytes(old: Plan, new: Plan, diff: PlanDiff) -> None:
    """The tensors that changed account for the difference of a rank's weights, rank tensors aside."""
    moved = 0
    for change in diff.tensors:
        for side, sign in ((change.old, -1), (change.new, 1)):
            moved += sign * side["bytes"] if side and side["home"] == "device" else 0
    held = []
    for plan in (old, new):
        ids = sum(len(tensor.values[0]) * ITEM_BYTES[tensor.dtype] for tensor in plan.rank_tensors.values())
        held.append(plan.budget.hbm_per_rank.weights // plan.weight_copies - ids)
    assert moved == held[1] - held[0]


@pytest.mark.parametrize(("old", "new"), list(combinations(MODELS, 2)), ids=lambda words: words.replace("model=", ""))
def test_models(old: str, new: str) -> None:
    diff = check_exact(planned(old), planned(new))
    assert len(canonical(diff.to_json())) < 110_000


@pytest.mark.parametrize("name", CASES)
def test_cases(name: str) -> None:
    old, new = CASES[name]
    check_exact(planned(old), planned(new))


@pytest.mark.parametrize("words", MODELS)
def test_same_is_empty(words: str) -> None:
    diff = diff_plans(planned(words), planned(words))
    assert diff.same
    assert (diff.changes, diff.aside, diff.tensors) == ((), (), ())
    assert {graph.action for graph in diff.rebuild.graphs} == {"keep"}
    assert diff.rebuild.rank_files.action == "keep"
    assert set(diff.to_json()["totals"].values()) == {0}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(configurations(), configurations())
def test_any_two_plans(first: Choices, second: Choices) -> None:
    plans = []
    for choices in (first, second):
        try:
            plans.append(build_plan(choices.config()))
        except UserError:
            assume(False)
    diff = check_exact(*plans)
    check_exact(*reversed(plans))
    event(
        "layers by type" if any("." in e.path[1] for e in diff.changes if e.path[0] == "layers" and e.path[1:]) else "-"
    )
    assert diff_plans(plans[0], plans[0]).to_json()["changes"] == []


PLAIN = build_plan(small(replace(SMALL, kv_shared_layers=1), tp=2)).to_json()
LISTS = [path for path in record_lists(Plan) if "*" not in path]


def part_of(plan: Any, path: tuple[str, ...]) -> Any:
    return reduce(getitem, path, plan)


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False), st.lists(st.sampled_from(LISTS), max_size=3), st.integers(0, 3))
def test_members_that_come_go_and_move(chance: random.Random, shuffled: list[tuple[str, ...]], gone: int) -> None:
    """As no planner would make it."""
    sides: list[dict[str, Any]] = [json.loads(canonical(PLAIN)) for _ in range(2)]
    for plan in sides:
        for part in shuffled:
            chance.shuffle(part_of(plan, part))
        for _ in range(gone):
            members = chance.choice([members for part in LISTS if (members := part_of(plan, part))])
            del members[chance.randrange(len(members))]
    for plan in sides:
        for position, layer in enumerate(plan["layers"]):
            layer["index"] = position
        plan["calls"] = [call for call in plan["calls"] if "calls/" not in canonical(call)]  # they refer by number
    before = copy.deepcopy(sides[0])
    edits = find_edits(*sides)
    check_minimal(edits)
    assert canonical(apply_edits(sides[0], edits)) == canonical(sides[1])
    assert sides[0] == before


@pytest.mark.parametrize("other", ["model=e2b tp=2", "model=12b tp=2"])
def test_a_difference_from_another_plan_is_refused(other: str) -> None:
    diff = compared("e4b-12b").to_json()
    with pytest.raises(ConfigError, match=r"this difference is from another plan: .* does not hold what it would"):
        apply_diff(planned(other).to_json(), diff)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        pytest.param({"changes": [{"op": "swap", "path": ["tp"]}]}, "expected change | add | remove | move", id="op"),
        pytest.param({"surprise": 1}, "unknown key diff.surprise", id="key"),
        pytest.param({"totals": None}, "diff.totals", id="type"),
    ],
)
def test_what_is_no_difference_is_refused(fault: dict[str, Any], told: str) -> None:
    diff = {**compared("same").to_json(), **fault}
    with pytest.raises(ConfigError) as refused:
        apply_diff(PLAIN, diff)
    assert told in str(refused.value)

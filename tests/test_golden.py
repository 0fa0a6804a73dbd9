"""Whole plans against their goldens. After a change that is meant: ``python -m tests.golden --write``, and read the diff."""

from __future__ import annotations

import json

import pytest

from gemma4cfg.plan.encode import readable
from gemma4cfg.plan.fold import fold
from tests.golden import CASES, difference, made, plan_of, stored, strangers

FULL_LAYERS_OF_31B = (5, 11, 17, 23, 29, 35, 41, 47, 53, 59)


@pytest.mark.parametrize("name", CASES)
def test_plan_is_as_its_golden(name: str) -> None:
    assert difference(stored(name), made(name)) == ""


def test_there_are_goldens_and_no_others() -> None:
    assert strangers() == []
    absent = {name for name in CASES if stored(name) is None}
    assert absent == {"26b-a4b-tp1", "26b-a4b-tp2", "31b-tp1", "31b-tp2"}


def test_a_golden_is_readable_and_holds_the_whole_plan() -> None:
    golden = stored("31b-tp8")
    assert golden is not None and len(golden) < 35_000
    plan = plan_of(golden)
    assert [layer["index"] for layer in plan["layers"]] == list(range(60))
    assert len(plan["tensors"]) == 833
    assert readable(fold(plan)) == golden


def test_a_changed_plan_is_said_in_words() -> None:
    golden = stored("31b-tp8")
    assert golden is not None
    plan = json.loads(json.dumps(plan_of(golden)))
    for index in FULL_LAYERS_OF_31B:
        plan["layers"][index]["attention"]["mode"] = "replicate"
        del plan["tensors"][f"model.language_model.layers.{index}.layer_scalar"]
    plan["layers"][3]["kv"]["slot"] = None
    plan["graphs"][1]["state"].reverse()
    plan["budget"]["hbm_per_rank"]["kv"] += 1
    plan["tp"] = 8.0
    words = difference(golden, readable(fold(plan))).splitlines()
    assert "layers.{5,11,17,23,29,35,41,47,53,59}.attention.mode group -> replicate" in words
    assert "layers.3.kv.slot 3 -> none" in words
    assert "budget.hbm_per_rank.kv 251,658,240 -> 251,658,241" in words
    assert "tp 8 -> 8.0" in words
    removed = "tensors.model.language_model.layers.{5,11,17,23,29,35,41,47,53,59}.layer_scalar "
    assert any(line.startswith(removed) and line.endswith(" -> -") for line in words)
    assert any(line.startswith("graphs.decode.state ") and line.endswith(" in order") for line in words)
    assert words[-1] == "24 differences" and len(words) == 7


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        pytest.param(None, "{}", "a plan without a golden", id="missing"),
        pytest.param("{}", None, "a golden without a plan: the planner refuses it", id="left_over"),
        pytest.param("{}", "{ }", "the same plan in another spelling", id="spelling"),
        pytest.param('{"a": 1}', '{"b": 1}', "a 1 -> -\nb - -> 1\n2 differences", id="keys"),
        pytest.param('{"host": [{"what": "x"}]}', '{"host": []}', "host.x what x -> -\n1 difference", id="records"),
    ],
)
def test_difference(old: str | None, new: str | None, words: str) -> None:
    assert difference(old, new) == words

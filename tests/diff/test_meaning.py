"""What counts as a change, what changes results, and what stays valid."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from gemma4cfg import Plan, diff_plans
from gemma4cfg.difference.members import is_record_list
from gemma4cfg.plan.encode import canonical, identities
from gemma4cfg.plan.reasons import Reason
from tests.diff import CASES, compared, planned, record_lists

OLD = planned("model=26b-a4b tp=8")


def changed(change: Callable[[dict[str, Any]], Any]) -> Plan:
    """The plan with something else in it, and ids that fit."""
    plain = json.loads(canonical(OLD.to_json()))
    change(plain)
    plain["placement_id"], plain["plan_id"] = identities(plain)
    return Plan.from_json(plain)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda plan: plan["provenance"].update(overrides=["x=1"]), id="provenance"),
        pytest.param(lambda plan: plan["decisions"][3].update(detail="said better"), id="detail"),
        pytest.param(lambda plan: plan["decisions"][0]["over"][0].update(detail="said better"), id="turned_down"),
        pytest.param(lambda plan: plan["findings"][0].update(message="said better", fix="do it"), id="finding"),
        pytest.param(lambda plan: plan["budget"]["basis"].update(code="said better"), id="budget_basis"),
        pytest.param(lambda plan: plan["estimate"].update(basis="said better"), id="estimate_basis"),
    ],
)
def test_words_are_no_change(change: Callable[[dict[str, Any]], Any]) -> None:
    diff = diff_plans(OLD, changed(change))
    assert diff.same and diff.aside


@pytest.mark.parametrize(
    ("change", "numerics"),
    [
        pytest.param(lambda plan: plan["decisions"][3].update(reason="default"), False, id="reason"),
        pytest.param(lambda plan: plan["findings"].pop(), False, id="finding"),
        pytest.param(lambda plan: plan["graphs"][0].update(id="0" * 64), False, id="graph"),
        pytest.param(lambda plan: plan["estimate"]["prefill_ms"].update(low=1.0), False, id="estimate"),
        pytest.param(lambda plan: plan["numerics"].update(attention_scale=0.0625), True, id="scale"),
        pytest.param(lambda plan: plan["numerics"].update(final_logit_softcap=None), True, id="softcap"),
        pytest.param(lambda plan: plan.update(dtype="float32"), True, id="dtype"),
        pytest.param(lambda plan: plan["shapes"].update(kv_dtype="float32"), True, id="kv_dtype"),
        pytest.param(lambda plan: plan["layers"][7].update(window=512), True, id="window"),
        pytest.param(lambda plan: plan["layers"][7]["rope"].update(theta=2e4), True, id="rope"),
        pytest.param(lambda plan: plan["layers"][7]["moe"].update(top_k=4), True, id="top_k"),
        pytest.param(lambda plan: plan["layers"][7].update(moe=None), True, id="no_experts"),
        pytest.param(lambda plan: plan["layers"][7]["attention"].update(implementation="sdpa"), True, id="kernel"),
        pytest.param(lambda plan: plan["layers"][7]["attention"].update(reduce=False), False, id="reduce"),
        pytest.param(lambda plan: plan["tensors"].pop("lm_head.weight"), True, id="tensor"),
        pytest.param(lambda plan: plan["tensors"]["lm_head.weight"].update(home="unused"), False, id="home"),
    ],
)
def test_what_changes_results_is_marked(change: Callable[[dict[str, Any]], Any], numerics: bool) -> None:
    """Case 57 of the public ones: another attention scale shows, marked."""
    diff = diff_plans(OLD, changed(change))
    assert len(diff.changes) == 1
    assert diff.changes[0].numerics is numerics
    assert diff.totals.numerics == int(numerics)


@pytest.mark.parametrize("name", CASES)
def test_reasons_are_of_the_closed_list(name: str) -> None:
    diff = compared(name)
    known = {reason.value for reason in Reason} | {""}
    edits = {reason for edit in diff.changes for reason in edit.reasons}
    assert edits | {change.reason for change in diff.tensors} <= known


SHAPE = ("layers", "kv", "shape")


@pytest.mark.parametrize(
    ("old", "new", "path", "reasons"),
    [
        pytest.param("model=12b tp=2", "model=12b tp=4", ("tp",), {"requested"}, id="tp"),
        pytest.param("model=12b tp=2", "model=12b ++tp=4", ("tp",), {"requested"}, id="forced"),
        pytest.param("model=e2b tp=2", "model=e2b", ("tp",), set(), id="default"),
        pytest.param("model=e2b", "model=e2b tp=auto objective=memory", ("tp",), {"best_by_objective"}, id="searched"),
        pytest.param("model=e2b", "model=e4b", ("model",), {"requested"}, id="model"),
        pytest.param("model=e2b", "model=e2b shapes=kv512", ("shapes", "kv_length"), {"requested"}, id="group"),
        pytest.param("model=e2b", "model=e2b shapes.batch=2", ("shapes", "batch"), {"requested"}, id="batch"),
        pytest.param("model=e2b", "model=e2b dtype=float32", ("shapes", "kv_dtype"), {"requested"}, id="kv_dtype"),
        pytest.param("model=e2b", "model=e2b shapes.batch=2", SHAPE, {"requested"}, id="streams"),
        pytest.param("model=e2b", "model=e2b shapes.kv_layout=ring", SHAPE, {"requested"}, id="rows"),
        pytest.param("model=e2b shapes.kv_length=512", "model=e2b", SHAPE, set(), id="rows-by-default"),
        pytest.param("model=26b-a4b tp=4", "model=26b-a4b tp=8", SHAPE, {"only_option"}, id="heads"),
    ],
)
def test_why_it_is_so(old: str, new: str, path: tuple[str, ...], reasons: set[str]) -> None:
    changes = diff_plans(planned(old), planned(new)).changes
    edits = [edit for edit in changes if path in (edit.path, (*edit.path[:1], *edit.path[2:]))]
    assert edits and {reason for edit in edits for reason in edit.reasons} == reasons


def test_both_reasons_where_layer_types_have_one_each() -> None:
    (edit,) = (edit for edit in compared("26b-a4b-tp4-tp8").changes if edit.path[2:] == ("attention", "local_q_heads"))
    assert edit.reasons == ("only_option", "fewest_bytes")
    types = {change.name.rpartition("{}.")[2]: change.types for change in compared("31b-replicate-group").tensors}
    assert types["self_attn.k_proj.weight"] == {"full_attention": 10}


def test_artifacts_go_by_id_not_by_name() -> None:
    def rename(plan: dict[str, Any]) -> None:
        plan["graphs"][0]["name"] = "prompt"

    graphs = {graph.name: graph.action for graph in diff_plans(OLD, changed(rename)).rebuild.graphs}
    assert graphs == {"prompt": "keep", "decode": "keep", "prefill_512": "drop"}


def test_layers_of_the_same_pattern_are_told_by_index() -> None:
    edits = [edit for edit in compared("31b-replicate-group").changes if edit.path[2:] == ("attention", "mode")]
    assert [(edit.numbers, edit.layers) for edit in edits] == [("5,11,17,23,29,35,41,47,53,59", {"full_attention": 10})]


def test_layers_of_another_pattern_are_told_by_type() -> None:
    layers = [edit for edit in compared("e2b-31b").changes if edit.path[0] == "layers" and edit.op != "move"]
    assert layers and all(len(edit.layers) == 1 for edit in layers)
    assert not any(edit.path[2:] in (("type",), ("window",)) and edit.new is None for edit in layers)


def test_every_list_of_records_is_compared_by_member() -> None:
    paths = record_lists(Plan)
    assert {("graphs", "*", "state"), ("budget", "on_chip"), ("estimate", "alternatives")} <= set(paths)
    assert [path for path in paths if not is_record_list(path)] == []


@pytest.mark.parametrize(
    ("change", "path"),
    [
        pytest.param(lambda plan: plan["budget"]["lines"][3].update(bytes=1), "budget lines", id="line"),
        pytest.param(lambda plan: plan["budget"]["graphs"][1].update(code=1), "budget graphs decode code", id="graph"),
        pytest.param(lambda plan: plan["budget"]["on_chip"][2].update(bytes=1), "budget on_chip", id="on_chip"),
        pytest.param(
            lambda plan: plan["estimate"]["alternatives"][1].update(taken=True),
            "estimate alternatives attention.implementation sdpa taken",
            id="alternative",
        ),
    ],
)
def test_one_value_of_a_record_is_one_edit(change: Callable[[dict[str, Any]], Any], path: str) -> None:
    (edit,) = diff_plans(OLD, changed(change)).changes
    assert " ".join(edit.path).startswith(path)
    assert not isinstance(edit.new, (dict, list))

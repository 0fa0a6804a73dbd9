"""Tiny twins of the five models through the resharder and back, byte for byte, for every policy that a plan can have."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sharding import check, merge, reshard
from tests import twins
from tests.twins import MODELS, PREFIX, twin_plan, twin_values

EXPERTS = "moe.partition=experts"
HEAD_WHOLE = "lm_head.partition=replicate"

Case = tuple[str, int, tuple[str, ...]]
"""Model, TP degree, and choices beside those."""


def _cases() -> list[Case]:
    cases: list[Case] = [(model, tp, ()) for model in MODELS for tp in (1, 2, 4, 8)]
    cases += [(model, tp, ("attention.policy=replicate",)) for model in MODELS for tp in (3, 12)]
    cases += [(model, tp, ("attention.policy=pad",)) for model in MODELS for tp in (3, 12)]
    cases += [(model, 8, ("attention.policy=replicate", HEAD_WHOLE)) for model in MODELS]
    cases += [(model, tp, ("attention.policy=replicate",)) for model in MODELS for tp in (1, 2, 4)]
    cases += [(model, tp, ("ple.partition=split",)) for model in ("e2b", "e4b") for tp in (2, 4, 8)]
    cases += [("26b-a4b", tp, (EXPERTS,)) for tp in (1, 2, 4, 8)]
    cases += [("26b-a4b", 8, ("moe.partition=intermediate",)), ("31b", 2, ("attention.policy=split",))]
    cases += [("12b", 4, ("attention.policy=group",))]
    cases += [("e2b", 2, ("offload.token_embedding=device", "offload.per_layer_embedding=device"))]
    return cases


CASES = _cases()


def case_id(case: Case) -> str:
    model, tp, choices = case
    return "-".join([model, f"tp{tp}", *(choice.rpartition(".")[2] for choice in choices)])


def run(plan: Mapping[str, Any], source: Path, destination: Path, **options: Any) -> None:
    placements = {"tensors": plan["tensors"], "rank_tensors": plan["rank_tensors"]}
    reshard(placements, plan["tp"], source, destination, plan["dtype"], placement_id=plan["placement_id"], **options)


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_there_and_back(case: Case, tmp_path: Path) -> None:
    model, tp, choices = case
    plan = twin_plan(model, tp, *choices)
    number = CASES.index(case)
    parts, optional = (1, 3)[number % 2], number // 2 % 2 == 0  # every model meets all four
    values = twin_values(plan, optional, seed=number)
    source = twins.write_twin(tmp_path / "in", values, parts)

    run(plan, source, tmp_path / "out")
    merge(tmp_path / "out", tmp_path / "back")

    assert twins.differences(twins.read_directory(tmp_path / "out"), twins.expected_files(plan, values)) == []
    back = twins.read_directory(tmp_path / "back")
    assert twins.merged_tensors(back) == twins.as_stored(values, twins.used(plan))
    for part, tensors in twins.read_directory(source).items():
        assert back[part] == {name: tensor for name, tensor in tensors.items() if name in twins.used(plan)}, part


@pytest.mark.parametrize("optional", [True, False], ids=["published", "fine-tune"])
@pytest.mark.parametrize("parts", [1, 3], ids=["one-file", "index"])
@pytest.mark.parametrize("model", MODELS)
def test_the_same_rank_files_from_every_form_of_a_checkpoint(
    model: str, parts: int, optional: bool, tmp_path: Path
) -> None:
    """One file or an index, the whole model's names or a text-only one's, with or without what nothing reads."""
    plan = twin_plan(model, 4)
    values = twin_values(plan, optional)
    source = twins.write_twin(tmp_path / "in", values, parts, prefix="model.")

    run(plan, source, tmp_path / "out", names={"model.": PREFIX, "model.vision_tower.": "model.vision_tower."})

    assert twins.differences(twins.read_directory(tmp_path / "out"), twins.expected_files(plan, values)) == []
    assert check(tmp_path / "out", source) == ()
    merge(tmp_path / "out", tmp_path / "back")
    stored = {name.replace(PREFIX, "model.", 1): values[name] for name in twins.used(plan)}
    assert twins.merged_tensors(twins.read_directory(tmp_path / "back")) == twins.as_stored(stored, set(stored))


@pytest.mark.parametrize("model", ["e2b", "26b-a4b"])
def test_widened_to_float32(model: str, tmp_path: Path) -> None:
    plan = twin_plan(model, 4, "dtype=float32")
    assert plan["dtype"] == "float32"
    values = twin_values(plan)
    source = twins.write_twin(tmp_path / "in", values, 3)

    run(plan, source, tmp_path / "out")

    assert twins.differences(twins.read_directory(tmp_path / "out"), twins.expected_files(plan, values)) == []
    merge(tmp_path / "out", tmp_path / "back")
    back = twins.merged_tensors(twins.read_directory(tmp_path / "back"))
    assert back == twins.as_stored(values, twins.used(plan))


def test_the_cases_show_every_policy() -> None:
    """What the tests above go through, so that a planner that answers otherwise cannot empty them."""
    modes: Counter[str] = Counter()
    padded: set[str] = set()
    packed = strided = constants = tied_cut = tied_whole = 0
    for model, tp, choices in CASES:
        plan = twin_plan(model, tp, *choices)
        modes.update({layer["attention"]["mode"] for layer in plan["layers"]})
        constants += bool(plan["rank_tensors"])
        for name, entry in plan["tensors"].items():
            if entry["home"] != "device" or entry["placement"]["dim"] is None:
                tied_whole += entry["status"] == "tied"
                continue
            pieces = [piece for rank in entry["placement"]["ranges"] for piece in rank]
            tied_cut += entry["status"] == "tied"
            strided += tp > 1 and entry["placement"]["dim"] > 0
            packed += tp > 1 and any(len(rank) > 1 for rank in entry["placement"]["ranges"])
            if any(isinstance(piece, dict) for piece in pieces):
                padded.add(re.sub(r".*\.layers\.\d+\.", "", name))
    assert set(modes) == {"split", "group", "replicate", "pad"}
    assert {"lm_head.weight", "self_attn.q_proj.weight", "self_attn.o_proj.weight", "mlp.down_proj.weight"} <= padded
    assert min(packed, strided, constants, tied_cut, tied_whole) > 0


@pytest.mark.parametrize("model", MODELS)
def test_a_twin_is_like_its_model(model: str) -> None:
    from gemma4cfg import build_plan, load_config

    plan, original = twin_plan(model, 8), build_plan(load_config([f"model={model}", "tp=8"])).to_json()
    assert plan["tensors"].keys() == original["tensors"].keys()
    assert plan["rank_tensors"].keys() == original["rank_tensors"].keys()
    for twin_layer, layer in zip(plan["layers"], original["layers"], strict=True):
        for key in ("type", "q_heads", "kv_heads", "value_source"):
            assert twin_layer[key] == layer[key]
        assert twin_layer["kv"]["owner"] == layer["kv"]["owner"]
        assert twin_layer["attention"]["mode"] == layer["attention"]["mode"]
    buffers = {name for name, entry in original["tensors"].items() if entry["kind"] == "buffer"}
    assert buffers == {f"{PREFIX}layers.{index}.layer_scalar" for index in range(len(original["layers"]))}
    held = twins.expected_files(plan, twin_values(plan))["tp7_sharded_checkpoint.safetensors"]
    assert {plan["tensors"][name]["local_name"] for name in buffers} <= held.keys()
    assert "lm_head.weight" in held


@pytest.mark.parametrize("model", MODELS)
def test_values_are_distinct(model: str) -> None:
    values = twin_values(twin_plan(model, 1))
    for name, data in values.items():
        assert len(np.unique(data)) == data.size, name
        assert data.all(), name
    assert len({data.tobytes() for data in values.values() if data.size > 1}) == sum(
        data.size > 1 for data in values.values()
    )


def _swap_elements(path: Path) -> str:
    """Two neighbouring elements, in the middle of the largest tensor."""
    return _edit(path, "swap", 1)


def _swap_rows(path: Path) -> str:
    return _edit(path, "swap", 0)


def _set_zero(path: Path) -> str:
    return _edit(path, "zero", 1)


def _edit(path: Path, what: str, dim: int) -> str:
    tensors = twins.read_file(path)
    name = max(
        (name for name, (_, shape, _) in tensors.items() if len(shape) == 2), key=lambda key: len(tensors[key][2])
    )
    dtype, shape, data = tensors[name]
    array = np.frombuffer(data, np.uint16).reshape(shape).copy()
    middle = shape[dim] // 2
    if what == "zero":
        array[0, middle] = 0
    elif dim:
        array[0, [middle - 1, middle]] = array[0, [middle, middle - 1]]
    else:
        array[[middle - 1, middle]] = array[[middle, middle - 1]]
    twins.write_file(path, tensors | {name: (dtype, shape, array.tobytes())})
    return name


def _swap_tensors(path: Path) -> str:
    """Two layers' norms: same shape, same set of names."""
    tensors = twins.read_file(path)
    one, other = (f"model.layers.{index}.input_layernorm.weight" for index in (3, 4))
    twins.write_file(path, tensors | {one: tensors[other], other: tensors[one]})
    return one


def _drop_buffer(path: Path) -> str:
    tensors = twins.read_file(path)
    name = "model.layers.7.layer_scalar"
    del tensors[name]
    twins.write_file(path, tensors)
    return name


@pytest.mark.parametrize("damage", [_swap_elements, _swap_rows, _set_zero, _swap_tensors, _drop_buffer])
@pytest.mark.parametrize("model", ["e4b", "26b-a4b"])
def test_a_permutation_is_seen(model: str, damage: Any, tmp_path: Path) -> None:
    plan = twin_plan(model, 2)
    values = twin_values(plan)
    run(plan, twins.write_twin(tmp_path / "in", values), tmp_path / "out")
    expected = twins.expected_files(plan, values)
    file = "tp1_sharded_checkpoint.safetensors"
    assert twins.differences(twins.read_directory(tmp_path / "out"), expected) == []

    name = damage(tmp_path / "out" / file)

    wrong = twins.differences(twins.read_directory(tmp_path / "out"), expected)
    assert f"{file}: {name}" in wrong


@pytest.mark.parametrize(("one", "other"), [(0, 1), (1, 0)])
def test_exchanged_rank_files_are_seen(one: int, other: int, tmp_path: Path) -> None:
    plan = twin_plan("31b", 2)
    values = twin_values(plan)
    run(plan, twins.write_twin(tmp_path / "in", values), tmp_path / "out")
    expected = twins.expected_files(plan, values)
    found = twins.read_directory(tmp_path / "out")
    names = [f"tp{rank}_sharded_checkpoint.safetensors" for rank in (one, other)]
    assert twins.differences({**found, names[0]: found[names[1]]}, expected)

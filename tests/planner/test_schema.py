"""Every kind of plan against the schema that ships with the package."""

from __future__ import annotations

import functools
import json
from dataclasses import fields
from importlib.resources import files
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from gemma4cfg import Plan, build_plan, load_config
from gemma4cfg.errors import PlanError

SCHEMA_FILE = files("gemma4cfg.plan") / "plan.schema.json"
SCHEMA: dict[str, Any] = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
VALIDATOR = Draft202012Validator(SCHEMA)

PLANS = {
    "e2b": ["model=e2b", "tp=8"],
    "e4b": ["model=e4b", "tp=8"],
    "12b": ["model=12b", "tp=8"],
    "26b-a4b": ["model=26b-a4b", "tp=8"],
    "31b": ["model=31b", "tp=8"],
    "experts": ["model=26b-a4b", "tp=8", "moe.partition=experts"],
    "ple-split": ["model=e4b", "tp=8", "ple.partition=split"],
    "all-on-device": ["model=e2b", "offload=device"],
    "lean": ["model=e2b", "offload=lean"],
    "head-shared-with-embedding": ["model=e2b", "offload=device", "lm_head.partition=replicate"],
    "pad": ["model=12b", "tp=12"],
    "replicate": ["model=31b", "tp=8", "attention.policy=replicate", "lm_head.partition=replicate"],
    "ring": ["model=31b", "tp=8", "shapes=kv32k"],
    "vllm": ["model=e2b", "target=g5g.2xlarge"],
    "trace": ["model=e2b", "recipe=trace", "recipe.placement=one_core", "target=inf2.8xlarge", "shapes=kv128"],
    "tp-alias": ["model=e2b", "recipe=tp_alias", "tp=2"],
    "tp-alias-host": ["model=e2b", "recipe=tp_alias", "recipe.prefill=host", "tp=2"],
    "model-builder-v1": ["model=e2b", "recipe=model_builder", "recipe.api=v1", "tp=2"],
    "small": ["model=e2b", "shapes=kv128", "model.layers=10", "model.kv_shared_layers=5"],
    "float32": ["model=e2b", "tp=8", "dtype=float32"],
}


@functools.cache
def text_of(name: str) -> str:
    return json.dumps(build_plan(load_config(PLANS[name])).to_json())


def plan_json(name: str) -> dict[str, Any]:
    """As it reads from a file, a fresh copy."""
    data: dict[str, Any] = json.loads(text_of(name))
    return data


def problems(data: dict[str, Any]) -> list[str]:
    return [f"{error.json_path}: {error.message[:200]}" for error in VALIDATOR.iter_errors(data)]


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


def test_the_schema_is_in_the_package() -> None:
    assert SCHEMA_FILE.is_file()
    assert set(SCHEMA["required"]) == set(SCHEMA["properties"]) == {field.name for field in fields(Plan)}


@pytest.mark.parametrize("name", PLANS)
def test_plan_is_valid(name: str) -> None:
    assert problems(plan_json(name)) == []


@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("kv_length", [256, 2048, 8192, 16384, 131072])
def test_a_served_plan_is_valid_at_every_length(kv_length: int, batch: int) -> None:
    """Or does not fit; a window that is longer than the KV is no negative scratch, and a short KV holds a prompt."""
    words = ["model=e2b", "target=g5g.2xlarge", f"shapes.kv_length={kv_length}", f"shapes.batch={batch}"]
    if (kv_length, batch) == (131072, 8):
        with pytest.raises(PlanError, match="does not fit"):
            build_plan(load_config(words))
    else:
        assert problems(build_plan(load_config(words)).to_json()) == []


@pytest.mark.parametrize("key", sorted(SCHEMA["required"]))
def test_a_plan_without_a_key_is_invalid(key: str) -> None:
    data = plan_json("small")
    del data[key]
    assert problems(data) == [f"$: {key!r} is a required property"]


@pytest.mark.parametrize(
    ("edit", "where"),
    [
        pytest.param(
            lambda plan: plan["layers"][0]["attention"].update(mode="interleave"), "attention.mode", id="mode"
        ),
        pytest.param(lambda plan: plan["layers"][0].update(q_heads=1.5), "layers[0].q_heads", id="half-a-head"),
        pytest.param(lambda plan: plan["layers"][0]["kv"].pop("owner"), "layers[0].kv", id="no-owner"),
        pytest.param(lambda plan: plan["budget"]["hbm_per_rank"].update(kv=1.5), "hbm_per_rank.kv", id="half-a-byte"),
        pytest.param(lambda plan: plan.update(plan_id="0" * 63), "plan_id", id="short-id"),
        pytest.param(lambda plan: plan.update(format_version="2.0"), "format_version", id="other-format"),
        pytest.param(lambda plan: plan["findings"].append({"severity": "fatal"}), "findings", id="severity"),
        pytest.param(lambda plan: plan["tensors"]["lm_head.weight"].update(home="disk"), "tensors", id="home"),
        pytest.param(
            lambda plan: plan["tensors"]["lm_head.weight"]["placement"].update(ranges=[[[0]]]), "placement", id="range"
        ),
    ],
)
def test_schema_refuses(edit: Any, where: str) -> None:
    data = plan_json("small")
    edit(data)
    found = problems(data)
    assert found and where in found[0].replace("['", ".").replace("']", "")

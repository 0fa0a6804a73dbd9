"""The same plan from YAML alone, from the published headers, and from what fine-tunes make of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import pytest

from gemma4cfg import Plan, build_plan, load_config
from gemma4cfg.errors import PlanError
from sharding.headers import read_header
from tests.checkpoints import (
    MODELS,
    Tensors,
    published_config,
    published_tensors,
    text_only,
    write_checkpoint,
)
from tests.cli.runs import run

pytest.importorskip("transformers")
TEXT = "model.language_model."
EMBEDDING = TEXT + "embed_tokens.weight"


def planned(*overrides: str) -> Plan:
    return build_plan(load_config([*overrides, "tp=8"]))


def written(directory: Path, model: str, tensors: Tensors, config: Mapping[str, Any] | None = None) -> Path:
    return write_checkpoint(directory / "checkpoint", config or published_config(model), tensors)


def borrowed(model: str) -> set[str]:
    """The k/v tensors of borrowing layers, which published files carry and nothing reads."""
    text = published_config(model)["text_config"]
    layers = text["num_hidden_layers"]
    return {
        f"{TEXT}layers.{layer}.self_attn.{part}.weight"
        for layer in range(layers - text["num_kv_shared_layers"], layers)
        for part in ("k_proj", "v_proj", "k_norm")
    }


def codes(error: PlanError) -> list[str]:
    return [finding.code for finding in error.findings if finding.severity == "error"]


@pytest.mark.parametrize("model", MODELS)
def test_yaml_and_headers_give_one_plan(model: str, tmp_path: Path) -> None:
    tensors = published_tensors(model)
    directory = written(tmp_path, model, tensors)
    alone = planned(f"model={model}")
    for plan in (
        planned("model=auto", f"checkpoint={directory}"),
        planned(f"model={model}", f"checkpoint={directory}"),
    ):
        assert plan.model == model
        assert (plan.plan_id, plan.placement_id) == (alone.plan_id, alone.placement_id)
        provenance = plan.to_json()["provenance"]
        assert len(provenance["checkpoint_header_hash"]) == 64
        assert provenance["checkpoint"] == str(directory)
        assert provenance["checkpoint_names"] == {TEXT: TEXT}
        counted = provenance["other_modules"].values()
        towers = {name: shape for name, (shape, _) in tensors.items() if not name.startswith(TEXT)}
        assert sum(count["tensors"] for count in counted) == len(towers) > 0
        assert sum(count["elements"] for count in counted) == sum(map(prod, towers.values()))
    nothing_read = alone.to_json()["provenance"]
    assert nothing_read["checkpoint"] is nothing_read["checkpoint_header_hash"] is None
    assert nothing_read["other_modules"] == {}


@pytest.mark.parametrize("model", MODELS)
def test_text_only_checkpoint(model: str, tmp_path: Path) -> None:
    """Case 50: ``model.…`` names and a flat configuration of a text-only class."""
    flat = published_config(model)["text_config"]
    assert flat["model_type"] in ("gemma4_text", "gemma4_unified_text")
    directory = written(tmp_path, model, text_only(published_tensors(model)), flat)
    plan, alone = planned("model=auto", f"checkpoint={directory}"), planned(f"model={model}")
    assert plan.model == model
    assert (plan.plan_id, plan.placement_id) == (alone.plan_id, alone.placement_id)
    provenance = plan.to_json()["provenance"]
    assert provenance["checkpoint_names"] == {"model.": TEXT}
    assert provenance["other_modules"] == {}


@pytest.mark.parametrize("model", ["e2b", "e4b"])
def test_fine_tune_without_what_nothing_reads(model: str, tmp_path: Path) -> None:
    dropped = borrowed(model)
    tensors = published_tensors(model)
    assert dropped and dropped <= set(tensors)
    kept = {name: value for name, value in tensors.items() if name not in dropped}
    plan = planned("model=auto", f"checkpoint={written(tmp_path, model, kept)}")
    alone = planned(f"model={model}")
    assert (plan.model, plan.plan_id, plan.placement_id) == (model, alone.plan_id, alone.placement_id)
    assert not [finding for finding in plan.findings if finding.code.startswith("tensors_")]


def test_parts_and_one_file_give_one_plan(tmp_path: Path) -> None:
    config, tensors = published_config("31b"), published_tensors("31b")
    directory = write_checkpoint(tmp_path / "parts", config, tensors, parts=5)
    plan, alone = planned("model=auto", f"checkpoint={directory}"), planned("model=31b")
    assert (plan.model, plan.plan_id, plan.placement_id) == ("31b", alone.plan_id, alone.placement_id)


def test_another_architecture_is_custom(tmp_path: Path) -> None:
    """Case 70: a stated size that is not the published one."""
    config = published_config("31b")
    config["text_config"]["rms_norm_eps"] = 1e-5
    directory = written(tmp_path, "31b", published_tensors("31b"), config)
    plan = planned("model=auto", f"checkpoint={directory}")
    assert plan.model == "custom"
    assert plan.plan_id != planned("model=31b").plan_id
    config["text_config"]["num_hidden_layers"] = 54
    config["text_config"]["layer_types"] = config["text_config"]["layer_types"][:54]
    directory = written(tmp_path, "31b", published_tensors("31b"), config)
    with pytest.raises(PlanError, match=r"header has layers 0-59"):
        planned("model=auto", f"checkpoint={directory}")


def test_missing_buffers_on_the_command_line(tmp_path: Path) -> None:
    """Case 39: ``layer_scalar`` is a buffer, and required."""
    tensors = {name: value for name, value in published_tensors("e2b").items() if "layer_scalar" not in name}
    written(tmp_path, "e2b", tensors)
    done = run("checkpoint=checkpoint", cwd=tmp_path)
    assert done.exit_code == 2
    assert "Traceback" not in done.err
    assert done.plan is None
    assert done.result is not None and done.result["status"] == "refused"
    (error,) = (finding for finding in done.result["findings"] if finding["severity"] == "error")
    assert error["code"] == "tensor_missing"
    assert "35 required tensors missing: layers.*.layer_scalar (35 layers 0-34, 70 bytes)" in error["message"]
    assert error["message"] in done.err


def test_published_checkpoint_on_the_command_line(tmp_path: Path) -> None:
    written(tmp_path, "26b-a4b", published_tensors("26b-a4b"))
    done = run("checkpoint=checkpoint", "tp=8", cwd=tmp_path)
    assert done.exit_code == 0, done.err
    assert done.plan is not None
    assert done.plan["plan_id"] == planned("model=26b-a4b").plan_id
    assert done.plan["provenance"]["overrides"] == ["checkpoint=checkpoint", "tp=8"]


def with_head(directory: Path, tied: bool, equal: bool) -> Path:
    """26B-A4B with a stored head: all zeros, as the embedding, or with its first byte another."""
    config = published_config("26b-a4b")
    config["tie_word_embeddings"] = tied
    tensors = published_tensors("26b-a4b")
    tensors["lm_head.weight"] = tensors[EMBEDDING]
    path = written(directory, "26b-a4b", tensors, config)
    if not equal:
        file = path / "model.safetensors"
        with file.open("r+b") as stream:
            stream.seek(read_header(str(file)).span("lm_head.weight")[0])
            stream.write(b"\x01")
    return path


def test_a_head_equal_to_the_embedding(tmp_path: Path) -> None:
    """Case 72: one copy kept, and the plan is the published one."""
    plan = planned("model=auto", f"checkpoint={with_head(tmp_path, tied=True, equal=True)}")
    (found,) = (finding for finding in plan.findings if finding.code == "head_equals_embedding")
    assert found.severity == "info"
    assert "lm_head equals embed_tokens (262144 × 2816): one copy kept, 1.38 GiB saved before the cut" in found.message
    assert plan.plan_id == planned("model=26b-a4b").plan_id


def test_a_head_that_differs(tmp_path: Path) -> None:
    """Case 72: an error, unless the config says untied; then the head is a tensor of its own."""
    with pytest.raises(PlanError, match=r"lm_head .* differs from embed_tokens") as raised:
        planned("model=auto", f"checkpoint={with_head(tmp_path / 'tied', tied=True, equal=False)}")
    assert codes(raised.value) == ["head_differs"]
    plan = planned("model=auto", f"checkpoint={with_head(tmp_path / 'untied', tied=False, equal=False)}")
    assert plan.model == "custom"
    assert plan.to_json()["tensors"]["lm_head.weight"]["status"] == "required"
    assert planned("model=26b-a4b").to_json()["tensors"]["lm_head.weight"]["status"] == "tied"


def test_packed_checkpoint(tmp_path: Path) -> None:
    """Case 76: eight 4-bit values to an int32, so the last dimension is an eighth."""
    tensors = published_tensors("e2b")
    name = TEXT + "layers.0.mlp.gate_proj.weight"
    (rows, columns), _ = tensors.pop(name)
    tensors[f"{name}_packed"] = ((rows, columns // 8), "I32")
    tensors[f"{name}_scale"] = ((rows, columns // 32), "BF16")
    directory = written(tmp_path, "e2b", tensors)
    with pytest.raises(PlanError, match="packed int4/int8: this planner shards bf16") as raised:
        planned("model=e2b", f"checkpoint={directory}")
    assert codes(raised.value) == ["packed_checkpoint"]


def test_declared_quantisation(tmp_path: Path) -> None:
    """Case 76, where the configuration says so itself."""
    config = {**published_config("e2b"), "quantization_config": {"quant_method": "compressed-tensors"}}
    written(tmp_path, "e2b", published_tensors("e2b"), config)
    done = run("checkpoint=checkpoint", cwd=tmp_path)
    assert done.exit_code == 2
    assert "quant_method=compressed-tensors" in done.err and "unquantised checkpoint" in done.err


def test_a_list_of_end_tokens_is_read(tmp_path: Path) -> None:
    """Case 94."""
    config = {**published_config("e2b"), "eos_token_id": [1, 106, 50]}
    assert json.loads(json.dumps(config)) == config
    directory = written(tmp_path, "e2b", published_tensors("e2b"), config)
    assert planned("model=auto", f"checkpoint={directory}").model == "e2b"

"""What the headers of a checkpoint say against the configuration: one test per public fault."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from gemma4cfg.architecture.audit import Audit, audit
from gemma4cfg.architecture.huggingface import architecture_from_config
from gemma4cfg.architecture.inventory import inventory
from gemma4cfg.architecture.model import Architecture
from gemma4cfg.architecture.wording import layers_text
from tests.checkpoints import (
    MODELS,
    Tensors,
    headers_only,
    published_config,
    published_tensors,
    text_only,
)

pytest.importorskip("transformers")
TEXT = "model.language_model."


def architecture(model: str, **values: Any) -> Architecture:
    """A published architecture; ``values`` are keys of its text_config to change first."""
    config = published_config(model)
    config["text_config"].update(values)
    return architecture_from_config(config)


def without(tensors: Tensors, pattern: str) -> Tensors:
    return {name: value for name, value in tensors.items() if not re.search(pattern, name)}


def errors(found: Audit) -> list[tuple[str, str]]:
    return [(finding.code, finding.message) for finding in found.findings if finding.severity == "error"]


def one_error(arch: Architecture, tensors: Tensors, **values: Any) -> tuple[str, str]:
    (error,) = errors(audit(arch, headers_only(tensors, **values)))
    return error


@pytest.mark.parametrize("model", MODELS)
def test_published_checkpoint_has_no_fault(model: str) -> None:
    arch = architecture(model)
    found = audit(arch, headers_only(published_tensors(model)))
    optional = sum(fact.status == "optional" for fact in inventory(arch).values())
    assert [finding.severity for finding in found.findings] == ["info"] * bool(optional)
    assert found.names == {TEXT: TEXT}
    assert set(found.dtypes.values()) == {"bfloat16"}
    assert set(found.dtypes) == set(inventory(arch)) - {"lm_head.weight"}


@pytest.mark.parametrize(
    ("model", "modules"),
    [
        ("e2b", {"model.vision_tower", "model.audio_tower", "model.embed_vision", "model.embed_audio"}),
        ("12b", {"model.vision_embedder", "model.embed_vision", "model.embed_audio"}),
        ("31b", {"model.vision_tower", "model.embed_vision"}),
    ],
)
def test_towers_are_counted(model: str, modules: set[str]) -> None:
    tensors = published_tensors(model)
    found = audit(architecture(model), headers_only(tensors)).other_modules
    assert set(found) == modules
    outside = [name for name in tensors if not name.startswith(TEXT)]
    assert sum(count["tensors"] for count in found.values()) == len(outside)


@pytest.mark.parametrize("model", MODELS)
def test_text_only_checkpoint_audits_alike(model: str) -> None:
    """Case 50: canonical names and dtypes are equal once the prefix is mapped."""
    whole = audit(architecture(model), headers_only(published_tensors(model)))
    text = audit(architecture(model), headers_only(text_only(published_tensors(model))))
    assert text.names == {"model.": TEXT}
    assert text.dtypes == whole.dtypes
    assert text.findings == whole.findings
    assert text.other_modules == {}


def test_config_with_a_false_head_dim() -> None:
    """Case 11: one head_dim for all layers."""
    code, message = one_error(architecture("12b", global_head_dim=256), published_tensors("12b"))
    assert code == "heads_contradicted"
    assert message == (
        "layer 5 (full_attention): o_proj has 8192 input columns, the config gives 16 heads × 256 = 4096; "
        "global_head_dim=512 would match"
    )


def test_wrong_shape_of_one_layer_is_named_with_both_shapes() -> None:
    """Case 11: a header that is wrong in a single layer blames that layer, not the config."""
    tensors = published_tensors("12b")
    tensors[f"{TEXT}layers.5.self_attn.o_proj.weight"] = ((3840, 4096), "BF16")
    code, message = one_error(architecture("12b"), tensors)
    assert code == "tensor_shape"
    assert message == "layer 5: self_attn.o_proj.weight is [3840, 4096], the config gives [3840, 8192]"


@pytest.mark.parametrize(
    ("model", "values", "expected"),
    [
        pytest.param(
            "31b",
            {"num_global_key_value_heads": 8},
            "layer 5 (full_attention): k_proj has 2048 rows, the config gives 8 KV heads × 512 = 4096; "
            "num_global_key_value_heads=4 would match",
            id="kv-heads-full",
        ),
        pytest.param(
            "26b-a4b",
            {"num_experts": 64},
            "layers.0.experts.down_proj is [128, 2816, 704], the config says num_experts=64; num_experts=128 would match",
            id="experts",
        ),
        pytest.param(
            "26b-a4b",
            {"moe_intermediate_size": 352},
            "layers.0.experts.down_proj is [128, 2816, 704], the config says moe_intermediate_size=352; "
            "moe_intermediate_size=704 would match",
            id="expert-width",
        ),
        pytest.param(
            "e2b",
            {"hidden_size": 2048},
            "embed_tokens.weight is [262144, 1536], the config says hidden_size=2048; hidden_size=1536 would match",
            id="hidden-size",
        ),
        pytest.param(
            "e2b",
            {"hidden_size_per_layer_input": 128},
            "per_layer_projection_norm.weight is [256], the config says hidden_size_per_layer_input=128; "
            "hidden_size_per_layer_input=256 would match",
            id="ple-width",
        ),
        pytest.param(
            "e2b",
            {"use_double_wide_mlp": False},
            "gate_proj has 12288 rows at layers 15-34, the layers that borrow K/V, with intermediate_size=6144; "
            "the config says use_double_wide_mlp=false",
            id="double-wide",
        ),
        pytest.param(
            "e2b",
            {"num_kv_shared_layers": 0},
            "gate_proj of twice intermediate_size at layers 15-34 matches num_kv_shared_layers=20; the config says 0",
            id="kv-sharing",
        ),
        pytest.param(
            "e4b",
            {"use_double_wide_mlp": True},
            "gate_proj has 10240 rows at layers 24-41, the layers that borrow K/V, with intermediate_size=10240; "
            "the config says use_double_wide_mlp=true",
            id="not-double-wide",
        ),
    ],
)
def test_contradicted_size(model: str, values: dict[str, Any], expected: str) -> None:
    """One fact of the config is wrong: it is named once, and nothing else is reported for it."""
    assert one_error(architecture(model, **values), published_tensors(model))[1] == expected


def test_query_heads_contradicted() -> None:
    found = errors(audit(architecture("31b", num_attention_heads=16), headers_only(published_tensors("31b"))))
    assert [message.partition(":")[0] for _, message in found] == [
        "layer 0 (sliding_attention)",
        "layer 5 (full_attention)",
    ]
    assert all("num_attention_heads=32 would match" in message for _, message in found)


def test_two_contradictions_are_two_findings() -> None:
    arch = architecture("31b", attention_k_eq_v=False, global_head_dim=256)
    assert [code for code, _ in errors(audit(arch, headers_only(published_tensors("31b"))))] == [
        "k_eq_v_contradicted",
        "heads_contradicted",
    ]


@pytest.mark.parametrize("model", ["e2b", "e4b"])
def test_fine_tune_without_the_unread_tensors(model: str) -> None:
    """Case 21: dropping k/v/k_norm of the borrowing layers is no fault."""
    arch = architecture(model)
    optional = {name for name, fact in inventory(arch).items() if fact.status == "optional"}
    assert f"{TEXT}layers.24.self_attn.k_norm.weight" in optional
    kept = {name: value for name, value in published_tensors(model).items() if name not in optional}
    assert audit(arch, headers_only(kept)).findings == ()


def test_unread_tensors_are_told() -> None:
    """Case 21."""
    (finding,) = audit(architecture("e2b"), headers_only(published_tensors("e2b"))).findings
    assert (finding.severity, finding.code) == ("info", "tensors_unread")
    assert "60 k_proj, v_proj and k_norm tensors" in finding.message
    assert "37,761,024 bytes): stored, never read" in finding.message


def test_a_fine_tune_shows_how_many_layers_borrow() -> None:
    arch = architecture("e4b")
    optional = {name for name, fact in inventory(arch).items() if fact.status == "optional"}
    tensors = {name: value for name, value in published_tensors("e4b").items() if name not in optional}
    code, message = one_error(architecture("e4b", num_kv_shared_layers=0), tensors)
    assert code == "kv_sharing_contradicted"
    assert message == (
        "no k_proj, v_proj, k_norm at layers 24-41 matches num_kv_shared_layers=18; the config says 0"
    )  # fmt: skip


def test_k_eq_v_false_on_a_model_that_has_it() -> None:
    """Case 27."""
    code, message = one_error(architecture("31b", attention_k_eq_v=False), published_tensors("31b"))
    assert code == "k_eq_v_contradicted"
    assert message == "10 missing v_proj at layers 5,11,…,59 match attention_k_eq_v=true; the config says false"


def test_k_eq_v_true_on_a_model_that_lacks_it() -> None:
    """Case 27, the other way."""
    code, message = one_error(architecture("e2b", attention_k_eq_v=True), published_tensors("e2b"))
    assert code == "k_eq_v_contradicted"
    assert message == "3 unexpected v_proj at layers 4,9,14 match attention_k_eq_v=false; the config says true"


def test_one_missing_v_proj_is_no_k_eq_v() -> None:
    """Case 27: only the whole set means k_eq_v."""
    tensors = without(published_tensors("e2b"), r"\.layers\.4\.self_attn\.v_proj")
    assert one_error(architecture("e2b"), tensors)[1].startswith(
        "1 required tensor missing: layers.*.self_attn.v_proj.weight (layer 4, 1,572,864 bytes)"
    )


def test_layer_scalars_missing() -> None:
    """Case 39: a skip list dropped the buffers."""
    tensors = without(published_tensors("31b"), "layer_scalar")
    code, message = one_error(architecture("31b"), tensors)
    assert code == "tensor_missing"
    assert message == "60 required tensors missing: layers.*.layer_scalar (60 layers 0-59, 120 bytes)"


def test_layer_scalars_unread() -> None:
    """Case 39, the other way: tensors of the decoder that this model does not have."""
    tensors = published_tensors("31b")
    for layer in range(60):
        tensors[f"{TEXT}layers.{layer}.other_scalar"] = ((1,), "BF16")
    code, message = one_error(architecture("31b"), tensors)
    assert code == "tensor_unexpected"
    assert message == "60 stored tensors unread: layers.*.other_scalar (60 layers 0-59, 120 bytes): nothing reads them"


@pytest.mark.parametrize("role", ["router.scale", "router.per_expert_scale", "pre_feedforward_layernorm_2.weight"])
def test_router_scales_missing(role: str) -> None:
    """Case 39."""
    tensors = without(published_tensors("26b-a4b"), rf"\.layers\.\d+\.{re.escape(role)}$")
    assert f"30 required tensors missing: layers.*.{role} " in one_error(architecture("26b-a4b"), tensors)[1]


def test_dense_model_has_no_experts_to_read() -> None:
    dense = replace(architecture("26b-a4b"), moe=None)
    found = errors(audit(dense, headers_only(published_tensors("26b-a4b"))))
    assert {code for code, _ in found} == {"tensor_unexpected"}
    assert len(found) == 8


def test_experts_under_another_name() -> None:
    """Case 49: other models say mlp.experts, Gemma 4 says experts."""
    renamed = {
        name.replace(".experts.", ".mlp.experts."): value for name, value in published_tensors("26b-a4b").items()
    }  # fmt: skip
    found = errors(audit(architecture("26b-a4b"), headers_only(renamed)))
    assert [code for code, _ in found] == ["tensor_renamed", "tensor_renamed"]
    assert found[0][1] == (
        "30 tensors stored as layers.*.mlp.experts.gate_up_proj, which nothing reads; Gemma 4 has "
        "layers.*.experts.gate_up_proj (30 layers 0-29)"
    )


@pytest.mark.parametrize("layers", [25, 30, 40])
def test_layer_count_contradicted(layers: int) -> None:
    """Case 70."""
    code, message = one_error(replace(architecture("e2b"), layers=layers), published_tensors("e2b"))
    assert code == "layer_count_contradicted"
    assert message == f"the header has layers 0-34, the config says num_hidden_layers={layers}"


def test_layer_count_and_sharing_contradicted() -> None:
    """Case 70: 24 layers for E2B, with the sharing count that would keep its owners."""
    arch = replace(architecture("e2b"), layers=24, kv_shared_layers=9)
    assert errors(audit(arch, headers_only(published_tensors("e2b")))) == [
        ("layer_count_contradicted", "the header has layers 0-34, the config says num_hidden_layers=24"),
        (
            "kv_sharing_contradicted",
            "gate_proj of twice intermediate_size at layers 15-34 matches num_kv_shared_layers=20; the config says 9",
        ),
    ]


def test_layer_count_contradicted_in_a_dense_model() -> None:
    """Case 70: the 12B as 42 layers, the 26B as 36, the 31B as 56."""
    for model, wrong, right in (("12b", 42, 48), ("26b-a4b", 36, 30), ("31b", 54, 60)):
        arch = replace(architecture(model), layers=wrong)
        message = f"the header has layers 0-{right - 1}, the config says num_hidden_layers={wrong}"
        assert one_error(arch, published_tensors(model)) == ("layer_count_contradicted", message)


def test_a_layer_lost_in_the_middle_is_missing() -> None:
    """Case 70: a gap is damage, not another count."""
    tensors = without(published_tensors("31b"), r"\.layers\.7\.")
    assert {code for code, _ in errors(audit(architecture("31b"), headers_only(tensors)))} == {"tensor_missing"}


def test_head_equal_to_the_embedding() -> None:
    """Case 72."""
    tensors = published_tensors("26b-a4b")
    tensors["lm_head.weight"] = ((262144, 2816), "BF16")
    checkpoint = headers_only(
        tensors, head_equals_embedding=True, head_comparison="sampled 4.2 MB of 1,476,395,008 bytes"
    )
    found = audit(architecture("26b-a4b"), checkpoint)
    (finding,) = found.findings
    assert (finding.severity, finding.code) == ("info", "head_equals_embedding")
    assert finding.message == (
        "lm_head equals embed_tokens (262144 × 2816): one copy kept, 1.38 GiB saved before the cut "
        "(compared: sampled 4.2 MB of 1,476,395,008 bytes)"
    )
    assert found.dtypes["lm_head.weight"] == "bfloat16"


@pytest.mark.parametrize(
    ("tied", "equal", "severity", "code"),
    [
        (True, True, "info", "head_equals_embedding"),
        (True, False, "error", "head_differs"),
        (True, None, "warning", "head_not_compared"),
        (False, True, "info", "head_equals_embedding"),
        (False, False, None, None),
        (False, None, None, None),
    ],
)
def test_stored_head(tied: bool, equal: bool | None, severity: str | None, code: str | None) -> None:
    """Case 72: what the config claims against what the file holds."""
    tensors = published_tensors("12b")
    tensors["lm_head.weight"] = ((262144, 3840), "BF16")
    arch = replace(architecture("12b"), tied_embeddings=tied)
    found = audit(arch, headers_only(tensors, head_equals_embedding=equal)).findings
    assert [(finding.severity, finding.code) for finding in found] == ([(severity, code)] if code else [])
    assert all("two copies" in finding.message for finding in found if not tied)


def test_untied_head_missing() -> None:
    """Case 72."""
    arch = replace(architecture("12b"), tied_embeddings=False)
    assert one_error(arch, published_tensors("12b")) == (
        "tensor_missing",
        "1 required tensor missing: lm_head.weight (2,013,265,920 bytes)",
    )


def quantised(tensors: Tensors, style: str) -> Tensors:
    """The decoder's projections as a 4-bit or 8-bit tool would store them."""
    result: Tensors = {}
    for name, (shape, dtype) in tensors.items():
        if not re.search(r"language_model.*_proj\.weight$", name):
            result[name] = (shape, dtype)
            continue
        stem = name.removesuffix("weight")
        rows, columns = shape
        if style == "compressed-tensors":
            result[f"{stem}weight_packed"] = ((rows, columns // 8), "I32")
            result[f"{stem}weight_scale"] = ((rows, columns // 32), "BF16")
            result[f"{stem}weight_shape"] = ((2,), "I64")
        elif style == "mlx":
            result[name] = ((rows, columns // 8), "U32")
            result[f"{stem}scales"] = ((rows, columns // 64), "BF16")
            result[f"{stem}biases"] = ((rows, columns // 64), "BF16")
        elif style == "gptq":
            result[f"{stem}qweight"] = ((columns // 8, rows), "I32")
            result[f"{stem}qzeros"] = ((columns // 128, rows // 8), "I32")
            result[f"{stem}scales"] = ((columns // 128, rows), "F16")
        elif style == "bitsandbytes":
            result[name] = ((rows * columns // 2, 1), "U8")
            result[f"{name}.absmax"] = ((rows * columns // 64,), "F32")
            result[f"{name}.quant_state.bitsandbytes__nf4"] = ((90,), "U8")
        elif style == "int8":
            result[name] = (shape, "I8")
        else:
            result[name] = (shape, "F8_E4M3")
            result[f"{name}_scale_inv"] = ((rows // 128, columns // 128), "F32")
    return result


@pytest.mark.parametrize("style", ["compressed-tensors", "mlx", "gptq", "bitsandbytes", "int8", "fp8"])
def test_packed_checkpoint(style: str) -> None:
    """Case 76: one finding says so, and the missing and misshapen tensors that follow from it are not listed."""
    tensors = quantised(published_tensors("e2b"), style)
    code, message = one_error(architecture("e2b"), tensors)
    assert code == "packed_checkpoint"
    kind = "quantised to float8_e4m3fn" if style == "fp8" else "packed int4/int8"
    assert message.startswith(f"{kind}: this planner shards bf16, fp16 and fp32 only; the header has ")


def test_float64_is_refused_by_its_name() -> None:
    tensors = {name: (shape, "F64") for name, (shape, _) in published_tensors("12b").items()}
    assert one_error(architecture("12b"), tensors)[1].startswith("stored in float64: this planner shards bf16")


def test_mixed_dtypes() -> None:
    tensors = published_tensors("26b-a4b")
    for name in [name for name in tensors if name.endswith("router.scale")]:
        tensors[name] = (tensors[name][0], "F32")
    found = audit(architecture("26b-a4b"), headers_only(tensors))
    (finding,) = found.findings
    assert (finding.severity, finding.code) == ("warning", "dtype_mixed")
    assert "627 tensors of bfloat16, 30 tensors of float32; the config says bfloat16" in finding.message
    assert found.dtypes[f"{TEXT}layers.3.router.scale"] == "float32"


def test_undeclared_dtype() -> None:
    tensors = {name: (shape, "F32") for name, (shape, _) in published_tensors("12b").items()}
    (finding,) = audit(architecture("12b"), headers_only(tensors)).findings
    assert (finding.severity, finding.code) == ("warning", "dtype_undeclared")
    assert finding.message == "the text decoder is stored in float32, the config says bfloat16"


def test_unknown_module() -> None:
    tensors = {**published_tensors("12b"), "model.extra.weight": ((3, 4), "BF16"), "draft.0.w": ((5,), "BF16")}
    found = audit(architecture("12b"), headers_only(tensors))
    assert [(finding.severity, finding.code) for finding in found.findings] == [("warning", "module_unknown")] * 2
    assert found.other_modules["model.extra"] == {"tensors": 1, "elements": 12}


def test_no_embedding_at_all() -> None:
    tensors = without(published_tensors("12b"), r"embed_tokens\.weight")
    assert one_error(architecture("12b"), tensors)[1] == (
        "1 required tensor missing: embed_tokens.weight (2,013,265,920 bytes)"
    )


@pytest.mark.parametrize("model", ["e2b", "26b-a4b"])
def test_every_finding_has_a_code_and_errors_have_a_fix(model: str) -> None:
    arch = replace(architecture(model), tied_embeddings=False)
    tensors = without(published_tensors(model), "layer_scalar")
    for finding in audit(arch, headers_only({**tensors, "x.y": ((1,), "F32")})).findings:
        assert re.fullmatch(r"[a-z_]+", finding.code)
        assert finding.fix or finding.severity == "info"


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        ([5], "5"),
        (range(60), "0-59"),
        (range(5, 60, 6), "5,11,…,59"),
        ([4, 9, 14], "4,9,14"),
        ([0, 1, 2, 4, 7, 8], "0-2,4,7-8"),
        ([n for n in range(60) if n % 6 != 5], "0-4,6-10,12-16,18-22,24-28,30-34,36-40,…,54-58"),
    ],
)
def test_layers_text(layers: Any, text: str) -> None:
    assert layers_text(layers) == text

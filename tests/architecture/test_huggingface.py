"""config.json as transformers understands it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gemma4cfg.architecture.huggingface import architecture_from_config, to_bfloat16
from gemma4cfg.architecture.inventory import inventory
from gemma4cfg.architecture.known import near_known
from gemma4cfg.architecture.model import Architecture, layer_facts
from gemma4cfg.config.catalog import read_choice
from gemma4cfg.decode import decode
from gemma4cfg.errors import ConfigError
from tests.checkpoints import MODELS, published_config

ABSENT = object()


def changed(model: str, **values: Any) -> dict[str, Any]:
    """A published config with keys of its text_config set, or removed where the value is ABSENT."""
    config = published_config(model)
    for key, value in values.items():
        if value is ABSENT:
            del config["text_config"][key]
        else:
            config["text_config"][key] = value
    return config


@pytest.mark.parametrize("model", MODELS)
def test_published_config_equals_the_shipped_yaml(model: str) -> None:
    """Case 70: no size is written from memory."""
    shipped = decode(Architecture, read_choice("model", model), "model")
    architecture = architecture_from_config(published_config(model))
    assert architecture == shipped
    assert architecture.class_name == shipped.class_name
    assert architecture.checkpoint_dtype == shipped.checkpoint_dtype
    assert architecture.name == "custom"


@pytest.mark.parametrize("model", MODELS)
def test_text_only_and_multimodal_configs_agree(model: str) -> None:
    """Case 50: one model, one architecture, whichever class wraps it."""
    nested = published_config(model)
    flat = nested["text_config"]
    assert flat["model_type"].endswith("_text")
    assert architecture_from_config(flat) == architecture_from_config(nested)


@pytest.mark.parametrize("model", MODELS)
def test_scales_are_those_of_the_reference(model: str) -> None:
    torch = pytest.importorskip("torch")
    architecture = architecture_from_config(published_config(model))
    rounded = torch.tensor(architecture.hidden_size**0.5).to(torch.bfloat16).item()
    assert architecture.embedding_scale == rounded
    if architecture.ple:
        assert architecture.ple.embedding_scale == 16.0
        assert architecture.ple.projection_scale == architecture.hidden_size**-0.5


@pytest.mark.parametrize(
    ("value", "rounded"),
    [
        pytest.param(1536**0.5, 39.25, id="e2b"),
        pytest.param(2560**0.5, 50.5, id="e4b"),
        pytest.param(1.0 + 2**-8, 1.0, id="tie-to-even-down"),
        pytest.param(1.0 + 3 * 2**-8, 1.0 + 2**-6, id="tie-to-even-up"),
        pytest.param(1.0 + 2**-8 + 2**-20, 1.0 + 2**-7, id="above-a-tie"),
        pytest.param(-39.19, -39.25, id="negative"),
        pytest.param(0.0, 0.0, id="zero"),
    ],
)
def test_bfloat16_rounding(value: float, rounded: float) -> None:
    assert to_bfloat16(value) == rounded


def test_bfloat16_rounding_equals_torch() -> None:
    torch = pytest.importorskip("torch")
    widths = range(1, 10_000, 7)
    assert [to_bfloat16(n**0.5) for n in widths] == torch.tensor([n**0.5 for n in widths]).to(torch.bfloat16).tolist()


@pytest.mark.parametrize("eos", [1, [1, 106], [1, 106, 50], None])
def test_stop_ids_may_be_a_list(eos: Any) -> None:
    """Case 94."""
    config = changed("e2b", eos_token_id=eos)
    config["eos_token_id"] = eos
    assert architecture_from_config(config) == architecture_from_config(published_config("e2b"))


def test_global_kv_heads_count_only_with_k_eq_v() -> None:
    """Null means num_key_value_heads; without k_eq_v the key is not read at all, as in the reference."""
    full = architecture_from_config(published_config("31b")).attention.full_attention
    assert (full.kv_heads, full.k_eq_v) == (4, True)
    null = architecture_from_config(changed("31b", num_global_key_value_heads=None)).attention.full_attention
    assert null.kv_heads == 16
    unused = architecture_from_config(changed("31b", attention_k_eq_v=False)).attention.full_attention
    assert (unused.kv_heads, unused.k_eq_v) == (16, False)


def test_k_eq_v_is_for_full_layers_only() -> None:
    sources = [layer.value_source for layer in layer_facts(architecture_from_config(published_config("12b")))]
    assert sources[:6] == ["v_proj"] * 5 + ["k_proj"]


@pytest.mark.parametrize("value", [None, 0])
def test_no_global_head_dim_means_head_dim(value: int | None) -> None:
    assert architecture_from_config(changed("12b", global_head_dim=value)).attention.full_attention.head_dim == 256


@pytest.mark.parametrize(
    ("keys", "width"),
    [
        pytest.param({"moe_intermediate_size": 704, "expert_intermediate_size": 9}, 704, id="moe-wins"),
        pytest.param({"moe_intermediate_size": None, "expert_intermediate_size": 704}, 704, id="expert-when-null"),
        pytest.param({"moe_intermediate_size": ABSENT, "expert_intermediate_size": 704}, 704, id="expert-when-absent"),
    ],
)
def test_expert_width_under_either_name(keys: dict[str, Any], width: int) -> None:
    moe = architecture_from_config(changed("26b-a4b", **keys)).moe
    assert moe is not None
    assert moe.intermediate_size == width


@pytest.mark.parametrize("value", [None, 0])
def test_no_per_layer_embeddings(value: int | None) -> None:
    assert architecture_from_config(changed("e2b", hidden_size_per_layer_input=value)).ple is None


def test_layer_types_become_the_shortest_pattern() -> None:
    assert len(architecture_from_config(published_config("e2b")).layer_pattern) == 5
    assert len(architecture_from_config(published_config("31b")).layer_pattern) == 6
    odd = ["full_attention", "sliding_attention", "full_attention"]
    config = changed("e2b", layer_types=odd, num_hidden_layers=3, num_kv_shared_layers=0)
    assert architecture_from_config(config).layer_pattern == ("full_attention", "sliding_attention")


def test_layer_types_absent() -> None:
    assert architecture_from_config(changed("12b", layer_types=ABSENT)) == architecture_from_config(
        published_config("12b")
    )
    with pytest.raises(
        ConfigError, match=r"ends with sliding_attention \(layer 34\); transformers forces the last layer"
    ):
        architecture_from_config(changed("e2b", layer_types=ABSENT))


def test_rope_parameters_absent() -> None:
    config = changed("12b", rope_parameters=ABSENT)
    assert architecture_from_config(config) == architecture_from_config(published_config("12b"))


@pytest.mark.parametrize(
    ("outer", "inner", "tied"),
    [(True, False, True), (False, True, False), (ABSENT, False, True), (ABSENT, True, True)],
    ids=["outer-true", "outer-false", "outer-absent-inner-false", "outer-absent-inner-true"],
)
def test_the_outermost_tie_word_embeddings_decides(outer: Any, inner: bool, tied: bool) -> None:
    """As in transformers: the class that holds the head asks its own config, whose default is true."""
    config = changed("e2b", tie_word_embeddings=inner)
    config["tie_word_embeddings"] = outer
    if outer is ABSENT:
        del config["tie_word_embeddings"]
    assert architecture_from_config(config).tied_embeddings is tied
    assert architecture_from_config(config["text_config"]).tied_embeddings is inner


@pytest.mark.parametrize(
    ("inner", "outer", "dtype"),
    [
        ({"dtype": "float32"}, {"dtype": "bfloat16"}, "float32"),
        ({}, {"torch_dtype": "float16"}, "float16"),
        ({"dtype": None}, {"dtype": "torch.float32"}, "float32"),
        ({}, {}, "bfloat16"),
    ],
    ids=["text-first", "old-name", "null-and-prefix", "default"],
)
def test_checkpoint_dtype(inner: dict[str, Any], outer: dict[str, Any], dtype: str) -> None:
    config = changed("e2b", dtype=ABSENT)
    del config["dtype"]
    config["text_config"].update(inner)
    assert architecture_from_config({**config, **outer}).checkpoint_dtype == dtype


REQUIRED = (
    "num_hidden_layers",
    "hidden_size",
    "vocab_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "global_head_dim",
    "sliding_window",
    "max_position_embeddings",
    "hidden_size_per_layer_input",
    "vocab_size_per_layer_input",
)


@pytest.mark.parametrize("key", REQUIRED)
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"text_config\.{key} is missing"):
        architecture_from_config(changed("e2b", **{key: ABSENT}))


@pytest.mark.parametrize("key", ["num_experts", "top_k_experts", "moe_intermediate_size"])
def test_a_missing_expert_key_is_named(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"text_config\.{key} is missing"):
        architecture_from_config(changed("26b-a4b", **{key: ABSENT}))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        pytest.param({"num_hidden_layers": 24}, "num_hidden_layers=24, but its layer_types lists 35", id="case 70"),
        pytest.param({"hidden_size": 0}, "hidden_size=0: expected a whole number from 1", id="zero"),
        pytest.param({"hidden_size": "1536"}, 'hidden_size="1536": expected a whole number', id="text"),
        pytest.param({"hidden_size": True}, "hidden_size=true: expected a whole number", id="boolean"),
        pytest.param({"num_kv_shared_layers": -1}, "num_kv_shared_layers=-1", id="negative"),
        pytest.param({"num_kv_shared_layers": 35}, "at least one of the 35 layers", id="all-borrow"),
        pytest.param({"rms_norm_eps": "small"}, "rms_norm_eps", id="eps-text"),
        pytest.param({"use_double_wide_mlp": 1}, "use_double_wide_mlp=1: expected true or false", id="flag-number"),
        pytest.param({"attention_bias": True}, "attention_bias=true", id="bias"),
        pytest.param({"use_bidirectional_attention": "all"}, "use_bidirectional_attention=\"all\"", id="bidirectional"),
        pytest.param({"hidden_activation": "silu"}, "expected gelu_pytorch_tanh", id="activation"),
        pytest.param({"dtype": "float8_e4m3fn"}, "expected bfloat16, float16 or float32", id="dtype"),
        pytest.param({"layer_types": ["full"] * 35}, "expected a list of sliding_attention", id="layer-type"),
        pytest.param({"rope_parameters": {"full_attention": {}}}, "rope_parameters.sliding_attention is missing", id="rope"),
        pytest.param({"model_type": "gemma3_text"}, "expected one of gemma4, gemma4_text", id="text-model-type"),
    ],
)  # fmt: skip
def test_refused(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        architecture_from_config(changed("e2b", **values))
    assert says in str(error.value)


@pytest.mark.parametrize(
    "rope", [{"rope_type": "yarn"}, {"factor": 8.0}, {"partial_rotary_factor": 2}, {"rope_theta": None}]
)
def test_rope_refused(rope: dict[str, Any]) -> None:
    config = published_config("e2b")
    config["text_config"]["rope_parameters"]["full_attention"].update(rope)
    with pytest.raises(ConfigError, match=rf"rope_parameters\.full_attention\.{next(iter(rope))}"):
        architecture_from_config(config)


@pytest.mark.parametrize("model_type", ["gemma3", "llama", None])
def test_other_models_are_refused(model_type: str | None) -> None:
    known = "gemma4, gemma4_text, gemma4_unified, gemma4_unified_text"
    with pytest.raises(ConfigError, match=f"model_type={model_type}: expected one of {known}"):
        architecture_from_config({**published_config("e2b"), "model_type": model_type})


@pytest.mark.parametrize("where", ["outer", "text_config"])
def test_quantised_checkpoints_are_refused(where: str) -> None:
    """Case 76."""
    config = published_config("e2b")
    (config if where == "outer" else config["text_config"])["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    with pytest.raises(ConfigError, match="quant_method=gptq: packed/quantised checkpoint: this planner shards bf16"):
        architecture_from_config(config)


@pytest.mark.parametrize("key", ["enable_moe_block", "hidden_size_per_layer_input"])
def test_unified_has_neither_experts_nor_per_layer_embeddings(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}=.*gemma4_unified has no"):
        architecture_from_config(changed("12b", **{key: True if key == "enable_moe_block" else 256}))


def known_models() -> dict[str, Architecture]:
    return {model: decode(Architecture, read_choice("model", model), "model") for model in MODELS}


def test_a_wrong_context_length_is_told() -> None:
    """Case 54: the 12B config of June 2026, which a mirror still serves."""
    (finding,) = near_known(architecture_from_config(changed("12b", max_position_embeddings=131072)), known_models())
    assert finding.severity == "warning"
    assert "max_positions=131072, the known value for 12b is 262144" in finding.message
    assert "vllm#39914" in finding.message


def test_known_and_unlike_models_are_silent() -> None:
    e2b = architecture_from_config(published_config("e2b"))
    assert near_known(e2b, known_models()) == ()
    assert near_known(replace(e2b, hidden_size=64), known_models()) == ()
    (finding,) = near_known(replace(e2b, attention_scale=0.0625), known_models())
    assert "attention_scale=0.0625, the known value for e2b is 1.0" in finding.message
    assert inventory(replace(e2b, attention_scale=0.0625)) == inventory(e2b)

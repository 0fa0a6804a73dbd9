"""An architecture as a config.json, and back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma4cfg.architecture.huggingface import MODEL_TYPES, architecture_from_config
from gemma4cfg.architecture.huggingface_writer import config_json, text_config
from gemma4cfg.architecture.model import Architecture, AttentionTypes, PleFacts, Rope, layer_facts
from gemma4cfg.architecture.rounding import embedding_scales, rounded
from gemma4cfg.config.catalog import read_choice
from gemma4cfg.decode import decode
from gemma4cfg.errors import ConfigError
from gemma4cfg.planner.layers import plan_numerics
from tests.architectures import SMALL, architectures
from tests.checkpoints import MODELS

CLASSES = tuple(MODEL_TYPES.values())
PLE = PleFacts(6, 37, embedding_scales(6)[0], 8**-0.5, 2**-0.5)


def shipped(model: str) -> Architecture:
    return decode(Architecture, read_choice("model", model), "model")


def said(model: Architecture, class_name: str) -> Architecture:
    """The nearest to a random architecture that the class has words for, its pattern as short as it can be."""
    sliding, full = model.attention.sliding_attention, model.attention.full_attention
    kv_heads = full.kv_heads if full.k_eq_v else sliding.kv_heads
    types = [layer.type for layer in layer_facts(model)]
    period = next(n for n in range(1, len(types) + 1) if all(types[i] == types[i % n] for i in range(len(types))))
    ple = model.ple
    if ple:
        ple = replace(ple, embedding_scale=embedding_scales(ple.width)[0], projection_scale=model.hidden_size**-0.5)
        ple = replace(ple, combine_scale=2**-0.5)
    unified = "Unified" in class_name
    return replace(
        model,
        class_name=class_name,
        layer_pattern=tuple(types[:period]),
        attention=AttentionTypes(
            replace(sliding, q_heads=sliding.kv_heads * kv_heads, k_eq_v=False),
            replace(full, q_heads=sliding.kv_heads * kv_heads, kv_heads=kv_heads),
        ),
        embedding_scale=embedding_scales(model.hidden_size)[0],
        ple=None if unified else ple,
        moe=None if unified else model.moe,
    )


# --- there and back ---


@pytest.mark.parametrize("model", MODELS)
def test_models_come_back(model: str) -> None:
    architecture = shipped(model)
    back = architecture_from_config(json.loads(json.dumps(config_json(architecture))))
    assert back == architecture
    assert (back.class_name, back.checkpoint_dtype) == (architecture.class_name, architecture.checkpoint_dtype)


@settings(max_examples=150, deadline=None)
@given(architectures(), st.sampled_from(CLASSES))
def test_random_architectures_come_back(model: Architecture, class_name: str) -> None:
    architecture = said(model, class_name)
    back = architecture_from_config(json.loads(json.dumps(config_json(architecture))))
    assert back == architecture
    assert (back.class_name, back.checkpoint_dtype) == (class_name, architecture.checkpoint_dtype)


@pytest.mark.parametrize("class_name", CLASSES)
def test_multimodal_classes_nest_the_text_and_have_no_towers(class_name: str) -> None:
    config = config_json(replace(SMALL, class_name=class_name))
    assert config["architectures"] == [class_name]
    assert MODEL_TYPES[config["model_type"]] == class_name
    nested = class_name.endswith("ConditionalGeneration")
    assert ("text_config" in config) == nested
    if nested:
        assert (config["vision_config"], config["audio_config"]) == (None, None)


# --- transformers reads what is written ---


@pytest.mark.parametrize("model", MODELS)
def test_every_key_is_one_that_transformers_has(model: str) -> None:
    transformers = pytest.importorskip("transformers")
    architecture = shipped(model)
    written = text_config(architecture)
    name = "Gemma4UnifiedTextConfig" if model == "12b" else "Gemma4TextConfig"
    known = getattr(transformers, name)
    read = known(**written).to_dict()
    assert written.keys() <= known().to_dict().keys()
    for key, value in written.items():
        assert (str(read[key]).removeprefix("torch.") if key == "dtype" else read[key]) == value, key


DTYPES = ("bfloat16", "float16", "float32")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("model", MODELS)
def test_embedding_scales_of_a_plan_are_the_references_in_that_type(model: str, dtype: str) -> None:
    """39.25 for 1536 in bfloat16, 39.19... in float32: multiplied out by the reference's own embedding."""
    torch = pytest.importorskip("torch")
    from transformers.models.gemma4.modeling_gemma4 import Gemma4TextScaledWordEmbedding

    architecture = shipped(model)
    numerics = plan_numerics(architecture, dtype)
    scales = {architecture.hidden_size: numerics.embedding_scale}
    if architecture.ple and numerics.ple:
        scales[architecture.ple.width] = numerics.ple.embedding_scale
    for width, scale in scales.items():
        embedding = Gemma4TextScaledWordEmbedding(2, width, 0, embed_scale=width**0.5).to(getattr(torch, dtype))
        torch.nn.init.ones_(embedding.weight)
        assert set(embedding(torch.tensor([1])).flatten().tolist()) == {scale}


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_equals_torch(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    widths = range(1, 10_000, 7)
    expected = torch.tensor([n**0.5 for n in widths]).to(getattr(torch, dtype)).tolist()
    assert [rounded(n**0.5, dtype) for n in widths] == expected


def test_a_scale_that_is_no_square_root_stays() -> None:
    numerics = plan_numerics(replace(SMALL, embedding_scale=3.0), "float32")
    assert numerics.embedding_scale == 3.0


# --- refusals ---


def attention(**changed: Any) -> dict[str, Any]:
    """``SMALL``'s attention with fields of one type changed: ``sliding={…}`` or ``full={…}``."""
    sliding, full = SMALL.attention.sliding_attention, SMALL.attention.full_attention
    types = AttentionTypes(replace(sliding, **changed.get("sliding", {})), replace(full, **changed.get("full", {})))
    return {"attention": types}


UNIFIED = "Gemma4UnifiedForCausalLM"


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        pytest.param({"class_name": "Gemma3ForCausalLM"}, "model.class_name=Gemma3ForCausalLM", id="class"),
        pytest.param({"attention_scale": 0.5}, "model.attention_scale=0.5", id="attention-scale"),
        pytest.param({"embedding_scale": 3.0}, "model.embedding_scale=3.0", id="embedding-scale"),
        pytest.param({"ple": replace(PLE, embedding_scale=3.0)}, "model.ple.embedding_scale=3.0", id="ple-scale"),
        pytest.param(
            {"ple": replace(PLE, projection_scale=1.0)}, "model.ple.projection_scale=1.0", id="ple-projection"
        ),
        pytest.param({"ple": replace(PLE, combine_scale=1.0)}, "model.ple.combine_scale=1.0", id="ple-combine"),
        pytest.param({"layers": 3}, "model.layer_pattern: layer 2", id="last-layer"),
        pytest.param(attention(full={"q_heads": 4}), "full_attention.q_heads=4", id="query-heads"),
        pytest.param(attention(full={"k_eq_v": False}), "full_attention.kv_heads=2", id="kv-heads"),
        pytest.param(attention(sliding={"k_eq_v": True}), "sliding_attention.k_eq_v=true", id="sliding-k-eq-v"),
        pytest.param(attention(sliding={"head_dim": 3}), "sliding_attention.head_dim=3", id="odd-head"),
        pytest.param(
            attention(sliding={"rope": Rope(1e4, "default", 0.5)}),
            "sliding_attention.rope.partial_rotary_factor=0.5",
            id="partial-default-rope",
        ),
        pytest.param(
            attention(full={"rope": Rope(1e4, "default", 1.0)}),
            "full_attention.rope.type=default",
            id="default-rope-of-global-heads",
        ),
        pytest.param({"class_name": UNIFIED, "ple": PLE}, f"model.ple: {UNIFIED}", id="unified-ple"),
    ],
)
def test_what_no_class_can_say_is_refused(changes: dict[str, Any], key: str) -> None:
    assert config_json(replace(SMALL, ple=PLE))
    with pytest.raises(ConfigError) as error:
        config_json(replace(SMALL, **changes))
    assert key in str(error.value)


def test_experts_are_refused_where_the_class_has_none() -> None:
    with pytest.raises(ConfigError, match=r"model\.moe"):
        text_config(replace(shipped("26b-a4b"), class_name=UNIFIED))

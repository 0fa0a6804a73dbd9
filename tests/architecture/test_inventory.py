"""The tensors derived from an architecture against the published files and against transformers."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from gemma4cfg.architecture.huggingface import architecture_from_config
from gemma4cfg.architecture.inventory import inventory, local_name
from gemma4cfg.errors import ConfigError
from tests.checkpoints import MODELS, published_config, published_tensors, reference_tensors, state

REQUIRED_ELEMENTS = {
    "e2b": 4_628_569_379,
    "e4b": 7_463_013_418,
    "12b": 11_907_350_320,
    "26b-a4b": 25_233_141_790,
    "31b": 30_697_345_340,
}
OPTIONAL_TENSORS = {"e2b": 60, "e4b": 54, "12b": 0, "26b-a4b": 0, "31b": 0}
ROWS_SHA256 = {
    "e2b": "7f16f81c64ef1a4bd14025304d66fb8b59d67995265e69728dd6f04ca6e59d10",
    "e4b": "8922d407e67369124e852f728e0c7b06e5249fd504425143300b264013f4a46f",
    "12b": "121aeef1dc81eca7d92566636bc37754300c6afd1d3f81fa13a1a5e75881819d",
    "26b-a4b": "46b29245534a457e913423836d17b2373f5290475eba356e295dcd4d529d1f8b",
    "31b": "1a47ca9d81a2e9fbb72e2f74939b4dd777e70f7fc5b087eea8fc626b4b310719",
}
"""SHA-256 of the canonical JSON of sorted [name, shape, kind, status], from independent listings of the published files."""

PUBLISHED_FILES = {
    "e2b": (2011, 5_123_178_979),
    "e4b": (2130, 7_996_157_418),
    "12b": (677, 11_959_730_224),
    "26b-a4b": (1013, 25_805_936_206),
    "31b": (1188, 31_273_088_876),
}


@pytest.mark.parametrize("model", MODELS)
def test_counts(model: str) -> None:
    facts = inventory(architecture_from_config(published_config(model))).values()
    assert sum(fact.elements for fact in facts if fact.status == "required") == REQUIRED_ELEMENTS[model]
    assert sum(fact.status == "optional" for fact in facts) == OPTIONAL_TENSORS[model]
    assert [fact.role for fact in facts if fact.status == "tied"] == ["lm_head.weight"]


@pytest.mark.parametrize("model", MODELS)
def test_rows_are_those_of_the_published_file(model: str) -> None:
    facts = inventory(architecture_from_config(published_config(model)))
    rows = sorted([name, list(fact.shape), fact.kind, fact.status] for name, fact in facts.items())
    canonical = json.dumps(rows, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert hashlib.sha256(canonical.encode()).hexdigest() == ROWS_SHA256[model]


@pytest.mark.parametrize("model", MODELS)
def test_equals_the_transformers_class(model: str) -> None:
    """Names, shapes and kinds of all parameters and persistent buffers, the tied head included."""
    pytest.importorskip("transformers")
    facts = inventory(architecture_from_config(published_config(model)))
    ours = {name: (fact.shape, fact.kind) for name, fact in facts.items() if fact.status != "optional"}
    reference = reference_tensors(model)
    assert ours == {
        name: value for name, value in reference.items() if name.startswith(("model.language_model.", "lm_"))
    }


@pytest.mark.parametrize("model", MODELS)
def test_the_published_files_of_these_tests(model: str) -> None:
    """What the other tests take for a published file has its tensors and elements, towers included."""
    pytest.importorskip("transformers")
    from tests.checkpoints import elements

    tensors = published_tensors(model)
    assert (len(tensors), elements(tensors)) == PUBLISHED_FILES[model]


SMALL: dict[str, Any] = {
    "model_type": "gemma4_text",
    "vocab_size": 64,
    "vocab_size_per_layer_input": 48,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_global_key_value_heads": 2,
    "head_dim": 4,
    "global_head_dim": 8,
    "sliding_window": 16,
    "max_position_embeddings": 128,
    "hidden_size_per_layer_input": 0,
    "attention_k_eq_v": False,
    "num_kv_shared_layers": 0,
    "use_double_wide_mlp": False,
    "enable_moe_block": False,
    "tie_word_embeddings": True,
}
PATTERN = ["sliding_attention", "sliding_attention", "full_attention"]


@st.composite
def small_configs(draw: st.DrawFn) -> dict[str, Any]:
    layers = draw(st.integers(1, 7))
    types = draw(
        st.lists(st.sampled_from(["sliding_attention", "full_attention"]), min_size=layers - 1, max_size=layers - 1)
    )
    kv_heads = draw(st.sampled_from([1, 2, 3]))
    full_kv_heads = draw(st.sampled_from([1, 2, 3]))
    moe = draw(st.booleans())
    return {
        **SMALL,
        "num_hidden_layers": layers,
        "layer_types": [*types, "full_attention"],
        "num_attention_heads": kv_heads * full_kv_heads * draw(st.sampled_from([1, 2])),
        "num_key_value_heads": kv_heads,
        "num_global_key_value_heads": full_kv_heads,
        "head_dim": draw(st.sampled_from([4, 8])),
        "global_head_dim": draw(st.sampled_from([0, 4, 8, 16])),
        "attention_k_eq_v": draw(st.booleans()),
        "num_kv_shared_layers": draw(st.integers(0, layers - 1)),
        "use_double_wide_mlp": draw(st.booleans()),
        "hidden_size_per_layer_input": draw(st.sampled_from([0, 4, 8])),
        "enable_moe_block": moe,
        "num_experts": draw(st.integers(2, 5)) if moe else None,
        "top_k_experts": 2 if moe else None,
        "moe_intermediate_size": draw(st.sampled_from([6, 10])) if moe else None,
        "tie_word_embeddings": draw(st.booleans()),
    }


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example({**SMALL, "layer_types": PATTERN * 2})
@example({**SMALL, "layer_types": PATTERN * 2, "num_kv_shared_layers": 3, "use_double_wide_mlp": True})
@example({**SMALL, "layer_types": PATTERN * 2, "attention_k_eq_v": True})
@example({**SMALL})
@given(small_configs())
def test_any_variation_equals_transformers(config: dict[str, Any]) -> None:
    """Layers, heads, sharing, k_eq_v, experts, PLE width, double-wide: what is derived is what the class has."""
    pytest.importorskip("transformers")
    import torch
    from transformers import Gemma4ForCausalLM, Gemma4TextConfig

    try:
        architecture = architecture_from_config(config)
    except ConfigError as error:  # transformers builds a model whose borrower finds no owner, and fails when it runs
        assert "borrows K/V" in str(error)
        assume(False)
    with torch.device("meta"):
        reference = Gemma4ForCausalLM(Gemma4TextConfig(**config))
    facts = inventory(architecture)
    ours = {local_name(name): (fact.shape, fact.kind) for name, fact in facts.items() if fact.status != "optional"}
    assert ours == state(reference)
    tied = reference.lm_head.weight is reference.model.embed_tokens.weight
    assert facts["lm_head.weight"].status == ("tied" if tied else "required")


@settings(max_examples=60, deadline=None)
@given(small_configs())
def test_optional_tensors_are_the_borrowers(config: dict[str, Any]) -> None:
    """Case 21: k_proj, v_proj and k_norm of layers that borrow K/V are optional, and nothing else is."""
    try:
        architecture = architecture_from_config(config)
    except ConfigError:
        assume(False)
    first = config["num_hidden_layers"] - config["num_kv_shared_layers"]
    for fact in inventory(architecture).values():
        borrowed = (
            fact.role.startswith(("self_attn.k_", "self_attn.v_")) and fact.layer is not None and fact.layer >= first
        )
        assert (fact.status == "optional") == borrowed

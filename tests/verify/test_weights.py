"""Seeded checkpoints: the same bits everywhere, under the names that transformers loads."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma4cfg.architecture.checkpoint import read_checkpoint
from gemma4cfg.architecture.huggingface import MODEL_TYPES, architecture_from_config
from gemma4cfg.architecture.inventory import TensorFacts, inventory
from gemma4cfg.architecture.model import Architecture, MoeFacts, PleFacts
from gemma4cfg.architecture.rounding import embedding_scales
from gemma4cfg.errors import ConfigError
from gemma4cfg.verify import weights
from gemma4cfg.verify.weights import write_checkpoint
from tests.architectures import SMALL

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

PLE = PleFacts(4, 37, 2.0, 8**-0.5, 2**-0.5)
EVERYTHING = replace(
    SMALL,
    layers=6,
    kv_shared_layers=2,
    mlp=replace(SMALL.mlp, double_wide=True),
    ple=PLE,
    moe=MoeFacts(4, 2, 6),
    embedding_scale=embedding_scales(8)[0],
)
"""Every kind of tensor, in six small layers of which two borrow."""


def written(directory: Path, architecture: Architecture = EVERYTHING, seed: int = 0, **more: Any) -> dict[str, Any]:
    """The tensors of a checkpoint written there, by their names in the file."""
    write_checkpoint(directory, architecture, seed, **more)
    tensors: dict[str, Any] = safetensors.load_file(directory / "model.safetensors")
    return tensors


def test_the_bits_are_the_same_on_every_machine(tmp_path: Path) -> None:
    written(tmp_path, seed=3)
    digest = hashlib.sha256((tmp_path / "model.safetensors").read_bytes()).hexdigest()
    assert digest == "a4e03a67acbfbffb677d0bc136b135812ba8ad4e5b4f77fe73fa67b4279f79d4"


def test_another_seed_gives_other_values_of_every_tensor(tmp_path: Path) -> None:
    one, other = written(tmp_path / "0", seed=0), written(tmp_path / "1", seed=1)
    assert one.keys() == other.keys()
    assert not [name for name in one if torch.equal(one[name], other[name])]


def test_a_layer_s_values_do_not_depend_on_its_neighbours(tmp_path: Path) -> None:
    long, short = written(tmp_path / "6"), written(tmp_path / "4", replace(EVERYTHING, layers=4))
    prefix = "model.language_model.layers."
    layers = [name for name in short if name.startswith(prefix) and "mlp" not in name]
    assert {name.removeprefix(prefix)[0] for name in layers} == {"0", "1", "2", "3"}
    assert all(torch.equal(short[name], long[name]) for name in layers)


def test_tensors_of_one_shape_differ(tmp_path: Path) -> None:
    tensors = written(tmp_path)
    bits = [tensor.numpy().tobytes() for tensor in tensors.values() if tensor.numel() > 1]
    assert len(set(bits)) == len(bits)


def test_large_tensors_are_drawn_in_chunks_and_then_repeat_them_shifted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = written(tmp_path / "whole")
    monkeypatch.setattr(weights, "_CHUNK", 50)
    chunked = written(tmp_path / "chunked")
    linear = {name: tensor.flatten() for name, tensor in whole.items() if tensor.ndim > 1}
    assert sum(tensor.numel() > 200 for tensor in linear.values()) > 10
    for name, tensor in linear.items():
        drawn, further = chunked[name].flatten()[:200], chunked[name].flatten()[200:250]
        assert torch.equal(drawn, tensor[:200]), name
        if len(further) == 50:
            assert torch.equal(further.sort().values, drawn[:50].sort().values), name
            assert not torch.equal(further, drawn[:50]), name


def test_no_two_rows_of_a_large_tensor_are_alike() -> None:
    shape = (5 * 1024, 2816)
    facts = TensorFacts(shape, "parameter", "required", "mlp.gate_proj.weight", 0)
    values = np.concatenate(list(weights._values("layers.0.mlp.gate_proj.weight", facts, 0))).reshape(shape)
    assert values.size > 12 * weights._CHUNK
    assert len({row.tobytes() for row in values}) == len(values)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_other_types_are_rounded(tmp_path: Path, dtype: str) -> None:
    wide, narrow = written(tmp_path / "32"), written(tmp_path / "16", dtype=dtype)
    kind = getattr(torch, dtype)
    assert all(torch.equal(wide[name].to(kind), narrow[name]) for name in wide)
    config = json.loads((tmp_path / "16" / "config.json").read_text())
    assert (config["dtype"], config["text_config"]["dtype"]) == (dtype, dtype)


@pytest.mark.parametrize(
    ("class_name", "prefix"),
    [
        pytest.param(name, "model.language_model." if "Conditional" in name else "model.", id=name)
        for name in MODEL_TYPES.values()
    ],
)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_names_are_those_of_the_class(tmp_path: Path, class_name: str, prefix: str, tied: bool) -> None:
    """transformers loads all of it but what is never read, with nothing missing or tied that should not be."""
    architecture = replace(EVERYTHING, class_name=class_name, tied_embeddings=tied)
    if "Unified" in class_name:
        architecture = replace(architecture, ple=None, moe=None)
    names = set(written(tmp_path, architecture))
    assert names == {
        name.replace("model.language_model.", prefix, 1)
        for name, facts in inventory(architecture).items()
        if facts.status != "tied"
    }
    assert f"{prefix}layers.5.self_attn.k_proj.weight" in names  # of a layer that borrows K/V
    assert ("lm_head.weight" in names) == (not tied)
    model, found = getattr(transformers, class_name).from_pretrained(tmp_path, output_loading_info=True)
    unread = {name for name in names if re.search(r"layers\.[45]\.self_attn\.[kv]_", name)}
    assert found.pop("unexpected_keys") <= (
        unread if "Unified" in class_name else set()
    )  # it says so of no other class
    assert not any(found.values()), found
    assert (model.lm_head.weight is model.get_input_embeddings().weight) == tied
    checkpoint = read_checkpoint(str(tmp_path))
    assert architecture_from_config(checkpoint.config) == architecture
    assert not checkpoint.problems


def test_stop_ids_are_the_published_ones_that_the_vocabulary_has(tmp_path: Path) -> None:
    for vocabulary, stop_ids in ((37, [1]), (60, [1, 50]), (128, [1, 106, 50])):
        directory = tmp_path / str(vocabulary)
        write_checkpoint(directory, replace(SMALL, vocab_size=vocabulary), 0)
        read = json.loads((directory / "generation_config.json").read_text())
        assert read["eos_token_id"] == stop_ids
        assert transformers.GenerationConfig.from_pretrained(directory).eos_token_id == stop_ids


def test_what_multiplies_is_away_from_what_would_be_neutral(tmp_path: Path) -> None:
    tensors = written(tmp_path, replace(EVERYTHING, layers=40, moe=MoeFacts(64, 2, 6)))
    scalars = np.array([float(t) for name, t in tensors.items() if name.endswith("layer_scalar")])
    under, over = scalars[scalars < 1], scalars[scalars > 1]
    assert 0.84 <= under.min() < under.max() < 0.9 < 1.1 <= over.min() < over.max() < 1.15
    assert len(under) == len(over) == 20
    experts = torch.cat([t for name, t in tensors.items() if name.endswith("per_expert_scale")])
    assert 0.4 <= experts.min() < 0.45 < 1.55 < experts.max() < 1.6
    final = tensors["model.language_model.norm.weight"]
    assert (final < 0).any()
    assert (final > 0).any()


def test_linear_weights_keep_the_variance_of_their_input(tmp_path: Path) -> None:
    wide = replace(
        SMALL, hidden_size=64, embedding_scale=8.0, mlp=replace(SMALL.mlp, intermediate_size=96), moe=MoeFacts(4, 2, 24)
    )
    tensors = written(tmp_path, wide)
    layer = "model.language_model.layers.0."
    for name, scale in {
        "model.language_model.embed_tokens.weight": 0.5**0.5,
        f"{layer}mlp.down_proj.weight": 96**-0.5,
        f"{layer}mlp.gate_proj.weight": 1 / 8,
        f"{layer}experts.gate_up_proj": 1 / 8,
        f"{layer}experts.down_proj": 24**-0.5,
        f"{layer}router.proj.weight": 1.5,
    }.items():
        assert float(tensors[name].std()) == pytest.approx(scale, rel=0.1), name
        assert abs(float(tensors[name].mean())) < 0.15 * scale, name


def test_an_architecture_that_no_class_can_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="embedding_scale"):
        write_checkpoint(tmp_path, replace(SMALL, embedding_scale=1.0), 0)

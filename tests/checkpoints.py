"""Checkpoints for tests: published ones without their bytes, and small ones with.

Headers are real and files are sparse, so the 62 GB of 31B take no room.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

from gemma4cfg.architecture.stored import Checkpoint, StoredTensor
from sharding.dtypes import dtype_name, tensor_bytes

Tensors = dict[str, tuple[tuple[int, ...], str]]
"""Name to shape and dtype, the dtype as safetensors spells it."""

DATA = Path(__file__).parent / "data"
MODELS = ("e2b", "e4b", "12b", "26b-a4b", "31b")

_UNIFIED_NAMES = (
    (r"embed_vision\.multimodal_embedder\.embedding_projection", "embed_vision.embedding_projection"),
    (r"embed_vision\.(patch_ln1|patch_dense|patch_ln2|pos_embedding|pos_norm)", r"vision_embedder.\1"),
)
"""What transformers renames while it loads 12B, backwards."""


def published_config(model: str) -> dict[str, Any]:
    """The published config.json of a model (``e2b``), a fresh copy."""
    config: dict[str, Any] = json.loads((DATA / f"config_{model}.json").read_text())
    return config


@functools.cache
def reference_tensors(model: str) -> dict[str, tuple[tuple[int, ...], str]]:
    """Name to shape and kind of everything in the state dict of the transformers class, built on the meta device."""
    import torch
    import transformers

    config = published_config(model)
    configs = {"gemma4": "Gemma4Config", "gemma4_unified": "Gemma4UnifiedConfig"}
    with torch.device("meta"):
        made = getattr(transformers, config["architectures"][0])(
            getattr(transformers, configs[config["model_type"]])(**config)
        )
    return state(made)


def state(module: Any) -> dict[str, tuple[tuple[int, ...], str]]:
    """Name to shape and kind (``parameter`` or persistent ``buffer``) of a module's state dict."""
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    return {
        name: (tuple(tensor.shape), "parameter" if name in parameters else "buffer")
        for name, tensor in module.state_dict().items()
    }


@functools.cache
def _published_tensors(model: str) -> Tensors:
    tensors: Tensors = {}
    for name, (shape, _) in reference_tensors(model).items():
        if name == "lm_head.weight":  # tied, so not stored
            continue
        if model == "12b":
            for pattern, replacement in _UNIFIED_NAMES:
                name = re.sub(pattern, replacement, name)
        tensors[name] = (shape, "BF16")
    tensors.update(_unread_tensors(published_config(model)["text_config"]))
    return tensors


def published_tensors(model: str) -> Tensors:
    """Every tensor of the published file, towers included, with the k/v tensors of borrowing layers; a fresh copy."""
    return dict(_published_tensors(model))


def _unread_tensors(text: Mapping[str, Any]) -> Iterator[tuple[str, tuple[tuple[int, ...], str]]]:
    layers = text["num_hidden_layers"]
    for layer in range(layers - text["num_kv_shared_layers"], layers):
        head_dim = text["global_head_dim" if text["layer_types"][layer] == "full_attention" else "head_dim"]
        shape = (text["num_key_value_heads"] * head_dim, text["hidden_size"])
        attention = f"model.language_model.layers.{layer}.self_attn"
        yield f"{attention}.k_proj.weight", (shape, "BF16")
        yield f"{attention}.v_proj.weight", (shape, "BF16")
        yield f"{attention}.k_norm.weight", ((head_dim,), "BF16")


def text_only(tensors: Tensors) -> Tensors:
    """The tensors as Gemma4ForCausalLM saves them: no towers, ``model.…`` for ``model.language_model.…``."""
    start = "model.language_model."
    return {name.replace(start, "model.", 1): value for name, value in tensors.items() if name.startswith(start)}


def headers_only(tensors: Tensors, **values: Any) -> Checkpoint:
    """A Checkpoint that was never a file; ``values`` replace its other fields."""
    fields: dict[str, Any] = {
        "location": "nowhere",
        "config": {},
        "header_hash": "0" * 64,
        "problems": (),
        "head_equals_embedding": None,
        "head_comparison": "nothing to compare",
    }
    stored = {
        name: StoredTensor(shape, dtype_name(dtype), "model.safetensors") for name, (shape, dtype) in tensors.items()
    }
    return Checkpoint(tensors=stored, **{**fields, **values})


def write_checkpoint(
    directory: Path, config: Mapping[str, Any], tensors: Tensors, parts: int = 1, real_bytes: bool = False
) -> Path:
    """config.json and safetensors files with an index where there are several parts; all zeros, or bytes made of the names.

    Returns the directory.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    names = list(tensors)
    size = -(-len(names) // parts)
    weight_map = {}
    for number in range(parts):
        part = "model.safetensors" if parts == 1 else f"model-{number + 1:05}-of-{parts:05}.safetensors"
        chosen = {name: tensors[name] for name in names[number * size : (number + 1) * size]}
        write_file(directory / part, chosen, real_bytes)
        weight_map.update(dict.fromkeys(chosen, part))
    if parts > 1:
        total = sum(tensor_bytes(dtype, shape) for shape, dtype in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def write_file(path: Path, tensors: Tensors, real_bytes: bool = False) -> None:
    """One safetensors file."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, (shape, dtype) in tensors.items():
        stop = position + tensor_bytes(dtype, shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, stop]}
        position = stop
    raw = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        if real_bytes:
            for name, (shape, dtype) in tensors.items():
                file.write(bytes_of(name, tensor_bytes(dtype, shape)))
        file.truncate(8 + len(raw) + position)


def bytes_of(name: str, size: int) -> bytes:
    """``size`` bytes that differ from name to name and block to block."""
    blocks = (hashlib.sha256(f"{name} {i}".encode()).digest() for i in range(-(-size // 32)))
    return b"".join(blocks)[:size]


def elements(tensors: Tensors) -> int:
    """Elements of all tensors together."""
    return sum(prod(shape) for shape, _ in tensors.values())

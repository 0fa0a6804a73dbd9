"""A checkpoint of seeded random weights, drawn so that every tensor shows in the logits and rounding does not.

Weights of plain unit scale would not do: with tied embeddings such a model repeats its input, and deep ones are chaotic.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from math import prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gemma4cfg.architecture.huggingface_writer import config_json
from gemma4cfg.architecture.inventory import EMBEDDING, LM_HEAD, PREFIX, TensorFacts, inventory
from gemma4cfg.architecture.model import Architecture
from sharding.convert import converter
from sharding.dtypes import stored_dtype
from sharding.layout import lay_out

PUBLISHED_STOP_IDS = (1, 106, 50)

_CHUNK = 2**20
"""Elements drawn at a time."""

_UNIT_HIDDEN = 32
"""Hidden size at which embeddings of unit scale give logits that reach into the softcap; wider ones would all end at it."""

_DRAWN, _SHIFT = 4, 104_729
"""Chunks that are drawn, and elements (a prime) that each further one is shifted by."""

Array = npt.NDArray[np.float64]


def write_checkpoint(directory: Path, architecture: Architecture, seed: int, dtype: str = "float32") -> None:
    """A Hugging Face directory of ``architecture.class_name``: config.json, generation_config.json, model.safetensors.

    Values depend on ``seed`` and the tensor's name only, and are the same bits on every machine; ``dtype`` rounds them. The
    k/v tensors of layers that borrow K/V are there, so that reading them would show; a tied head is not. Raises ConfigError
    for an architecture that the class cannot be.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config = config_json(architecture)
    for level in (config, config.get("text_config", config)):
        level["dtype"] = dtype
    _write_json(directory / "config.json", config)
    stop_ids = [token for token in PUBLISHED_STOP_IDS if token < architecture.vocab_size]
    _write_json(directory / "generation_config.json", {"bos_token_id": 2, "eos_token_id": stop_ids, "pad_token_id": 0})
    _write_tensors(directory / "model.safetensors", architecture, seed, stored_dtype(dtype))


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _write_tensors(path: Path, architecture: Architecture, seed: int, dtype: str) -> None:
    prefix = PREFIX if "ConditionalGeneration" in architecture.class_name else "model."
    facts = {
        name.replace(PREFIX, prefix, 1): (name, fact)
        for name, fact in inventory(architecture).items()
        if fact.status != "tied"
    }
    layout = lay_out(path.name, {stored: (dtype, fact.shape) for stored, (_, fact) in facts.items()}, {"format": "pt"})
    convert = converter("F32", dtype)
    with path.open("wb") as file:
        file.write(layout.header)
        for stored in layout.tensors:
            for values in _values(*facts[stored], seed):
                data = values.astype("<f4").view(np.uint8)
                for piece in convert(data) if convert else (data,):
                    file.write(piece.tobytes())


def _values(name: str, facts: TensorFacts, seed: int) -> Iterator[Array]:
    """A tensor's elements in order, in chunks. After the first chunks a large tensor repeats them, each time shifted by a
    number that divides no row, so that no two rows are alike: drawing takes ten times as long as writing."""
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    bits = np.random.Philox(key=int.from_bytes(digest[:16], "little"))
    drawn: list[Array] = []
    for number, start in enumerate(range(0, prod(facts.shape), _CHUNK)):
        count = min(_CHUNK, prod(facts.shape) - start)
        if number < _DRAWN:
            drawn.append(_scaled(name, facts, bits, count))
            yield drawn[-1]
        else:
            yield np.roll(drawn[number % _DRAWN], number * _SHIFT)[:count]


def _scaled(name: str, facts: TensorFacts, bits: np.random.Philox, count: int) -> Array:
    """Linear weights keep the variance of their input; everything that multiplies is away from what would be neutral."""
    role = facts.role
    if role == "layer_scalar":
        # In turn under and over 1: were they random, the deep models would be chaotic with some seeds and repeat with others.
        uniform = _uniform(bits, count)
        return 0.84 + 0.06 * uniform if facts.layer is not None and facts.layer % 2 == 0 else 1.1 + 0.05 * uniform
    if role == "router.per_expert_scale":
        return 0.4 + 1.2 * _uniform(bits, count)
    normal = _normal(bits, count)
    if role == "router.scale":
        return 1 + 0.5 * normal
    if role == "router.proj.weight":
        return 1.5 * normal
    if name in (EMBEDDING, LM_HEAD):
        return normal * sqrt(_UNIT_HIDDEN / facts.shape[-1])
    if role == "embed_tokens_per_layer.weight":
        return normal
    if len(facts.shape) > 1:
        return normal / sqrt(facts.shape[-1])
    gain = 1 + 0.3 * normal
    if role == "norm.weight":
        return np.where(_uniform(bits, count) < 0.5, -gain, gain)
    return 0.5 * gain if role.startswith("post_") else gain


def _uniform(bits: np.random.Philox, count: int) -> Array:
    """In [0, 1), from the generator's raw bits: exact arithmetic, so no library's version or processor matters."""
    uniform: Array = (bits.random_raw(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return uniform


def _normal(bits: np.random.Philox, count: int) -> Array:
    """Near enough to a standard normal: the sum of four uniform 16-bit numbers, exact, brought to mean 0 and variance 1."""
    parts = bits.random_raw(count).astype("<u8").view("<u2").reshape(count, 4)
    normal: Array = (parts.sum(axis=1, dtype=np.int64) - 2 * (2**16 - 1)) / sqrt((2.0**32 - 1) / 3)
    return normal

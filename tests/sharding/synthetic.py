"""Small checkpoints with distinct values, placements for them, and a plain way to cut them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from sharding.dtypes import tensor_bytes
from sharding.headers import read_header
from sharding.placement import Placement, Range, Whole, Zeros
from tests.checkpoints import bytes_of

Contents = Mapping[str, tuple[tuple[int, ...], str]]


def write_parts(directory: Path, parts: Sequence[Contents], seed: str = "") -> Path:
    """``model.safetensors``, or several parts with an index. A tensor's bytes follow from its name and ``seed``."""
    directory.mkdir(parents=True, exist_ok=True)
    weight_map = {}
    for number, tensors in enumerate(parts):
        name = "model.safetensors" if len(parts) == 1 else f"model-{number + 1:05}-of-{len(parts):05}.safetensors"
        write_tensors(directory / name, {key: (*value, data_of(key, *value, seed)) for key, value in tensors.items()})
        weight_map.update(dict.fromkeys(tensors, name))
    if len(parts) > 1:
        (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory


def write_tensors(path: Path, tensors: Mapping[str, tuple[tuple[int, ...], str, bytes]]) -> None:
    """One safetensors file of shape, dtype and bytes."""
    header: dict[str, Any] = {}
    position = 0
    for name, (shape, dtype, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + len(data)]}
        position += len(data)
    raw = json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + b"".join(data for *_, data in tensors.values()))


def data_of(name: str, shape: tuple[int, ...], dtype: str, seed: str = "") -> bytes:
    return bytes_of(name + seed, tensor_bytes(dtype, shape))


def read_tensors(path: Path) -> dict[str, tuple[tuple[int, ...], str, bytes]]:
    """Everything in one file."""
    header, data = read_header(path), path.read_bytes()
    return {name: (entry.shape, entry.dtype, data[slice(*header.span(name))]) for name, entry in header.tensors.items()}


def device(
    shape: tuple[int, ...], placement: Placement, dtype: str = "BF16", local_name: str | None = None
) -> dict[str, Any]:
    """The entry of a tensor that lies on the device."""
    return {
        "shape": list(shape),
        "dtype": dtype,
        "home": "device",
        "local_name": local_name,
        "placement": placement.to_json(),
        "status": "required",
    }


def cut_plainly(data: bytes, shape: tuple[int, ...], width: int, placement: Placement, rank: int) -> bytes:
    """A rank's bytes by indexing a whole array of elements of ``width`` bytes: slow and obvious."""
    if isinstance(placement, Whole):
        return data
    array = np.frombuffer(data, f"V{width}").reshape(shape)
    pieces = []
    for piece in placement.ranks[rank]:
        if isinstance(piece, Range):
            pieces.append(np.take(array, range(*piece), placement.dim))
        elif isinstance(piece, Zeros):
            zeros = (*shape[: placement.dim], piece.length, *shape[placement.dim + 1 :])
            pieces.append(np.frombuffer(bytes(prod(zeros) * width), f"V{width}").reshape(zeros))
    return np.concatenate(pieces, placement.dim).tobytes()

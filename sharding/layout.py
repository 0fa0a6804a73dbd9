"""The layout of an output file, known before its first byte is written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from sharding.dtypes import dtype_bits, tensor_bytes

RANK_FILE = "tp{rank}_sharded_checkpoint.safetensors"
HOST_FILE = "host_tables.safetensors"
MANIFEST_FILE = "manifest.json"
FORMAT_VERSION = "1.0"


@dataclass(frozen=True, slots=True)
class LocalTensor:
    """One tensor of one file. ``start`` counts from the file's first byte; ``size`` in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class FileLayout:
    """``header`` is every byte before the first tensor; ``tensors`` are in the order in which they lie."""

    name: str
    header: bytes
    tensors: dict[str, LocalTensor]
    size: int


def rank_files(tp: int) -> list[str]:
    """The ranks' files, in order."""
    return [RANK_FILE.format(rank=rank) for rank in range(tp)]


def lay_out(name: str, tensors: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str]) -> FileLayout:
    """The layout of file ``name`` with ``tensors`` (name to dtype and shape): widest elements first, then by name, so
    that each tensor is aligned to its own elements."""
    fields: dict[str, object] = {"__metadata__": dict(sorted(metadata.items()))}
    placed = []
    position = 0
    for tensor, (dtype, shape) in sorted(tensors.items(), key=lambda item: (-dtype_bits(item[1][0]), item[0])):
        stop = position + tensor_bytes(dtype, shape)
        fields[tensor] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, stop]}
        placed.append((tensor, dtype, shape, position, stop - position))
        position = stop
    text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    located = {
        tensor: LocalTensor(tensor, dtype, shape, len(header) + start, size)
        for tensor, dtype, shape, start, size in placed
    }
    return FileLayout(name, header, located, len(header) + position)

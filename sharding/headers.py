"""Headers of safetensors files: what is stored where, read without reading a weight.

A file is 8 bytes of little-endian header length, that many bytes of JSON, then the tensors' bytes without gaps.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sharding.dtypes import DTYPES, dtype_name, tensor_bytes
from sharding.files import FormatError, MissingFileError, file_size, json_object, read_bytes
from sharding.parts import CheckpointParts, Index, checkpoint_parts

__all__ = [
    "CheckpointParts",
    "FormatError",
    "Header",
    "Index",
    "MissingFileError",
    "TensorEntry",
    "TruncatedError",
    "checkpoint_parts",
    "dtype_name",
    "read_bytes",
    "read_header",
    "tensor_bytes",
]

MAX_HEADER_BYTES = 100_000_000
"""The limit of the safetensors library itself."""


class TruncatedError(FormatError):
    """A file that ends before its last tensor. ``header`` is sound and says what should have been there."""

    def __init__(self, message: str, header: Header) -> None:
        super().__init__(message)
        self.header = header


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """``dtype`` as safetensors spells it (``BF16``); bytes ``[start, stop)`` count from ``Header.data_offset``."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Header:
    """One file. ``digest`` is SHA-256 of its first ``data_offset`` bytes, in hex."""

    tensors: dict[str, TensorEntry]
    metadata: dict[str, str]
    data_offset: int
    file_size: int
    digest: str

    def span(self, name: str) -> tuple[int, int]:
        """Where the tensor's bytes are, counted from the start of the file: what ``read_bytes`` takes."""
        entry = self.tensors[name]
        return self.data_offset + entry.start, self.data_offset + entry.stop


def read_header(path: str | os.PathLike[str]) -> Header:
    """The checked header of a local file or fsspec URL; two ranged reads.

    Raises MissingFileError, FormatError, and TruncatedError where only the tensors' bytes are cut short.
    """
    name = os.fspath(path)
    size = file_size(name)
    if size < 8:
        raise FormatError(f"{name}: {size} bytes is too short for a safetensors file")
    length = int.from_bytes(read_bytes(name, 0, 8), "little")
    if length > MAX_HEADER_BYTES:
        raise FormatError(f"{name}: a header of {length:,} bytes is over the limit of {MAX_HEADER_BYTES:,}")
    if 8 + length > size:
        raise FormatError(f"{name}: truncated inside its header: {size:,} of {8 + length:,} bytes")
    raw = read_bytes(name, 0, 8 + length)
    fields = json_object(raw[8:], name)
    metadata = _metadata(fields.pop("__metadata__", {}), name)
    tensors = {tensor: _entry(value, name, tensor) for tensor, value in fields.items()}
    header = Header(tensors, metadata, 8 + length, size, hashlib.sha256(raw).hexdigest())
    expected = header.data_offset + _contiguous(tensors, name)
    if size < expected:
        raise TruncatedError(f"{name}: truncated: {size:,} of {expected:,} bytes", header)
    if size > expected:
        raise FormatError(f"{name}: {size - expected:,} bytes after the last tensor belong to none")
    return header


def _metadata(value: Any, name: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise FormatError(f"{name}: __metadata__ is not a mapping of text to text")
    return value


def _entry(value: Any, name: str, tensor: str) -> TensorEntry:
    where = f"{name}: tensor '{tensor}'"
    if not isinstance(value, dict) or not {"dtype", "shape", "data_offsets"} <= value.keys():
        raise FormatError(f"{where} lacks dtype, shape or data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise FormatError(f"{where} has the unknown dtype {dtype!r}")
    if not _is_sizes(shape):
        raise FormatError(f"{where} has the shape {shape}: not a list of whole numbers from 0")
    if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise FormatError(f"{where} has the data_offsets {offsets}: not [start, stop]")
    entry = TensorEntry(dtype, tuple(shape), *offsets)
    try:
        needed = tensor_bytes(dtype, entry.shape)
    except FormatError as error:
        raise FormatError(f"{where}: {error}") from None
    if needed != entry.stop - entry.start:
        raise FormatError(
            f"{where}: {shape} of {dtype} is {needed:,} bytes, its offsets span {entry.stop - entry.start:,}"
        )
    return entry


def _is_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _contiguous(tensors: Mapping[str, TensorEntry], name: str) -> int:
    """Bytes of all tensors, which must lie end to end."""
    position = 0
    for tensor, entry in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop)):
        if entry.start < position:
            raise FormatError(
                f"{name}: tensor '{tensor}' starts at {entry.start:,}, inside the one that ends at {position:,}"
            )
        if entry.start > position:
            raise FormatError(f"{name}: {entry.start - position:,} bytes before tensor '{tensor}' belong to none")
        position = entry.stop
    return position

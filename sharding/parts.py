"""Which files make up a checkpoint directory."""

from __future__ import annotations

import os
from dataclasses import dataclass

from sharding.errors import ShardingError
from sharding.files import FormatError, MissingFileError, file_names, file_size, join, json_object, read_bytes

SINGLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
_MAX_INDEX_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class Index:
    """``model.safetensors.index.json``: tensor name to part; ``total_size`` in bytes where it is stated."""

    weight_map: dict[str, str]
    total_size: int | None


@dataclass(frozen=True, slots=True)
class CheckpointParts:
    """The files of a checkpoint, in name order; ``index`` is null where one file holds everything."""

    names: tuple[str, ...]
    index: Index | None


def checkpoint_parts(directory: str | os.PathLike[str]) -> CheckpointParts:
    """The safetensors files of a directory: ``model.safetensors``, else those of the index, else the only one there.

    With both, ``model.safetensors`` counts, as in transformers.

    Raises MissingFileError where there is none, FormatError for an index that is malformed or names a file outside the
    directory, and ShardingError for several files without an index.
    """
    present = file_names(directory)
    if SINGLE_NAME in present:
        return CheckpointParts((SINGLE_NAME,), None)
    if INDEX_NAME in present:
        index = _read_index(join(directory, INDEX_NAME))
        return CheckpointParts(tuple(sorted(set(index.weight_map.values()))), index)
    loose = [name for name in present if name.endswith(".safetensors")]
    if not loose:
        raise MissingFileError(f"{os.fspath(directory)}: no {SINGLE_NAME}, no {INDEX_NAME}, no *.safetensors")
    if len(loose) > 1:
        raise ShardingError(
            f"{os.fspath(directory)}: {len(loose)} safetensors files ({loose[0]}, …) and no {INDEX_NAME}"
        )
    return CheckpointParts((loose[0],), None)


def _read_index(path: str) -> Index:
    size = file_size(path)
    if size > _MAX_INDEX_BYTES:
        raise FormatError(f"{path}: an index of {size:,} bytes is over the limit of {_MAX_INDEX_BYTES:,}")
    fields = json_object(read_bytes(path, 0, size), path)
    weight_map = fields.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise FormatError(f"{path}: no weight_map of tensor names to files")
    for tensor, part in weight_map.items():
        if not isinstance(part, str) or not _is_inside(part):
            raise FormatError(f"{path}: tensor '{tensor}' is put in {part!r}, which is outside this directory")
    metadata = fields.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(total, float) and total.is_integer():  # some writers state it as 1.0e9
        total = int(total)
    return Index(weight_map, total if type(total) is int else None)


def _is_inside(part: str) -> bool:
    """Whether the name is relative and stays in its directory, on any operating system and in any URL."""
    return not set(part) & set("\\:\0") and all(step not in ("", ".", "..") for step in part.split("/"))

"""A checkpoint as its headers say it is, and its reading. No weight is loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from gemma4cfg.architecture.part_findings import index_findings, part_findings, size_findings
from gemma4cfg.architecture.stored import Checkpoint, StoredTensor
from gemma4cfg.architecture.tied_head import compare_head
from gemma4cfg.errors import ConfigError
from sharding.errors import ShardingError
from sharding.files import FormatError, MissingFileError, file_names, file_size, join, json_object, read_bytes
from sharding.headers import Header, TruncatedError, dtype_name, read_header
from sharding.parts import checkpoint_parts

_EXAMPLE = "e.g. checkpoint=/models/gemma-4-E2B-it or checkpoint=hf://google/gemma-4-E2B-it"


def read_checkpoint(location: str) -> Checkpoint:
    """The checkpoint in a directory, local or an fsspec URL.

    Faults of its files become ``problems``; tensors of a truncated part are listed as its header has them.

    Raises ConfigError where there is no such directory, no readable config.json, no safetensors or no usable index.
    """
    try:
        present = file_names(location)
        config = _read_config(location, present)
        parts = checkpoint_parts(location)
    except ShardingError as error:
        raise ConfigError(f"checkpoint={location}: {error}; {_EXAMPLE}") from error
    headers, faults = _read_headers(location, parts.names)
    problems = part_findings(faults, headers, parts.index)
    if parts.index:
        unread = [name for name in parts.names if name not in headers]
        problems += index_findings(parts.index, headers, unread)
        problems += size_findings(parts.index, headers, unread)
    equal, comparison = compare_head(location, headers)
    return Checkpoint(
        location=location,
        config=config,
        tensors={
            name: StoredTensor(entry.shape, dtype_name(entry.dtype), part)
            for part, header in headers.items()
            for name, entry in header.tensors.items()
        },
        header_hash=_hash(headers),
        problems=tuple(problems),
        head_equals_embedding=equal,
        head_comparison=comparison,
    )


def _read_config(location: str, present: tuple[str, ...]) -> Mapping[str, Any]:
    path = join(location, "config.json")
    if "config.json" not in present:
        raise ConfigError(
            f"{path}: no such file; a checkpoint is the directory with config.json and its safetensors files"
        )
    try:
        return json_object(read_bytes(path, 0, file_size(path)), path)
    except FormatError as error:
        raise ConfigError(str(error)) from error


def _read_headers(location: str, names: tuple[str, ...]) -> tuple[dict[str, Header], dict[str, ShardingError]]:
    """Headers by part, and the error of each part that has one; a truncated part has both."""
    headers: dict[str, Header] = {}
    faults: dict[str, ShardingError] = {}
    for name in names:
        try:
            headers[name] = read_header(join(location, name))
        except TruncatedError as error:
            headers[name], faults[name] = error.header, error
        except (MissingFileError, FormatError) as error:
            faults[name] = error
    return headers, faults


def _hash(headers: Mapping[str, Header]) -> str:
    lines = [f"{name} {header.digest}\n" for name, header in sorted(headers.items())]
    return hashlib.sha256("".join(lines).encode()).hexdigest()

"""``manifest.json`` read back. It is written last: where it is, every file is complete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sharding.errors import ShardingError
from sharding.files import FormatError, MissingFileError, file_size, join, json_object, read_bytes
from sharding.layout import FORMAT_VERSION, MANIFEST_FILE


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """``tensors``: tensor to digest; empty where they were not asked for."""

    size: int
    checksum: str
    tensors: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Manifest:
    """``source``: name, size, header digest and sample of each part. ``placements`` as they were given to ``reshard``.
    ``origins``: tensor to the part that holds it and its name there."""

    job_id: str
    placement_id: str
    tp: int
    dtype: str | None
    names: Mapping[str, str]
    source: tuple[Mapping[str, Any], ...]
    placements: Mapping[str, Any]
    origins: Mapping[str, tuple[str, str]]
    files: Mapping[str, ManifestFile]


def read_manifest(directory: str) -> Manifest:
    """Raises MissingFileError where the directory has none (a run that has not ended), FormatError."""
    path = join(directory, MANIFEST_FILE)
    try:
        plain = json_object(read_bytes(path, 0, file_size(path)), path)
    except MissingFileError as error:
        raise MissingFileError(f"{error}: the rank files are not complete; run the same command again") from None
    if plain.get("format_version") != FORMAT_VERSION:
        raise FormatError(f"{path}: format_version {plain.get('format_version')}; this version reads {FORMAT_VERSION}")
    try:
        files = {
            name: ManifestFile(file["size"], file["checksum"], file.get("tensors", {}))
            for name, file in plain["files"].items()
        }
        return Manifest(
            plain["job_id"],
            plain["placement_id"],
            plain["tp"],
            plain["dtype"],
            plain["names"],
            tuple(plain["source"]),
            plain["placements"],
            {name: (part, stored) for name, (part, stored) in plain["origins"].items()},
            files,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"{path}: not a manifest: {error!r}") from error


def refuse_incomplete(manifest: Manifest, directory: str) -> None:
    """Raises ShardingError where a file is absent or of another size."""
    for name, file in manifest.files.items():
        if file_size(join(directory, name)) != file.size:
            raise ShardingError(f"{join(directory, name)}: not the {file.size:,} bytes that the manifest states")

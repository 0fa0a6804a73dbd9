"""Bytes of files on a local disk or behind any fsspec URL (``s3://…``, ``hf://…``). Local paths never load fsspec."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from sharding.errors import ShardingError


class MissingFileError(ShardingError):
    """A file or directory that is not there."""


class FormatError(ShardingError):
    """A file that breaks its format; the message names the file and the tensor."""


def file_size(path: str | os.PathLike[str]) -> int:
    """Bytes in the file. Raises MissingFileError."""
    name = os.fspath(path)
    try:
        if is_url(name):
            system, inner = filesystem(name)
            return int(system.info(inner)["size"])
        return Path(name).stat().st_size
    except FileNotFoundError:
        raise MissingFileError(f"{name}: no such file") from None


def read_bytes(path: str | os.PathLike[str], start: int, stop: int) -> bytes:
    """Bytes ``[start, stop)`` of the file, in one ranged read.

    Raises MissingFileError, and ShardingError where the file ends before ``stop``.
    """
    name = os.fspath(path)
    try:
        if is_url(name):
            system, inner = filesystem(name)
            # An empty range means the whole file to some filesystems.
            data = bytes(system.cat_file(inner, start=start, end=stop)) if stop > start else b""
        else:
            with Path(name).open("rb") as file:
                file.seek(start)
                data = file.read(stop - start)
    except FileNotFoundError:
        raise MissingFileError(f"{name}: no such file") from None
    if len(data) != stop - start:
        raise ShardingError(f"{name}: bytes {start:,} to {stop:,} were asked for, the file has {start + len(data):,}")
    return data


def file_names(directory: str | os.PathLike[str]) -> tuple[str, ...]:
    """Names in the directory, sorted. Raises MissingFileError where it is absent or no directory."""
    name = os.fspath(directory)
    try:
        if is_url(name):
            system, inner = filesystem(name)
            if not system.isdir(inner):
                raise MissingFileError(f"{name}: no such directory")
            paths = [str(path) for path in system.ls(inner, detail=False)]
            return tuple(sorted(path.rstrip("/").rpartition("/")[2] for path in paths))
        return tuple(sorted(path.name for path in Path(name).iterdir()))
    except (FileNotFoundError, NotADirectoryError):
        raise MissingFileError(f"{name}: no such directory") from None


def join(directory: str | os.PathLike[str], name: str) -> str:
    """``name`` inside a local or remote directory."""
    return f"{os.fspath(directory).rstrip('/')}/{name}" if os.fspath(directory) != "/" else f"/{name}"


def json_object(data: bytes, name: str) -> dict[str, Any]:
    """The JSON object in ``data``; ``name`` is the file, for the message.

    Raises FormatError for anything else, a key that is defined twice included: two readers would keep different ones.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            keys = [key for key, _ in pairs]
            raise FormatError(f"{name}: '{next(key for key in keys if keys.count(key) > 1)}' is defined twice")
        return result

    try:
        fields = json.loads(data.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{name}: not valid JSON: {error}") from error
    if not isinstance(fields, dict):
        raise FormatError(f"{name}: the JSON is not an object")
    return fields


def is_url(name: str) -> bool:
    """Whether it is an fsspec URL."""
    return "://" in name


def filesystem(url: str) -> tuple[Any, str]:
    """The fsspec filesystem and the path in it. Raises ShardingError where the scheme has no driver here."""
    try:
        from fsspec.core import url_to_fs

        system, inner = url_to_fs(url)
    except (ImportError, ValueError) as error:  # an unknown scheme, or one whose driver is not installed
        raise ShardingError(f"{url}: {error}") from error
    return system, str(inner)

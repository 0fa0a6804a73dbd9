"""Where output is kept: a local directory, or any place that fsspec reaches."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from sharding.errors import ShardingError
from sharding.files import MissingFileError, file_names, file_size, filesystem, is_url, join, read_bytes
from sharding.limits import REMOTE_BLOCK_BYTES
from sharding.readers import open_reader
from sharding.writer import OutputFile, sync_directory, temporary_path, write_file

RECORDS = ".reshard"
"""Beside the files: ``job.json``, and a record for each file that is complete."""

JOB_FILE = f"{RECORDS}/job.json"

_UPLOAD_PART, _UPLOADS_AT_ONCE = 2 * REMOTE_BLOCK_BYTES, 2
"""An upload in parts holds some of them in memory."""


class Store(Protocol):
    """A directory whose files are whole or absent. Names may have a directory before them (``.reshard/job.json``)."""

    location: str

    def names(self) -> tuple[str, ...]:
        """Files in it; nothing where it does not exist."""

    def size(self, name: str) -> int | None:
        """Bytes, or null where there is no such file."""

    def read(self, name: str) -> bytes | None:
        """A small file, or null."""

    def write(self, name: str, data: bytes) -> None:
        """A small file. Raises OSError."""

    def claim(self, data: bytes) -> None:
        """Make ``.reshard/job.json`` hold ``data``, unless there is one: then that stays."""

    def put(self, path: Path, name: str) -> None:
        """Copy a local file here. Raises OSError."""


class LocalStore:
    def __init__(self, path: Path) -> None:
        self.path, self.location = path, str(path)

    def names(self) -> tuple[str, ...]:
        try:
            return file_names(self.path)
        except MissingFileError:
            return ()

    def size(self, name: str) -> int | None:
        try:
            return file_size(self.path / name)
        except MissingFileError:
            return None

    def read(self, name: str) -> bytes | None:
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        write_file(self.path / name, data)

    def claim(self, data: bytes) -> None:
        """Renaming onto a directory that is not empty fails: of two that try at once, one has it."""
        self.path.mkdir(parents=True, exist_ok=True)
        made = temporary_path(self.path / RECORDS)
        made.mkdir()
        inside = made / Path(JOB_FILE).name
        try:
            write_file(inside, data)
            try:
                made.rename(self.path / RECORDS)
            except OSError:
                if not (self.path / JOB_FILE).exists():  # records that lost it
                    with contextlib.suppress(FileExistsError):
                        os.link(inside, self.path / JOB_FILE)
            sync_directory(self.path)
        finally:
            if made.exists():
                inside.unlink(missing_ok=True)
                made.rmdir()

    def put(self, path: Path, name: str) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        copy_in(str(path), self.path / name)


class RemoteStore:
    """Stores of objects have no rename and need none: an object appears when it is complete."""

    def __init__(self, url: str) -> None:
        self.location = url.rstrip("/")
        self._system, self._path = filesystem(self.location)

    def names(self) -> tuple[str, ...]:
        self._system.invalidate_cache()
        try:
            return file_names(self.location)
        except MissingFileError:
            return ()

    def size(self, name: str) -> int | None:
        self._system.invalidate_cache()
        try:
            return file_size(join(self.location, name))
        except MissingFileError:
            return None

    def read(self, name: str) -> bytes | None:
        size = self.size(name)
        return None if size is None else read_bytes(join(self.location, name), 0, size)

    def write(self, name: str, data: bytes) -> None:
        self._system.pipe_file(self._inside(name), data)

    def claim(self, data: bytes) -> None:
        """Where the store can (S3's ``If-None-Match``), of two that try at once one has it."""
        if self.size(JOB_FILE) is not None:
            return
        if "mode" in inspect.signature(getattr(self._system, "_pipe_file", self._system.pipe_file)).parameters:
            with contextlib.suppress(FileExistsError):
                self._system.pipe_file(self._inside(JOB_FILE), data, mode="create")
        else:
            self.write(JOB_FILE, data)

    def put(self, path: Path, name: str) -> None:
        known = inspect.signature(getattr(self._system, "_put_file", self._system.put_file)).parameters
        options = {"chunksize": _UPLOAD_PART, "max_concurrency": _UPLOADS_AT_ONCE}
        target = self._inside(name)
        self._system.put_file(str(path), target, **{key: value for key, value in options.items() if key in known})

    def _inside(self, name: str) -> str:
        target = join(self._path, name)
        with contextlib.suppress(OSError, NotImplementedError):
            self._system.makedirs(target.rpartition("/")[0], exist_ok=True)
        return target


def open_store(location: str | os.PathLike[str]) -> LocalStore | RemoteStore:
    """Raises ShardingError for an URL that nothing here can reach, and for a path that is a file or leads through one."""
    name = os.fspath(location)
    if is_url(name) and not name.startswith("file://"):
        return RemoteStore(name)
    path = Path(filesystem(name)[1] if is_url(name) else name)
    for place in (path, *path.parents):
        if place.exists() and not place.is_dir():
            raise ShardingError(f"{name}: {place} is a file, where a directory is needed")
    return LocalStore(path)


def copy_in(source: str, target: Path, accept: Callable[[Path], bool] | None = None) -> bool:
    """Copy a local file or URL to ``target``, in blocks. It gets its name only if ``accept`` (given the temporary path)
    agrees; returns whether it did. Raises OSError."""
    reader = open_reader(source)
    try:
        output = OutputFile(target, reader.size)
        try:
            buffer = memoryview(bytearray(min(REMOTE_BLOCK_BYTES, reader.size)))
            for start in range(0, reader.size, REMOTE_BLOCK_BYTES):
                block = buffer[: min(REMOTE_BLOCK_BYTES, reader.size - start)]
                reader.read_into(block, start)
                output.write(block, start)
            output.finish()
            accepted = accept is None or accept(output.temporary)
            if accepted:
                output.publish()
            return accepted
        finally:
            output.discard()
    finally:
        reader.close()

"""Ranged reads of one file into a buffer, local or behind an fsspec URL, and whether it is still the same file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from sharding.errors import SourceChangedError
from sharding.files import MissingFileError, filesystem, is_url, read_bytes

STAMP_KEYS = ("ETag", "etag", "LastModified", "last_modified", "mtime", "created")
"""What stores say about an object that changes with its bytes."""

_REQUEST_BYTES = 2 * 2**20
"""Ranges that are asked for at once: one stream from a store of objects is slow."""


class Reader(Protocol):
    """An open file of ``size`` bytes."""

    name: str
    size: int

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` from ``offset``. Raises SourceChangedError where the file ends before, OSError."""

    def read_pieces(self, offsets: Sequence[int], size: int) -> list[bytes]:
        """``size`` bytes (fewer at the end) at each offset."""

    def stamp(self) -> str:
        """Text that changes when the file does; the same for an untouched file, another for a copy."""

    def close(self) -> None: ...


def open_reader(path: str) -> Reader:
    """Raises MissingFileError, OSError."""
    return RemoteReader(path) if is_url(path) else LocalReader(path)


class LocalReader:
    def __init__(self, name: str) -> None:
        self.name = name
        try:
            self._file = os.open(name, os.O_RDONLY)
        except FileNotFoundError:
            raise MissingFileError(f"{name}: no such file") from None
        self.size = os.fstat(self._file).st_size

    def read_into(self, buffer: memoryview, offset: int) -> None:
        done = 0
        while done < len(buffer):
            count = read_at(self._file, buffer[done:], offset + done)
            if count == 0:
                raise _ended(self.name, offset + done)
            done += count

    def read_pieces(self, offsets: Sequence[int], size: int) -> list[bytes]:
        return [os.pread(self._file, size, offset) for offset in offsets]

    def stamp(self) -> str:
        try:
            found = Path(self.name).stat()
        except FileNotFoundError:
            return "gone"
        return f"{found.st_size} {found.st_mtime_ns} {found.st_ino}"

    def close(self) -> None:
        os.close(self._file)


class RemoteReader:
    def __init__(self, name: str) -> None:
        self.name = name
        self._system, self._path = filesystem(name)
        self.size = int(self._info()["size"])

    def read_into(self, buffer: memoryview, offset: int) -> None:
        done, stop = 0, offset + len(buffer)
        starts = range(offset, stop, _REQUEST_BYTES)
        for data in self._ranges(starts, [min(start + _REQUEST_BYTES, stop) for start in starts]):
            buffer[done : done + len(data)] = data
            done += len(data)
        if done != len(buffer):
            raise _ended(self.name, offset + done)

    def read_pieces(self, offsets: Sequence[int], size: int) -> list[bytes]:
        return self._ranges(offsets, [offset + size for offset in offsets])

    def stamp(self) -> str:
        self._system.invalidate_cache()
        try:
            found = self._info()
        except MissingFileError:
            return "gone"
        return " ".join([str(found["size"]), *(str(found[key]) for key in STAMP_KEYS if found.get(key))])

    def close(self) -> None:
        return None

    def _ranges(self, starts: Sequence[int], stops: Sequence[int]) -> list[bytes]:
        """These ranges, asked for at once; what lies after the end is left out."""
        asked = [(start, min(stop, self.size)) for start, stop in zip(starts, stops, strict=True) if start < self.size]
        if not asked:
            return []
        firsts, lasts = map(list, zip(*asked, strict=True))
        found: list[bytes] = self._system.cat_ranges([self._path] * len(asked), firsts, lasts, on_error="raise")
        return found

    def _info(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = self._system.info(self._path)
        except FileNotFoundError:
            raise MissingFileError(f"{self.name}: no such file") from None
        return found


def read_at(file: int, buffer: memoryview, offset: int) -> int:
    """One ``preadv``: every local read of tensors passes here."""
    return os.preadv(file, [buffer], offset)


class Readers:
    """Readers of one directory, opened when first asked for and closed together."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._open: dict[str, Reader] = {}

    def __getitem__(self, name: str) -> Reader:
        if name not in self._open:
            self._open[name] = open_reader(f"{self._directory.rstrip('/')}/{name}")
        return self._open[name]

    def __enter__(self) -> Readers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def read(self, name: str, start: int, stop: int) -> bytes:
        """A few bytes of one of them."""
        return read_bytes(self[name].name, start, stop)


def _ended(name: str, position: int) -> SourceChangedError:
    return SourceChangedError(f"{name}: it ends at byte {position:,}: it was truncated while it was read")

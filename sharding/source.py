"""A checkpoint that is about to be read: its headers, its tensors by canonical name, and how it is recognised again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType

from sharding.checksum import xxh3_128
from sharding.errors import ShardingError, SourceChangedError
from sharding.files import is_url, join, read_bytes
from sharding.headers import Header, TensorEntry, read_header
from sharding.parts import checkpoint_parts
from sharding.readers import Reader, Readers

SAMPLES, SAMPLE_BYTES = 64, 4096
"""What is read of a part's tensors to tell it from another of the same header: fine-tunes have equal headers."""


@dataclass(frozen=True, slots=True)
class Part:
    """One file of the source. ``sample`` is a digest of a few of its bytes; ``stamp`` changes when the file is touched
    or copied, so it is compared but never part of an identity."""

    name: str
    header: Header
    sample: str
    stamp: str

    def identity(self) -> dict[str, object]:
        return {"name": self.name, "size": self.header.file_size, "header": self.header.digest, "sample": self.sample}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """``name`` as the file has it; ``start`` counts from the part's first byte."""

    name: str
    part: str
    entry: TensorEntry
    start: int


class Source:
    """An open checkpoint directory, to be used in a ``with`` block. ``tensors`` are by canonical name."""

    def __init__(self, location: str, names: Mapping[str, str] | None = None) -> None:
        """Raises ShardingError for what is no sound checkpoint; ``names`` maps stored prefixes to canonical ones."""
        self.location = location
        self.names = dict(names or {})
        parts = checkpoint_parts(location)
        headers = {name: read_header(join(location, name)) for name in parts.names}
        self.tensors = _by_name(location, headers, self.names, parts.index.weight_map if parts.index else None)
        self._readers = Readers(location)
        with self._closing_on_error():
            self.parts = tuple(
                Part(name, header, _sample(self._readers[name], header), self._readers[name].stamp())
                for name, header in headers.items()
            )

    @property
    def is_remote(self) -> bool:
        """Whether every read is a request."""
        return is_url(self.location)

    def reader(self, part: str) -> Reader:
        return self._readers[part]

    def stamps(self) -> dict[str, str]:
        """Part to stamp, as they were when the source was opened."""
        return {part.name: part.stamp for part in self.parts}

    def refuse_changed(self) -> None:
        """Raises SourceChangedError where a part is no longer the file that was opened."""
        for part in self.parts:
            path = join(self.location, part.name)
            if self._readers[part.name].stamp() != part.stamp:
                raise SourceChangedError(f"{path}: it changed while it was read; nothing was kept of it: run again")
            raw = read_bytes(path, 0, part.header.data_offset)
            if hashlib.sha256(raw).hexdigest() != part.header.digest:
                raise SourceChangedError(f"{path}: its header changed while it was read; nothing was kept: run again")

    def _closing_on_error(self) -> _CloseOnError:
        return _CloseOnError(self._readers)

    def __enter__(self) -> Source:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._readers.__exit__(kind, error, trace)


class _CloseOnError:
    def __init__(self, readers: Readers) -> None:
        self._readers = readers

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._readers.__exit__(kind, error, trace)


def canonical_name(stored: str, names: Mapping[str, str]) -> str:
    """A stored name with the longest prefix that ``names`` has replaced."""
    prefix = max((prefix for prefix in names if stored.startswith(prefix)), key=len, default=None)
    return stored if prefix is None else names[prefix] + stored[len(prefix) :]


def _by_name(
    location: str, headers: Mapping[str, Header], names: Mapping[str, str], weight_map: Mapping[str, str] | None
) -> dict[str, StoredTensor]:
    tensors: dict[str, StoredTensor] = {}
    for part, header in headers.items():
        for stored, entry in header.tensors.items():
            if weight_map and weight_map.get(stored, part) != part:
                continue  # the index names another part for it
            name = canonical_name(stored, names)
            if name in tensors:
                raise ShardingError(
                    f"{location}: '{name}' is stored twice: as '{tensors[name].name}' in {tensors[name].part} "
                    f"and as '{stored}' in {part}"
                )
            tensors[name] = StoredTensor(stored, part, entry, header.data_offset + entry.start)
    for stored, part in (weight_map or {}).items():
        if stored not in headers[part].tensors:
            raise ShardingError(f"{location}: the index puts '{stored}' in {part}, which does not hold it")
    return tensors


def _sample(reader: Reader, header: Header) -> str:
    data = header.file_size - header.data_offset
    step = max(SAMPLE_BYTES, data // SAMPLES)
    offsets = range(header.data_offset, header.file_size, step)
    hasher = xxh3_128()
    for piece in reader.read_pieces(offsets, SAMPLE_BYTES):
        hasher.update(piece)
    return hasher.hexdigest()

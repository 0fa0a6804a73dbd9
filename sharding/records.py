"""What is remembered and reported of a run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sharding.errors import ShardingError
from sharding.limits import BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A complete file. ``checksum`` is over its header and ``digests`` (tensor to xxh3_128);
    ``stamps`` are the source's parts as they were (``Part.stamp``)."""

    name: str
    job_id: str
    size: int
    checksum: str
    digests: Mapping[str, str]
    stamps: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> FileRecord:
        """Raises ShardingError for anything else."""
        try:
            record = cls(**plain)
        except TypeError as error:
            raise ShardingError(f"not the record of a file: {error}") from error
        if not isinstance(record.digests, dict) or not isinstance(record.stamps, dict):
            raise ShardingError("not the record of a file")
        return record


@dataclass(frozen=True, slots=True)
class Progress:
    """``done`` of ``total`` bytes; ``what`` is ``all ranks``, one file's name, or what else is being done."""

    what: str
    done: int
    total: int


ProgressCallback = Callable[[Progress], None]


class Meter:
    """Counts bytes and reports them, a block at a time; several threads may share it, one reports at a time."""

    def __init__(self, what: str, total: int, callback: ProgressCallback | None) -> None:
        self._what, self._total, self._callback = what, total, callback
        self._lock = threading.Lock()
        self.done = self._reported = 0

    def add(self, count: int) -> None:
        with self._lock:
            self.done += count
            if self._callback and (self.done - self._reported >= BLOCK_BYTES or self.done == self._total):
                self._reported = self.done
                self._callback(Progress(self._what, self.done, self._total))


@dataclass(frozen=True, slots=True)
class ReshardResult:
    """``written`` and ``reused`` are file names; ``bytes_read`` counts the source's, ``bytes_written`` the output's."""

    directory: str
    job_id: str
    placement_id: str
    files: tuple[FileRecord, ...]
    written: tuple[str, ...]
    reused: tuple[str, ...]
    bytes_read: int
    bytes_written: int
    seconds: float

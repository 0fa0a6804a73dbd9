"""One pass over the source: each tensor is read once, in blocks, and goes to every file that takes part of it. Several
tensors are made at a time, each by one worker: where a byte goes is known before, so their order does not matter."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from sharding.convert import Bytes
from sharding.feeds import RowFeed, RunFeed, rows_of_block
from sharding.job import Job, Read, Use
from sharding.limits import BLOCK_BYTES, REMOTE_BLOCK_BYTES, WORKERS
from sharding.placement import Range, Zeros
from sharding.records import Meter
from sharding.rows import Pieces, is_ascending, segments, union
from sharding.source import Source
from sharding.stream import Output, TensorStream
from sharding.workers import Halt, share_out

Feed = RunFeed | RowFeed
Taker = tuple[TensorStream, Pieces]
Digests = dict[str, dict[str, str]]
"""File to tensor to digest."""


class Engine:
    """Several workers where the source is local, one where every read is a request; ``bytes_read`` counts what was read of
    the source."""

    def __init__(self, job: Job, source: Source) -> None:
        self._job, self._halt = job, Halt()
        count = 1 if source.is_remote else min(WORKERS, os.cpu_count() or 1)
        self._workers = [_Worker(job, source, self._halt) for _ in range(count)]

    @property
    def bytes_read(self) -> int:
        return sum(worker.bytes_read for worker in self._workers)

    def run(self, outputs: Mapping[str, Output], meter: Meter) -> Digests:
        """Fill ``outputs`` (by file name) and return their tensors' digests, in the files' order.

        Raises SourceChangedError where the source ends early, OSError.
        """
        digests: Digests = {file: {} for file in outputs}
        for file, output in outputs.items():
            layout = self._job.layouts[file]
            output.write(layout.header, 0)
            for name, raw in self._job.constants.get(file, {}).items():
                stream = TensorStream(layout.tensors[name], layout.tensors[name].dtype, output, meter)
                stream.append(np.frombuffer(raw, np.uint8))
                digests[file][name] = stream.finish()
        share_out(
            self._job.reads,
            [partial(worker.make, outputs=outputs, meter=meter, digests=digests) for worker in self._workers],
            self._halt,
        )
        return {
            file: {name: found[name] for name in self._job.layouts[file].tensors} for file, found in digests.items()
        }


class _Worker:
    """Makes tensors, one after the other, with two buffers of a block each, so that a block stays in one core's cache."""

    def __init__(self, job: Job, source: Source, halt: Halt) -> None:
        self._job, self._source, self._halt = job, source, halt
        self._block_bytes = REMOTE_BLOCK_BYTES if source.is_remote else BLOCK_BYTES
        self._block: Bytes = np.empty(self._block_bytes, np.uint8)
        self._gathered: Bytes = np.empty(self._block_bytes, np.uint8)
        self.bytes_read = 0

    def make(self, read: Read, outputs: Mapping[str, Output], meter: Meter, digests: Digests) -> None:
        streams: list[tuple[str, str, TensorStream]] = []
        runs: list[tuple[Use, list[Taker]]] = []
        for use in read.uses:
            takers: list[Taker] = []
            for file, rank in use.files:
                if file in outputs:
                    tensor = self._job.layouts[file].tensors[use.name]
                    stream = TensorStream(tensor, read.tensor.entry.dtype, outputs[file], meter)
                    streams.append((file, use.name, stream))
                    takers.append((stream, use.rows.ranks[rank]))
            if not takers:
                continue
            if use.rows.contiguous:
                runs.append((use, takers))
            else:
                self._gather(read, use, takers)
        self._run(read, runs)
        for file, name, stream in streams:
            digests[file][name] = stream.finish()

    def _gather(self, read: Read, use: Use, takers: Sequence[Taker]) -> None:
        self._feed(
            read,
            [RowFeed(use.rows, takers, self._gathered)],
            _steps(0, use.rows.total, _row_step(use, self._block_bytes)),
        )

    def _run(self, read: Read, runs: Sequence[tuple[Use, Sequence[Taker]]]) -> None:
        feeds: list[Feed] = []
        ranges: set[tuple[int, int, tuple[Range, ...]]] = set()
        for use, takers in runs:
            ascending = [taker for taker in takers if is_ascending(taker[1])]
            for stream, pieces in takers:
                if not is_ascending(pieces):
                    self._scattered(read, use, stream, pieces)
            if ascending:
                feeds += [RunFeed(stream, use.rows, pieces) for stream, pieces in ascending]
                ranges.add((use.rows.count, use.rows.size, tuple(union([pieces for _, pieces in ascending]))))
        if len(ranges) == 1:
            self._feed(read, feeds, _needed(*ranges.pop(), self._block_bytes))
        elif feeds:
            self._feed(read, feeds, _steps(0, read.tensor.entry.stop - read.tensor.entry.start, self._block_bytes))

    def _scattered(self, read: Read, use: Use, stream: TensorStream, pieces: Pieces) -> None:
        """A rank whose pieces do not follow the source's order: each is read for itself."""
        for segment in segments(use.rows, pieces):
            if isinstance(segment, Zeros):
                stream.skip(segment.length)
            else:
                for start, stop in _steps(segment.start, segment.stop, self._block_bytes):
                    stream.append(self._read(read, start, stop))

    def _feed(self, read: Read, feeds: Collection[Feed], blocks: Iterator[tuple[int, int]]) -> None:
        for start, stop in blocks:
            block = self._read(read, start, stop)
            for feed in feeds:
                feed.take(start, block)
        for feed in feeds:
            feed.finish()

    def _read(self, read: Read, start: int, stop: int) -> Bytes:
        self._halt.check()
        block = self._block[: stop - start]
        self._source.reader(read.tensor.part).read_into(block.data, read.tensor.start + start)
        self.bytes_read += stop - start
        return block


def _row_step(use: Use, block: int) -> int:
    return rows_of_block(use.rows, block) * use.rows.size


def _steps(start: int, stop: int, step: int) -> Iterator[tuple[int, int]]:
    for first in range(start, stop, step):
        yield first, min(first + step, stop)


def _needed(count: int, size: int, ranges: Sequence[Range], block: int) -> Iterator[tuple[int, int]]:
    """Blocks of the bytes that are taken of each of ``count`` rows of ``size`` bytes; rows taken whole are one range."""
    if list(ranges) == [Range(0, size)]:
        yield from _steps(0, count * size, block)
        return
    for row in range(count):
        for piece in ranges:
            yield from _steps(row * size + piece.start, row * size + piece.stop, block)

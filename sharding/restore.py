"""One tensor out of the ranks' shares of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sharding.convert import Bytes
from sharding.errors import ShardingError
from sharding.feeds import rows_of_block
from sharding.limits import BLOCK_BYTES
from sharding.placement import Range, piece_length
from sharding.readers import Readers
from sharding.rows import Rows
from sharding.stream import TensorStream


class Owned(NamedTuple):
    """Bytes ``start`` to ``stop`` of a row, which ``rank`` holds from byte ``local`` of its row."""

    start: int
    stop: int
    rank: int
    local: int


def owners(rows: Rows) -> list[Owned]:
    """For every byte of a row a rank that holds it, in order. Raises ShardingError where none does."""
    held = []
    for rank, pieces in enumerate(rows.ranks):
        local = 0
        for piece in pieces:
            if isinstance(piece, Range):
                held.append(Owned(piece.start, piece.stop, rank, local))
            local += piece_length(piece)
    owned = []
    position = 0
    for share in sorted(held, key=lambda share: (share.start, -share.stop, share.rank)):
        if share.start > position:
            break
        if share.stop > position:
            owned.append(Owned(position, share.stop, share.rank, share.local + position - share.start))
            position = share.stop
    if position < rows.size and rows.count:
        raise ShardingError(f"no rank holds byte {position:,} of its rows of {rows.size:,}")
    return owned


class Restorer:
    """Holds the two buffers, of a block each."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._block: Bytes = np.empty(BLOCK_BYTES, np.uint8)
        self._rows: Bytes = np.empty(BLOCK_BYTES, np.uint8)

    def restore(self, rows: Rows, shares: Sequence[tuple[str, int]], stream: TensorStream) -> None:
        """Feed the whole tensor to ``stream``; ``shares[rank]`` is a file and where the rank's tensor begins in it."""
        owned = owners(rows)
        if not rows.contiguous:
            self._scatter(rows, owned, shares, stream)
            return
        for row in range(rows.count):
            for piece in owned:
                file, start = shares[piece.rank]
                first = start + row * rows.local_size + piece.local
                last = first + piece.stop - piece.start
                for position in range(first, last, BLOCK_BYTES):
                    stream.append(self._read(file, position, min(BLOCK_BYTES, last - position)))

    def _scatter(
        self, rows: Rows, owned: Sequence[Owned], shares: Sequence[tuple[str, int]], stream: TensorStream
    ) -> None:
        step = rows_of_block(rows, BLOCK_BYTES)
        for row in range(0, rows.count, step):
            count = min(step, rows.count - row)
            target = self._rows[: count * rows.size].reshape(count, rows.size)
            for rank in sorted({piece.rank for piece in owned}):
                file, start = shares[rank]
                share = self._read(file, start + row * rows.local_size, count * rows.local_size)
                local = share.reshape(count, rows.local_size)
                for piece in owned:
                    if piece.rank == rank:
                        length = piece.stop - piece.start
                        target[:, piece.start : piece.stop] = local[:, piece.local : piece.local + length]
            stream.append(target.reshape(-1))

    def _read(self, file: str, start: int, size: int) -> Bytes:
        block = self._block[:size]
        self._readers[file].read_into(block.data, start)
        return block

"""How one block of a source tensor reaches the ranks: as it lies, or gathered row by row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sharding.convert import Bytes
from sharding.placement import Range, Zeros
from sharding.rows import Pieces, Rows, segments
from sharding.stream import TensorStream

_WIDEST = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class RunFeed:
    """One rank's ascending pieces, taken out of blocks that pass by in order. A block may be any range of the tensor, as
    long as every byte that the rank takes is in one of them."""

    def __init__(self, stream: TensorStream, rows: Rows, pieces: Pieces) -> None:
        self._stream = stream
        self._segments = segments(rows, pieces)
        self._current = next(self._segments, None)

    def take(self, start: int, block: Bytes) -> None:
        """``block`` is the tensor's bytes from ``start``."""
        stop = start + block.size
        while self._current is not None:
            if isinstance(self._current, Zeros):
                self._stream.skip(self._current.length)
            else:
                first, last = max(self._current.start, start), min(self._current.stop, stop)
                if first > last or (first == stop and self._current.stop > stop):
                    return
                self._stream.append(block[first - start : last - start])
                if last < self._current.stop:
                    return
            self._current = next(self._segments, None)

    def finish(self) -> None:
        """Zeros that follow the last range."""
        while self._current is not None:
            if isinstance(self._current, Zeros):
                self._stream.skip(self._current.length)
            self._current = next(self._segments, None)


class RowFeed:
    """All ranks' pieces of whole rows, gathered in ``buffer`` one rank after the other."""

    def __init__(self, rows: Rows, takers: Sequence[tuple[TensorStream, Pieces]], buffer: Bytes) -> None:
        self._rows, self._takers = rows, takers
        self._unit = rows.unit
        self._buffer = buffer.view(_WIDEST[self._unit])

    def take(self, start: int, block: Bytes) -> None:
        """``block`` is whole rows from byte ``start``."""
        del start
        count = block.size // self._rows.size
        source: npt.NDArray[np.unsignedinteger] = block.view(self._buffer.dtype).reshape(count, -1)
        width = self._rows.local_size // self._unit
        target = self._buffer[: count * width].reshape(count, width)
        for stream, pieces in self._takers:
            column = 0
            for piece in pieces:
                first, last = (piece.start, piece.stop) if isinstance(piece, Range) else (0, piece.length)
                length = (last - first) // self._unit
                if isinstance(piece, Range):
                    target[:, column : column + length] = source[:, first // self._unit : last // self._unit]
                else:
                    target[:, column : column + length] = 0
                column += length
            stream.append(target.reshape(-1).view(np.uint8))

    def finish(self) -> None:
        """Rows are whole: nothing is left."""


def rows_of_block(rows: Rows, block: int) -> int:
    """Rows that are gathered at a time: neither they nor what a rank takes of them are more than ``block`` bytes."""
    return max(1, block // max(rows.size, rows.local_size, 1))

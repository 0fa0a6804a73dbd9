"""A tensor as rows of bytes, and what each rank takes of a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd, prod

from sharding.dtypes import dtype_bits, tensor_bytes
from sharding.errors import ShardingError
from sharding.limits import BLOCK_BYTES, RUN_BYTES
from sharding.placement import Piece, Placement, Range, Whole, Zeros, piece_length

Pieces = tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Rows:
    """``count`` rows of ``size`` bytes: the elements that share all indices before the cut dimension are a row.

    ``ranks[r]`` are rank r's pieces, in bytes of a row; all ranks take ``local_size`` bytes of it, zeros included.
    ``contiguous``: pieces are moved as they lie, else each rank's rows are gathered before they are written.
    """

    count: int
    size: int
    local_size: int
    ranks: tuple[Pieces, ...]
    contiguous: bool

    @property
    def total(self) -> int:
        return self.count * self.size

    @property
    def unit(self) -> int:
        """The widest power of two, up to 8, that divides every boundary: bytes that can be copied at once."""
        bounds = [piece for pieces in self.ranks for piece in pieces]
        return gcd(8, self.size, *(bound for piece in bounds for bound in piece))


def rows_of(placement: Placement, shape: Sequence[int], dtype: str, tp: int) -> Rows:
    """The rows of a tensor under a placement for ``tp`` ranks.

    Raises ShardingError where the placement does not fit the shape, or cuts through a byte.
    """
    total = tensor_bytes(dtype, tuple(shape))
    if isinstance(placement, Whole):
        return Rows(1, total, total, ((Range(0, total),),) * tp, True)
    if not 0 <= placement.dim < len(shape):
        raise ShardingError(f"it is cut on dimension {placement.dim}, but its shape is {list(shape)}")
    if len(placement.ranks) != tp:
        raise ShardingError(f"it is placed on {len(placement.ranks)} ranks, not on {tp}")
    bits = prod(shape[placement.dim + 1 :]) * dtype_bits(dtype)
    ranks = tuple(tuple(_in_bytes(piece, bits, shape[placement.dim]) for piece in pieces) for pieces in placement.ranks)
    size, rest = divmod(shape[placement.dim] * bits, 8)
    if rest:
        raise ShardingError(f"rows of {shape[placement.dim] * bits} bits do not fill whole bytes")
    count = prod(shape[: placement.dim])
    local_size = sum(map(piece_length, ranks[0]))
    contiguous = size == 0 or _is_contiguous(count, max(size, local_size), ranks)
    return Rows(count, size, local_size, ranks, contiguous)


def is_ascending(pieces: Pieces) -> bool:
    """Whether the ranges come in the source's order without overlap, so that one pass over it meets them in turn."""
    position = 0
    for piece in pieces:
        if isinstance(piece, Range):
            if piece.start < position:
                return False
            position = piece.stop
    return True


def segments(rows: Rows, pieces: Pieces) -> Iterator[Piece]:
    """A rank's pieces of every row, as bytes of the whole tensor."""
    for row in range(rows.count):
        base = row * rows.size
        for piece in pieces:
            yield piece if isinstance(piece, Zeros) else Range(base + piece.start, base + piece.stop)


def union(ranks: Sequence[Pieces]) -> list[Range]:
    """The bytes of a row that any of these ranks takes, as separate ranges in order."""
    merged: list[Range] = []
    for piece in sorted(piece for pieces in ranks for piece in pieces if isinstance(piece, Range)):
        if merged and piece.start <= merged[-1].stop:
            merged[-1] = Range(merged[-1].start, max(merged[-1].stop, piece.stop))
        else:
            merged.append(piece)
    return merged


def _in_bytes(piece: Piece, bits: int, length: int) -> Piece:
    if isinstance(piece, Range) and not 0 <= piece.start <= piece.stop <= length:
        raise ShardingError(f"{list(piece)} is outside a dimension of {length}")
    bounds = [divmod(bound * bits, 8) for bound in piece]
    if any(rest for _, rest in bounds):
        raise ShardingError(f"{list(piece)} of elements of {bits} bits cuts through a byte")
    whole = [quotient for quotient, _ in bounds]
    return Range(*whole) if isinstance(piece, Range) else Zeros(*whole)


def _is_contiguous(count: int, longest: int, ranks: Sequence[Pieces]) -> bool:
    if count <= 1 or longest > BLOCK_BYTES:
        return True
    shortest = min((piece_length(piece) for pieces in ranks for piece in pieces), default=0)
    return shortest >= RUN_BYTES

"""Where the elements of a tensor go: whole to every rank, or ranges of one dimension to each.

A placement is a record. ``Cut`` holds, for each rank, the *pieces* of dimension ``dim`` that the rank's tensor is made
of, in order: ``Range(start, stop)`` of the source, or ``Zeros(length)`` of padding. ``dim`` is the tensor's dimension;
a *rank* is one member of the tensor-parallel group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from sharding.errors import ShardingError


class Range(NamedTuple):
    """Elements ``start`` up to, not including, ``stop`` of the source."""

    start: int
    stop: int


class Zeros(NamedTuple):
    """``length`` elements of padding."""

    length: int


Piece = Range | Zeros


@dataclass(frozen=True, slots=True)
class Whole:
    """Every rank holds the whole tensor."""

    def local_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return tuple(shape)

    def to_json(self) -> dict[str, Any]:
        return {"dim": None}


@dataclass(frozen=True, slots=True)
class Cut:
    """Rank r holds ``ranks[r]``'s pieces of dimension ``dim``, joined; all ranks' lengths are equal.

    Raises ShardingError where they are not, or where a piece is empty.
    """

    dim: int
    ranks: tuple[tuple[Piece, ...], ...]

    def __post_init__(self) -> None:
        lengths = {sum(map(piece_length, pieces)) for pieces in self.ranks}
        if len(lengths) != 1:
            raise ShardingError(f"ranks hold unequal lengths of dimension {self.dim}: {sorted(lengths)}")
        if any(piece_length(piece) < 1 for pieces in self.ranks for piece in pieces):
            raise ShardingError(f"a piece of dimension {self.dim} is empty")

    @property
    def local_length(self) -> int:
        return sum(map(piece_length, self.ranks[0]))

    def local_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (*shape[: self.dim], self.local_length, *shape[self.dim + 1 :])

    def to_json(self) -> dict[str, Any]:
        return {"dim": self.dim, "ranges": [[_piece_to_json(piece) for piece in pieces] for pieces in self.ranks]}


Placement = Whole | Cut


def from_json(data: dict[str, Any]) -> Placement:
    """The inverse of ``to_json``."""
    if data["dim"] is None:
        return Whole()
    ranks = tuple(
        tuple(Zeros(piece["zeros"]) if isinstance(piece, dict) else Range(*piece) for piece in pieces)
        for pieces in data["ranges"]
    )
    return Cut(data["dim"], ranks)


def local_elements(placement: Placement, shape: Sequence[int]) -> int:
    """Elements one rank holds of a tensor of ``shape``, padding included."""
    return prod(placement.local_shape(shape))


def coverage(placement: Placement, length: int, tp: int) -> list[int]:
    """How many ranks hold each index of the placement's dimension (of ``length``; any, for a whole tensor)."""
    if isinstance(placement, Whole):
        return [tp] * length
    held = [0] * length
    for pieces in placement.ranks:
        for piece in pieces:
            if isinstance(piece, Range):
                for index in range(piece.start, piece.stop):
                    held[index] += 1
    return held


def cut_units(dim: int, unit: int, units_of_rank: Iterable[Sequence[int | None]]) -> Cut:
    """A cut in whole units (heads, experts) of ``unit`` elements; ``None`` is a unit of zeros."""
    return Cut(
        dim,
        tuple(
            _merge(Zeros(unit) if index is None else Range(index * unit, (index + 1) * unit) for index in units)
            for units in units_of_rank
        ),
    )


def cut_evenly(dim: int, length: int, tp: int, parts: int = 1) -> Cut:
    """Each of ``parts`` equal parts (packed gate and up are two) cut into ``tp`` runs: a rank holds its run of every part.

    Where ``tp`` does not divide a part, the last ranks' runs end in zeros.
    """
    part = length // parts
    run = -(-part // tp)
    ranks = []
    for rank in range(tp):
        pieces: list[Piece] = []
        for offset in range(0, length, part):
            start, stop = min(rank * run, part), min((rank + 1) * run, part)
            if stop > start:
                pieces.append(Range(offset + start, offset + stop))
            if stop - start < run:
                pieces.append(Zeros(run - (stop - start)))
        ranks.append(_merge(pieces))
    return Cut(dim, tuple(ranks))


def piece_length(piece: Piece) -> int:
    return piece.length if isinstance(piece, Zeros) else piece.stop - piece.start


def _merge(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """Neighbours that continue each other, as one."""
    merged: list[Piece] = []
    for piece in pieces:
        last = merged[-1] if merged else None
        if isinstance(last, Range) and isinstance(piece, Range) and last.stop == piece.start:
            merged[-1] = Range(last.start, piece.stop)
        elif isinstance(last, Zeros) and isinstance(piece, Zeros):
            merged[-1] = Zeros(last.length + piece.length)
        else:
            merged.append(piece)
    return tuple(merged)


def _piece_to_json(piece: Piece) -> Any:
    return {"zeros": piece.length} if isinstance(piece, Zeros) else [piece.start, piece.stop]

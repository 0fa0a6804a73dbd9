"""Collectives between forked processes of one machine, through memory they share.

Each rank writes its part into a place of its own, all meet at one barrier, each reads all parts. The memory is double:
collective ``k`` uses half ``k % 2``, and a rank can write there again only after the barrier of ``k + 1``, which no rank
reaches before it has read what it needs of ``k``. So one barrier a collective is enough.
"""

from __future__ import annotations

import json
import mmap
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

import torch
from torch import Tensor

from sharding.collectives.alone import Alone
from sharding.collectives.protocol import CollectiveError, Collectives

CAPACITY_BYTES = 1 << 20
"""Bytes of one rank's part in one round. Larger tensors take several rounds; memory is touched only as far as it is used."""

TIMEOUT_SECONDS = 600.0
"""A rank that is this much later than another is given up."""

_SLICE_SECONDS = 0.1
_ALIGNMENT = 64
_CALL_BYTES = 128
_REASON_CHARACTERS = 400
_ABSENCE_BYTES = 8192
"""Room for the ranks of any machine and a reason of ``_REASON_CHARACTERS``, each at most twelve bytes in JSON."""

_WORD = 8
_LINE = 8
_WAITING, _ABSENT, _ARRIVALS = 0, _LINE, 2 * _LINE
"""Words of the control memory: ranks at the barrier, length of the absence's record, then a line for each rank."""


class _Semaphore(Protocol):
    def acquire(self, block: bool = True, timeout: float | None = None) -> bool: ...

    def release(self) -> None: ...


class SharedMemoryGroup:
    """What the ranks of one group share: made in the parent before it forks, so that every child inherits it.

    A rank cannot see that another is dead. Whoever starts the processes watches them and calls ``abort``.
    """

    def __init__(
        self, size: int, capacity_bytes: int = CAPACITY_BYTES, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        if size < 1 or capacity_bytes < 1:
            raise ValueError(f"a group of {size} ranks with {capacity_bytes} bytes each: both must be at least 1")
        self.size = size
        self.timeout_seconds = timeout_seconds
        context = multiprocessing.get_context("fork")
        self.lock: _Semaphore = context.Semaphore(1)
        self.released: tuple[_Semaphore, _Semaphore] = (context.Semaphore(0), context.Semaphore(0))
        self.abort_lock: _Semaphore = context.Semaphore(1)
        self.calls = mmap.mmap(-1, 2 * size * _CALL_BYTES)
        self.absence = mmap.mmap(-1, _ABSENCE_BYTES)
        self.words = memoryview(mmap.mmap(-1, _WORD * (_ARRIVALS + _LINE * size))).cast("q")
        capacity = -(-capacity_bytes // _ALIGNMENT) * _ALIGNMENT
        parts = torch.frombuffer(mmap.mmap(-1, 2 * size * capacity), dtype=torch.uint8)
        self.parts = parts.view(2, size, capacity)

    def member(self, rank: int) -> Collectives:
        """The collectives of ``rank``; asked for once by each rank."""
        if not 0 <= rank < self.size:
            raise ValueError(f"rank {rank} of a group of {self.size}")
        return Alone() if self.size == 1 else _Member(self, rank)

    def abort(self, ranks: Sequence[int], reason: str) -> bool:
        """Make the waiting ranks, and all that come later, raise ``CollectiveError(ranks, reason)``.

        Only the first call counts; False says that there was one before.
        """
        # The lock is taken in vain if a process was killed inside: a record written twice is better than none.
        held = self.abort_lock.acquire(True, 1.0)
        first = not self.words[_ABSENT]
        if first:
            record = json.dumps([list(ranks), reason[:_REASON_CHARACTERS]]).encode()
            self.absence[: len(record)] = record
            self.words[_ABSENT] = len(record)
        if held:
            self.abort_lock.release()
        for semaphore in self.released:
            for _ in range(self.size):
                semaphore.release()
        return first

    def absent(self) -> CollectiveError | None:
        """What ``abort`` was told, as the error that the ranks raise."""
        if not self.words[_ABSENT]:
            return None
        if self.abort_lock.acquire(True, 1.0):  # orders memory: the whole record is seen
            self.abort_lock.release()
        return CollectiveError(*json.loads(self.absence[: self.words[_ABSENT]]))

    def arrivals(self) -> tuple[int, ...]:
        """Barriers that each rank has come to so far."""
        return tuple(self.words[_ARRIVALS + _LINE * rank] for rank in range(self.size))


class _Barrier:
    """One rank's side of the barrier.

    A counter under a lock; the last rank to arrive releases the others. Two semaphores in turn, so that a fast rank cannot
    take at the next barrier what was meant for a slow one at this. Every rank's writes go through the lock to the last rank,
    and from it through the semaphore to all: that orders memory on any processor.

    A waiting rank sleeps at once. To poll with ``sched_yield`` saves some 20 µs on idle cores, but costs a whole time slice of
    the scheduler wherever anything else runs.
    """

    def __init__(self, group: SharedMemoryGroup, rank: int) -> None:
        self._group = group
        self._own = _ARRIVALS + _LINE * rank
        self.half = 0

    def wait(self) -> None:
        """Until all ranks are here."""
        group, words = self._group, self._group.words
        semaphore = group.released[self.half]
        self.half ^= 1
        words[self._own] += 1
        self._take(group.lock)
        waiting = words[_WAITING] + 1
        last = waiting == group.size
        words[_WAITING] = 0 if last else waiting
        group.lock.release()
        if last:
            for _ in range(group.size - 1):
                semaphore.release()
        else:
            self._take(semaphore)
        if words[_ABSENT]:
            self.raise_absent()

    def _take(self, semaphore: _Semaphore) -> None:
        start = time.monotonic()
        while not semaphore.acquire(True, _SLICE_SECONDS):
            if self._group.words[_ABSENT]:
                self.raise_absent()
            if time.monotonic() - start > self._group.timeout_seconds:
                self._give_up()

    def _give_up(self) -> NoReturn:
        arrivals = self._group.arrivals()
        here = self._group.words[self._own]
        missing = [rank for rank, count in enumerate(arrivals) if count < here]
        limit = f"within {self._group.timeout_seconds:g} s"
        if missing:
            self._group.abort(missing, f"did not come to barrier {here} {limit}")
        else:
            self._group.abort((), f"all ranks came to barrier {here}, one was killed there: it did not open {limit}")
        self.raise_absent()

    def raise_absent(self) -> NoReturn:
        """What was aborted, as the error."""
        absent = self._group.absent()
        assert absent is not None
        raise absent


@dataclass(frozen=True, slots=True)
class _Places:
    """Where ``[elements]`` of one dtype lie in one half: the rank's own, every rank's, and all of them as one tensor. Kept,
    since to make these views takes longer than to use them."""

    own: Tensor
    parts: tuple[Tensor, ...]
    block: Tensor


class _Member:
    """One rank's collectives. Gradients are not carried through."""

    def __init__(self, group: SharedMemoryGroup, rank: int) -> None:
        self.size = group.size
        self._group, self._own = group, rank
        self._barrier = _Barrier(group, rank)
        self._places: dict[tuple[torch.dtype, int], tuple[_Places, _Places]] = {}
        self._calls: dict[tuple[object, ...], bytes] = {}

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """See ``Collectives.all_reduce``."""
        flat = tensor.detach().reshape(-1)
        result = torch.empty_like(flat)
        for start, stop, places in self._rounds("all_reduce", tensor, None, flat):
            total = result if stop - start == len(result) else result[start:stop]
            torch.add(places.parts[0], places.parts[1], out=total)
            for part in places.parts[2:]:
                total.add_(part)
        return result.view(tensor.shape)

    def all_gather(self, tensor: Tensor, dim: int) -> Tensor:
        """See ``Collectives.all_gather``."""
        shape = list(tensor.shape or (1,))
        dim %= len(shape)
        flat = tensor.detach().reshape(-1)
        block = flat.new_empty(self.size, len(flat))
        for start, stop, places in self._rounds("all_gather", tensor, dim, flat):
            (block if stop - start == len(flat) else block[:, start:stop]).copy_(places.block)
        joined = block.view(self.size, *shape).movedim(0, dim)
        shape[dim] *= self.size
        return joined.reshape(shape)

    def _rounds(self, kind: str, tensor: Tensor, dim: int | None, flat: Tensor) -> Iterator[tuple[int, int, _Places]]:
        """For each round the range of its elements and where they lie, to be read before the next round."""
        call = self._call(kind, tensor, dim)
        count, capacity = len(flat), self._group.parts.shape[2] // flat.itemsize
        for start in range(0, count, capacity):
            stop = min(start + capacity, count)
            half = self._barrier.half
            places = self._at(flat.dtype, stop - start)[half]
            places.own.copy_(flat if stop - start == count else flat[start:stop])
            self._meet(half, call)
            yield start, stop, places

    def _at(self, dtype: torch.dtype, count: int) -> tuple[_Places, _Places]:
        places = self._places.get((dtype, count))
        if places is None:
            blocks = self._group.parts.view(dtype)[:, :, :count].unbind()
            first, second = (_Places(block[self._own], block.unbind(), block) for block in blocks)
            places = self._places.setdefault((dtype, count), (first, second))
        return places

    def _meet(self, half: int, call: bytes) -> None:
        """The barrier, and the check that all ranks meet for the same thing."""
        calls, start = self._group.calls, half * self.size * _CALL_BYTES
        own = start + self._own * _CALL_BYTES
        calls[own : own + _CALL_BYTES] = call
        self._barrier.wait()
        there = calls[start : start + self.size * _CALL_BYTES]
        if there == call * self.size:
            return
        named = [there[at : at + _CALL_BYTES] for at in range(0, len(there), _CALL_BYTES)]
        others = [rank for rank, name in enumerate(named) if name != named[0]]
        first, other = (name.rstrip(b"\0").decode() for name in (named[0], named[others[0]]))
        self._group.abort(others, f"called {other} where rank 0 called {first}")
        self._barrier.raise_absent()

    def _call(self, kind: str, tensor: Tensor, dim: int | None) -> bytes:
        key = (kind, tensor.dtype, tensor.shape, dim)
        call = self._calls.get(key)
        if call is None:
            along = "" if dim is None else f" along {dim}"
            text = f"{kind} of {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}{along}"
            call = self._calls.setdefault(key, text.encode()[:_CALL_BYTES].ljust(_CALL_BYTES, b"\0"))
        return call

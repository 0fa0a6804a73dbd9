"""The ranks of one machine as forked processes that serve their parent's calls."""

from __future__ import annotations

import io
import os
import pickle
import select
import signal
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from threading import Thread
from types import TracebackType
from typing import Any, NoReturn

import torch

from sharding.collectives import Collectives
from sharding.collectives.shared_memory import CAPACITY_BYTES, TIMEOUT_SECONDS, SharedMemoryGroup

_POLL_SECONDS = 0.2
_GRACE_SECONDS = 1.0
"""How long to wait for the message of the rank that the others say failed."""

_LEAVE_SECONDS = 1.0
"""How long idle ranks have to leave by themselves."""


class RankError(Exception):
    """A rank that raised, died, or left the others waiting; the processes have been ended.

    ``rank``: the first at fault, not one that only met its absence. ``text``: its traceback, or how it ended.
    """

    def __init__(self, rank: int, text: str) -> None:
        self.rank = rank
        self.text = text
        super().__init__(rank, text)

    def __str__(self) -> str:
        return f"rank {self.rank} failed: {self.text}"


class RankProcesses:
    """``size`` forked processes, each with a worker of its own, for as long as the context lasts.

    ``make(rank, collectives)`` runs in the process of ``rank`` and returns any object; ``call`` runs a method of it on all
    ranks at once. The processes are forks: they have what the parent has imported and loaded, and share its memory until
    they write there. Torch runs with one thread in each of them.

    Leaving the context ends the processes, whatever the reason. They end too when the parent dies, and ignore Ctrl-C, which
    is the parent's to act upon. An error of ``make`` is raised on entering.
    """

    def __init__(
        self,
        make: Callable[[int, Collectives], object],
        size: int,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        capacity_bytes: int = CAPACITY_BYTES,
    ) -> None:
        self.size = size
        self._make = make
        self._group = SharedMemoryGroup(size, capacity_bytes, timeout_seconds)
        self._processes: list[ForkProcess] = []
        self._connections: list[Connection] = []

    def __enter__(self) -> RankProcesses:
        try:
            with _one_thread(), _interrupts_held() as mask:
                for rank in range(self.size):
                    self._fork(rank, mask)
            self._answers()
        except BaseException:
            self._end(at_once=True)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._end(at_once=kind is not None)

    def call(self, method: str, *args: Any, results_of: Collection[int] | None = None, **kwargs: Any) -> list[Any]:
        """The results of ``worker.method(*args, **kwargs)`` by rank. Tensors come and go as plain tensors of their dtype.

        ``results_of``: the ranks whose results are wanted; the others' are None, which spares sending them.
        Raises ``RankError`` as soon as one rank has failed; after that the context is to be left.
        """
        if not self._connections:
            raise RuntimeError("the rank processes have ended")
        request = _dumps((method, args, kwargs, None if results_of is None else frozenset(results_of)))
        try:
            for rank, connection in enumerate(self._connections):
                try:
                    connection.send_bytes(request)
                except OSError:
                    self._fail(rank, self._ending(rank))
            return self._answers()
        except BaseException:
            self._end(at_once=True)
            raise

    def _fork(self, rank: int, mask: set[signal.Signals]) -> None:
        context = get_context("fork")
        ours, theirs = context.Pipe()
        arguments = (self._make, rank, self._group, theirs, [*self._connections, ours], mask)
        process = context.Process(target=_serve, args=arguments, name=f"rank-{rank}", daemon=True)
        self._connections.append(ours)
        process.start()
        self._processes.append(process)
        theirs.close()

    def _answers(self) -> list[Any]:
        """One answer of every rank, or the failure of the rank that is at fault."""
        results: dict[int, Any] = {}
        failed: dict[int, str] = {}
        failed_at = 0.0
        while len(results) < self.size:
            watched = [rank for rank in range(self.size) if rank not in failed]
            ready = wait([end for rank in watched for end in self._ends(rank)], _POLL_SECONDS)
            for rank in watched:
                if not any(end in ready for end in self._ends(rank)):
                    continue
                answer = self._receive(rank)
                if answer is None:
                    self._fail(rank, self._ending(rank))
                done, result = answer
                if done:
                    results[rank] = result
                else:
                    failed[rank] = result
                    failed_at = failed_at or time.monotonic()
            if failed:
                self._fail_for_cause(failed, failed_at)
            elif not ready:
                self._look_for_leavers(results)
        return [results[rank] for rank in range(self.size)]

    def _ends(self, rank: int) -> tuple[Connection, int]:
        """What becomes readable when ``rank`` answers or dies."""
        return self._connections[rank], self._processes[rank].sentinel

    def _receive(self, rank: int) -> tuple[bool, Any] | None:
        """Whether ``rank`` did what was asked, with its result or its traceback; None when it is dead."""
        connection = self._connections[rank]
        try:
            message = connection.recv_bytes() if connection.poll() else b""
        except (EOFError, OSError):
            return None
        answer: tuple[bool, Any] | None = pickle.loads(message) if message else None
        return answer

    def _fail_for_cause(self, failed: dict[int, str], since: float) -> None:
        """Raise for the rank that failed first, when its message is here or does not come."""
        absent = self._group.absent()
        at_fault = absent.ranks if absent is not None else ()
        for rank in at_fault:
            if rank in failed:
                self._fail(rank, failed[rank])
        if time.monotonic() - since > _GRACE_SECONDS:
            first = min(failed)
            self._fail(at_fault[0] if at_fault else first, f"{absent}\nas rank {first} found:\n{failed[first]}")

    def _look_for_leavers(self, results: dict[int, Any]) -> None:
        """A rank that has answered takes part in no further collective: those that wait for it would wait for ever."""
        arrivals = self._group.arrivals()
        most = max(arrivals)
        for rank in results:
            if arrivals[rank] < most:
                others = [other for other, count in enumerate(arrivals) if count == most]
                reason = f"ended the call after {arrivals[rank]} barriers, rank {others[0]} waits at barrier {most}"
                self._fail(rank, reason)

    def _ending(self, rank: int) -> str:
        process = self._processes[rank]
        process.join(_GRACE_SECONDS)
        code = process.exitcode
        if code is not None and code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"the process ended with exit code {code}"

    def _fail(self, rank: int, text: str) -> NoReturn:
        self._group.abort([rank], text)
        raise RankError(rank, text)

    def _end(self, at_once: bool) -> None:
        """Idle ranks leave when their connection closes; what does not is killed: a rank has nothing to save."""
        with _interrupts_held():
            for connection in self._connections:
                connection.close()
            deadline = time.monotonic() + (0.0 if at_once else _LEAVE_SECONDS)
            for process in self._processes:
                process.join(max(0.0, deadline - time.monotonic()))
            for process in self._processes:
                process.kill()
                process.join()
            self._connections, self._processes = [], []


def _serve(
    make: Callable[[int, Collectives], object],
    rank: int,
    group: SharedMemoryGroup,
    connection: Connection,
    inherited: Sequence[Connection],
    mask: set[signal.Signals],
) -> None:
    """A rank's whole life. ``inherited``: the parent's ends of pipes, which would outlive the parent here."""
    for end in inherited:
        end.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    torch.set_num_threads(1)
    Thread(target=_end_with_parent, args=(connection.fileno(), os.getppid()), daemon=True).start()
    worker: object = None
    request: bytes | None = None
    with suppress(EOFError, OSError):  # of the connection: the parent is gone
        while True:
            try:
                if request is None:
                    worker, result = make(rank, group.member(rank)), None
                else:
                    method, args, kwargs, wanted = pickle.loads(request)
                    result = getattr(worker, method)(*args, **kwargs)
                    if wanted is not None and rank not in wanted:
                        result = None
                answer = _dumps((True, result))
            except BaseException as error:
                group.abort([rank], f"raised {type(error).__name__}: {error}")
                connection.send_bytes(_dumps((False, traceback.format_exc())))
                return
            connection.send_bytes(answer)
            request = connection.recv_bytes()


def _end_with_parent(connection: int, parent: int) -> None:
    """End this process when the parent has died, in the midst of a call or not. The connection's hang-up alone does not say
    so: a living parent closes it too, and then ends its ranks in its own way."""
    poll = select.poll()
    poll.register(connection, 0)
    poll.poll()
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os._exit(1)


@contextmanager
def _one_thread() -> Iterator[None]:
    """A fork has none of its parent's threads: torch must not count on them there."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _interrupts_held() -> Iterator[set[signal.Signals]]:
    """Ctrl-C comes after the block, not within. Gives the signal mask from before."""
    before = {signal.Signals(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})}
    try:
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Pickler(pickle.Pickler):
    """Tensors by their bytes: torch's own ways pass file descriptors, or a whole storage for one row of it."""

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return NotImplemented
        flat = value.detach().contiguous().reshape(-1).view(torch.uint8)
        return _tensor, (bytearray(flat.numpy()), value.dtype, tuple(value.shape))


def _tensor(data: bytearray, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.frombuffer(data, dtype=dtype).view(shape) if data else torch.empty(shape, dtype=dtype)


def _dumps(value: object) -> bytes:
    file = io.BytesIO()
    _Pickler(file, protocol=5).dump(value)
    return file.getvalue()

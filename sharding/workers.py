"""Threads that share one list of work. Reading, hashing, copying and writing of large blocks all let other threads run."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from typing import TypeVar

Item = TypeVar("Item")


class Stopped(Exception):
    """The work was given up because of an error elsewhere."""


class Halt:
    """Ends the work of all: each checks it between its blocks."""

    def __init__(self) -> None:
        self._called = threading.Event()

    def call(self) -> None:
        self._called.set()

    def check(self) -> None:
        """Raises Stopped once it was called."""
        if self._called.is_set():
            raise Stopped


def share_out(items: Iterable[Item], workers: Sequence[Callable[[Item], None]], halt: Halt) -> None:
    """Give each item, in order, to the first worker that is free; one of them works in the calling thread. An error in one
    calls ``halt``, and is raised when all have ended."""
    left = deque(items)

    def work(worker: Callable[[Item], None]) -> None:
        try:
            while True:
                halt.check()
                try:
                    item = left.popleft()
                except IndexError:
                    return
                worker(item)
        except BaseException:
            halt.call()
            raise

    first, *others = workers
    with ThreadPoolExecutor(max(1, len(others)), thread_name_prefix="reshard") as pool:
        running = [pool.submit(work, worker) for worker in others]
        try:
            with suppress(Stopped):
                work(first)
            wait(running)
        except BaseException:
            halt.call()
            raise
    for future in running:
        with suppress(Stopped):
            future.result()

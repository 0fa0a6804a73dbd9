"""Telling the kernel to begin writing, so that making a file durable at its end does not wait for all of it."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType

STEP_BYTES = 32 * 2**20
"""Bytes of a file after which it is told."""

_SYNC_FILE_RANGE_WRITE = 2


class Writeback:
    """Begins writing on a thread of its own, as the system may make the caller wait for its disk."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="writeback")
        self._begun: list[Future[None]] = []

    def begin(self, file: int) -> None:
        """Have what was written to an open file go to its disk soon. Any thread may call it."""
        self._begun.append(self._thread.submit(begin_writing, file))

    def settle(self) -> None:
        """Wait until all of it has begun; then its files may be closed."""
        wait(self._begun)
        self._begun.clear()

    def __enter__(self) -> Writeback:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(cancel_futures=True)
        self._begun.clear()  # to wait for what was cancelled is to wait for ever


def begin_writing(file: int) -> None:
    """Begin to write an open file's bytes to its disk, without waiting. A hint: where the system has no such call nothing
    happens, and errors are left for ``fsync`` to report."""
    call = _sync_file_range()
    if call is not None:
        call(file, 0, 0, _SYNC_FILE_RANGE_WRITE)


@functools.cache
def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        call = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError):
        return None
    call.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    found: Callable[[int, int, int, int], int] = call
    return found

"""Telling the kernel to begin writing, so that making a file durable at its end does not wait for all of it."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable

STEP_BYTES = 32 * 2**20
"""Bytes in a row after which it is told."""

_SYNC_FILE_RANGE_WRITE = 2


def begin_writing(file: int, start: int, size: int) -> None:
    """Begin to write these bytes of an open file to its disk, without waiting. A hint: where the system has no such call
    nothing happens, and errors are left for ``fsync`` to report."""
    call = _sync_file_range()
    if call is not None:
        call(file, start, size, _SYNC_FILE_RANGE_WRITE)


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

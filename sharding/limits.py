"""What streaming may hold in memory, whatever the model and the number of ranks."""

from __future__ import annotations

BLOCK_BYTES = 2 * 2**20
"""The most of a local source tensor that is read at a time: read, hashed and written while a core's cache holds it."""

REMOTE_BLOCK_BYTES = 8 * 2**20
"""The same where every read is a request."""

WRITE_BYTES = 2**20
"""The most that is written in one call: one of 8 MiB was seen to take five times the kernel's time."""

WORKERS = 2
"""Threads at most that make tensors of a local source, each with blocks of its own: two were seen to write 1.3 times as
fast as one."""

RUN_BYTES = 128 * 2**10
"""Runs at least this long are written as they lie in the block; shorter ones are gathered row by row first."""

PEAK_BYTES = 300 * 2**20
"""Bound of peak resident memory above the interpreter; at most a third of it is the program's own buffers."""

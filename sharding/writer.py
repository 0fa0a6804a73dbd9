"""Files that appear whole or not at all. Every byte that is written to a local disk passes through this module.

A file is written under a temporary name beside its final one, made durable, then renamed. The temporary name says who
writes it, so that a later run can remove what a killed one left, and only that.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import secrets
import shutil
from hashlib import sha256
from pathlib import Path

from sharding.errors import NoSpaceError
from sharding.limits import WRITE_BYTES
from sharding.writeback import STEP_BYTES, Writeback

Data = bytes | memoryview


class OutputFile:
    """A file of ``size`` bytes in the making; bytes that are never written are zeros. Several threads may write to it."""

    def __init__(self, path: Path, size: int, writeback: Writeback | None = None) -> None:
        self.path = path
        self._writeback = writeback
        self.temporary = temporary_path(path)
        self._waiting = 0
        self._file: int | None = os.open(self.temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            os.ftruncate(self._file, size)
        except BaseException:
            self.discard()
            raise

    def write(self, data: Data, offset: int) -> None:
        """Put ``data`` at ``offset``. Raises OSError."""
        assert self._file is not None
        view = memoryview(data)
        while len(view):
            count = write_at(self._file, view[:WRITE_BYTES], offset)
            self._spread(count)
            view, offset = view[count:], offset + count

    def finish(self) -> None:
        """Make it durable, still under its temporary name."""
        if self._file is not None:
            sync(self._file)
            self._close()

    def publish(self) -> None:
        """Give it its final name, at once and for good."""
        self.finish()
        self.temporary.replace(self.path)
        sync_directory(self.path.parent)

    def discard(self) -> None:
        """Remove it; nothing happens to a file that was published."""
        self._close()
        with contextlib.suppress(OSError):
            self.temporary.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._file is not None:
            if self._writeback:
                self._writeback.settle()
            file, self._file = self._file, None
            os.close(file)

    def _spread(self, count: int) -> None:
        """Have what was written go to the disk while the next is made. A count lost between threads only delays it."""
        self._waiting += count
        if self._writeback and self._file is not None and self._waiting >= STEP_BYTES:
            self._waiting = 0
            self._writeback.begin(self._file)


class Nowhere:
    """Takes bytes that only have to be hashed."""

    def write(self, data: Data, offset: int) -> None:
        """Nothing."""


def write_at(file: int, data: memoryview, offset: int) -> int:
    """One ``pwrite``."""
    return os.pwrite(file, data, offset)


def sync(file: int) -> None:
    os.fsync(file)


def sync_directory(directory: Path) -> None:
    """Make renames in it durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        sync(handle)
    finally:
        os.close(handle)


def write_file(path: Path, data: bytes) -> None:
    """A small file, whole or not at all. Raises OSError."""
    output = OutputFile(path, len(data))
    try:
        output.write(data, 0)
        output.publish()
    finally:
        output.discard()


def refuse_full(directory: Path, needed: int) -> None:
    """Raises NoSpaceError where the file system of ``directory`` (or of where it will be) has less than ``needed``
    bytes free."""
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    found = os.statvfs(existing)
    free = found.f_bavail * found.f_frsize
    if free < needed:
        import errno

        raise NoSpaceError(
            errno.ENOSPC, f"{directory}: {needed:,} bytes are needed, {free:,} are free; nothing was written"
        )


def temporary_path(path: Path) -> Path:
    prefix, suffix = temporary_name(path.name)
    return path.with_name(prefix + secrets.token_hex(4) + suffix)


def temporary_name(name: str) -> tuple[str, str]:
    """What goes before and after a word of letters and digits in a name that ``remove_abandoned`` knows."""
    return f".{name}.{_host()}-{os.getpid()}-{_started(os.getpid())}-", ".part"


def remove_abandoned(directory: Path) -> None:
    """Remove temporary files and directories whose writer, a process of this machine, no longer runs."""
    for path in directory.iterdir() if directory.is_dir() else ():
        match = re.fullmatch(r"\..+\.(\w+)-(\d+)-(\d+)-\w+\.part", path.name)
        if match and match[1] == _host() and match[3] != _started(int(match[2])):
            with contextlib.suppress(OSError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _host() -> str:
    return sha256(platform.node().encode()).hexdigest()[:8]


def _started(process: int) -> str:
    """When a process began, in ticks since boot; its number may be another's by now. ``0`` where there is none."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return "0"

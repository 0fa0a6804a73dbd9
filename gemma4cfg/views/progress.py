"""How far a long task is, for a person; nothing where standard output is no terminal."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as Bars

from gemma4cfg.views.sizes import gigabytes
from sharding.records import Progress, ProgressCallback, ReshardResult


@contextmanager
def shown_progress(console: Console) -> Iterator[ProgressCallback | None]:
    """A callback that draws a bar for each thing that is done: bytes, rate and time left. Null off a terminal."""
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bars(*columns, TimeRemainingColumn(), console=console) as bars:
        tasks: dict[str, TaskID] = {}

        def show(progress: Progress) -> None:
            if progress.what not in tasks:
                tasks[progress.what] = bars.add_task(_short(progress.what), total=progress.total)
            bars.update(tasks[progress.what], completed=progress.done, total=progress.total)

        yield show


def summary(result: ReshardResult) -> str:
    """One line: what was written and kept, how fast, and the peak of resident memory."""
    rate = result.bytes_written / result.seconds / 1e9 if result.seconds else 0.0
    kept = f", {len(result.reused)} kept" if result.reused else ""
    return (
        f"{_files(len(result.written))} written ({gigabytes(result.bytes_written)}){kept} in {result.seconds:.1f} s, "
        f"{rate:.2f} GB/s, peak memory {peak_memory() / 1e6:.0f} MB"
    )


def peak_memory() -> int:
    """The most bytes that this process ever held resident."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"


def _short(what: str) -> str:
    return what.removesuffix("_sharded_checkpoint.safetensors").removesuffix(".safetensors")

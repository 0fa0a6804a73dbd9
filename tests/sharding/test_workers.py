"""Several workers: the same bytes as one makes, and an error in one ends all."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import pytest

import sharding.engine
import sharding.readers
import sharding.writeback
from sharding import Progress, check, reshard
from sharding.placement import Whole, cut_evenly
from sharding.workers import Halt, Stopped, share_out
from sharding.writeback import Writeback
from sharding.writer import OutputFile
from tests.sharding.synthetic import device, write_parts

TP = 4
SHAPE = (512, 256)
PLACEMENTS = {
    "tensors": {
        **{f"rows.{number}": device(SHAPE, cut_evenly(0, SHAPE[0], TP)) for number in range(6)},
        **{f"columns.{number}": device(SHAPE, cut_evenly(1, SHAPE[1], TP)) for number in range(6)},
        "whole": device((3,), Whole()),
    },
    "rank_tensors": {"ids": {"dtype": "int32", "values": [[rank] for rank in range(TP)]}},
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    tensors = {name: (tuple(entry["shape"]), "BF16") for name, entry in PLACEMENTS["tensors"].items()}
    names = list(tensors)
    return write_parts(tmp_path / "in", [{name: tensors[name] for name in part} for part in (names[:7], names[7:])])


def use(patch: pytest.MonkeyPatch, workers: int) -> None:
    """That many workers, and blocks so small that they take turns."""
    patch.setattr(sharding.engine, "WORKERS", workers)
    patch.setattr(sharding.engine, "BLOCK_BYTES", 2**14)
    patch.setattr(os, "cpu_count", lambda: 64)


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


@pytest.mark.parametrize("dtype", [None, "float32"])
def test_any_number_of_workers_makes_the_same_files(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str | None
) -> None:
    made, read = [], set()
    for workers in (1, 2, 5):
        use(monkeypatch, workers)
        seen: list[Progress] = []
        result = reshard(PLACEMENTS, TP, source, tmp_path / f"out{workers}", dtype, digests=True, progress=seen.append)
        made.append(files(tmp_path / f"out{workers}"))
        read.add(result.bytes_read)
        assert [step.done for step in seen] == sorted(step.done for step in seen)
        assert seen[-1].done == seen[-1].total
        assert check(tmp_path / f"out{workers}", source) == ()
    assert made[0] == made[1] == made[2]
    assert len(read) == 1, "every tensor is read once"


@pytest.mark.parametrize("error", [OSError(errno.EIO, "fault"), KeyboardInterrupt(), MemoryError()], ids=repr)
@pytest.mark.parametrize("in_caller", [True, False], ids=["caller", "other"])
def test_an_error_in_one_worker_ends_the_run(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, in_caller: bool
) -> None:
    """Its own error is what is raised, no thread stays, and nothing is left."""
    use(monkeypatch, 2)
    real, both = sharding.readers.read_at, threading.Barrier(2, timeout=30)
    begun = threading.local()

    def read_at(file: int, buffer: memoryview, offset: int) -> int:
        if not hasattr(begun, "yes"):
            begun.yes = True
            both.wait()
        if (threading.current_thread() is threading.main_thread()) == in_caller:
            raise error
        return real(file, buffer, offset)

    monkeypatch.setattr(sharding.readers, "read_at", read_at)
    with pytest.raises(type(error)) as caught:
        reshard(PLACEMENTS, TP, source, tmp_path / "out")
    assert caught.value is error
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("reshard", "writeback"))]
    assert files(tmp_path / "out") == {}
    assert list((tmp_path / "out").rglob("*.part")) == []


@pytest.mark.parametrize("first", [True, False])
def test_an_error_stops_the_others_between_blocks(first: bool) -> None:
    halt, begun, stopped = Halt(), threading.Event(), threading.Event()

    def fails(item: int) -> None:
        assert begun.wait(30)
        raise ValueError(item)

    def works(_: int) -> None:
        begun.set()
        try:
            while True:
                halt.check()
                time.sleep(0.001)
        except Stopped:
            stopped.set()
            raise

    with pytest.raises(ValueError):
        share_out(range(100), [fails, works] if first else [works, fails], halt)
    assert stopped.is_set()


def test_each_item_is_done_once_and_in_order_by_one() -> None:
    done: list[int] = []
    share_out(range(50), [done.append], Halt())
    assert done == list(range(50))
    done.clear()
    share_out(range(5_000), [done.append] * 4, Halt())
    assert sorted(done) == list(range(5_000))


def test_files_can_be_discarded_while_writeback_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is slow to take what it is told of, and an error meanwhile."""
    monkeypatch.setattr(sharding.writeback, "begin_writing", lambda _: time.sleep(0.2))

    def fail() -> None:
        output = OutputFile(tmp_path / "file", 1, writeback := Writeback())
        with pytest.raises(OSError), writeback:
            for _ in range(3):
                writeback.begin(0)
            raise OSError(errno.EIO, "fault")
        output.discard()

    thread = threading.Thread(target=fail, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert list(tmp_path.iterdir()) == []

"""What a second run makes of what a first one left."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import sharding.readers
import sharding.writer
from sharding import check, reshard
from sharding.errors import ForeignJobError, ShardingError, SourceChangedError
from sharding.placement import cut_evenly
from tests.sharding.synthetic import device, write_parts, write_tensors

SHAPE = (64, 48)
RANKS = [f"tp{rank}_sharded_checkpoint.safetensors" for rank in range(4)]


def placements(dim: int = 0):
    names = ("a", "b", "c")
    tensors = {name: device(SHAPE, cut_evenly(dim, SHAPE[dim], 4), "BF16") for name in names}
    return {"tensors": tensors, "rank_tensors": {}}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_parts(tmp_path / "in", [{"a": (SHAPE, "BF16")}, {"b": (SHAPE, "BF16"), "c": (SHAPE, "BF16")}])


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("*") if path.is_file()}


def flip(path: Path, position: int) -> None:
    """Another byte at ``position``, and the time of modification that goes with it."""
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))
    found = path.stat()
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns + 1_000_000_000))


def test_a_complete_directory_is_only_checked(source, out):
    first = reshard(placements(), 4, source, out)
    before = contents(out)
    second = reshard(placements(), 4, source, out)
    assert (first.written, first.reused) == (tuple(RANKS), ())
    assert (second.written, second.reused, second.bytes_read) == ((), tuple(RANKS), 0)
    assert second.files == first.files
    assert contents(out) == before


def damage_missing(path: Path) -> None:
    path.unlink()


def damage_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def damage_bit(path: Path) -> None:
    flip(path, path.stat().st_size - 5)


def damage_header(path: Path) -> None:
    flip(path, 30)


@pytest.mark.parametrize("damage", [damage_missing, damage_short, damage_bit])
def test_only_what_is_missing_or_wrong_is_made_again(source, out, damage):
    reshard(placements(), 4, source, out)
    before = contents(out)
    damage(out / RANKS[2])
    result = reshard(placements(), 4, source, out)
    assert result.written == (RANKS[2],)
    assert contents(out) == before
    assert check(out, source) == ()


def test_a_lost_manifest_or_record_costs_no_other_file(source, out):
    reshard(placements(), 4, source, out)
    before = contents(out)
    (out / "manifest.json").unlink()
    (out / ".reshard" / f"{RANKS[1]}.json").write_text("{")
    assert reshard(placements(), 4, source, out).written == (RANKS[1],)
    assert contents(out) == before


def other_placement(_: Path) -> dict:
    return {"placements": placements(1)}


def other_dtype(_: Path) -> dict:
    return {"dtype": "float32"}


def other_source(source: Path) -> dict:
    return {"source": write_parts(source.parent / "tuned", [dict.fromkeys("abc", (SHAPE, "BF16"))], seed="tuned")}


def other_values(source: Path) -> dict:
    for part in source.glob("*.safetensors"):
        flip(part, part.stat().st_size - 100)
    return {}


DIFFERENCES = [
    (other_placement, r"the placements \(the plan\)"),
    (other_dtype, r"dtype \(None, now float32\)"),
    (other_source, r"the source \(model.safetensors\)"),
    (other_values, r"the source \(model-00001-of-00002.safetensors, model-00002"),
]


@pytest.mark.parametrize(("change", "words"), DIFFERENCES, ids=lambda item: getattr(item, "__name__", ""))
@pytest.mark.parametrize("ended", [True, False], ids=["ended", "interrupted"])
def test_another_jobs_files_are_never_reused(source, out, change, words, ended):
    reshard(placements(), 4, source, out)
    if not ended:
        (out / "manifest.json").unlink()
        (out / RANKS[3]).unlink()
    before = contents(out)
    arguments = {"placements": placements(), "tp": 4, "source": source, "destination": out}
    with pytest.raises(ForeignJobError, match=words) as caught:
        reshard(**(arguments | change(source)))
    assert "choose another output directory, or delete this one" in str(caught.value)
    assert contents(out) == before


def test_a_change_between_the_samples_is_noticed(tmp_path, out):
    shape = (1024, 1024)
    source = write_parts(tmp_path / "in", [{"x": (shape, "U8")}])
    placed = {"tensors": {"x": device(shape, cut_evenly(0, 1024, 4), "U8")}}
    reshard(placed, 4, source, out)
    (out / RANKS[3]).unlink()
    part = source / "model.safetensors"
    flip(part, part.stat().st_size - 2**20 + 6000)
    with pytest.raises(ForeignJobError, match=r"tp0_sharded_checkpoint\.safetensors was made from other bytes"):
        reshard(placed, 4, source, out)
    flip(part, part.stat().st_size - 2**20 + 6000)
    assert reshard(placed, 4, source, out).written == (RANKS[3],)


def test_a_copy_of_the_source_continues(source, out):
    reshard(placements(), 4, source, out)
    (out / RANKS[0]).unlink()
    copied = shutil.copytree(source, source.parent / "copy", copy_function=shutil.copyfile)
    assert reshard(placements(), 4, copied, out).written == (RANKS[0],)
    seen = []
    reshard(placements(), 4, copied, out, progress=seen.append)
    assert {progress.what for progress in seen} == {"checking files"}  # the source was compared once


def test_files_that_nobody_remembers_are_not_overwritten(source, out):
    out.mkdir()
    write_tensors(out / RANKS[1], {"x": ((1,), "U8", b"x")})
    with pytest.raises(ForeignJobError, match=r"tp1_sharded_checkpoint\.safetensors is there already"):
        reshard(placements(), 4, source, out)
    assert list(contents(out)) == [RANKS[1]]


def test_rank_files_of_a_larger_degree_are_not_mixed_with(source, out):
    out.mkdir()
    write_tensors(out / "tp7_sharded_checkpoint.safetensors", {"x": ((1,), "U8", b"x")})
    with pytest.raises(ForeignJobError, match="tp7_sharded_checkpoint"):
        reshard(placements(), 4, source, out)


def test_abandoned_files_are_removed_and_others_left(source, out):
    out.mkdir()
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    mine = sharding.writer.temporary_path(out / RANKS[0])
    abandoned = mine.with_name(mine.name.replace(f"-{os.getpid()}-", f"-{dead.pid}-"))
    elsewhere = out / f".{RANKS[0]}.0123abcd-{dead.pid}-5-ff.part"
    for path in (mine, abandoned, elsewhere):
        path.write_bytes(b"x")
    reshard(placements(), 4, source, out)
    assert (mine.exists(), abandoned.exists(), elsewhere.exists()) == (True, False, True)


class _Together:
    """A progress callback that makes two runs wait for each other once, in the middle."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(2)
        self.waited = threading.local()

    def __call__(self, _: object) -> None:
        if not getattr(self.waited, "done", False):
            self.waited.done = True
            self.barrier.wait(30)


def run_together(*jobs) -> list:
    outcomes: list = [None] * len(jobs)

    def one(index: int) -> None:
        try:
            outcomes[index] = jobs[index]()
        except Exception as error:
            outcomes[index] = error

    threads = [threading.Thread(target=one, args=(index,)) for index in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def test_two_runs_of_one_job_agree(source, out):
    together = _Together()
    outcomes = run_together(*[lambda: reshard(placements(), 4, source, out, progress=together)] * 2)
    assert [outcome.files for outcome in outcomes] == [outcomes[0].files] * 2
    assert sorted(contents(out)) == sorted([*RANKS, "manifest.json"])
    assert check(out, source) == ()


@pytest.mark.parametrize("out", range(5), indirect=True)
def test_of_two_jobs_one_wins(source, out):
    barrier = threading.Barrier(2)

    def run(dim: int):
        barrier.wait()
        return reshard(placements(dim), 4, source, out)

    outcomes = run_together(lambda: run(0), lambda: run(1))
    refused = [outcome for outcome in outcomes if isinstance(outcome, ForeignJobError)]
    assert len(refused) == 1, outcomes
    winner = next(outcome for outcome in outcomes if outcome not in refused)
    assert sorted(contents(out)) == sorted([*RANKS, "manifest.json"])
    assert check(out, source) == ()
    assert reshard(placements(outcomes.index(winner)), 4, source, out).written == ()


@pytest.mark.parametrize("call", range(0, 18, 2))
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_failing_write_leaves_no_temporary_file(source, out, monkeypatch, code, call):
    calls = iter(range(100))
    real = os.pwrite

    def failing(file, data, offset):
        if next(calls) == call:
            raise OSError(code, os.strerror(code))
        return real(file, data, offset)

    monkeypatch.setattr(sharding.writer, "write_at", failing)
    with pytest.raises(OSError, match=os.strerror(code)):
        reshard(placements(), 4, source, out)
    left = sorted(path.name for path in out.rglob("*") if path.is_file() and path.name != "job.json")
    assert left == []
    monkeypatch.undo()
    reshard(placements(), 4, source, out)
    assert check(out, source) == ()


@pytest.mark.parametrize("change", ["touched", "truncated", "replaced"])
def test_a_source_that_changes_while_it_is_read(source, out, change, monkeypatch):
    part = source / "model-00002-of-00002.safetensors"
    real = sharding.readers.read_at
    done = []

    def reading(file, buffer, offset):
        if not done:
            done.append(True)
            if change == "touched":
                flip(part, part.stat().st_size - 1)
            elif change == "truncated":
                os.truncate(part, part.stat().st_size - 10)
            else:
                copy = part.with_name("copy")
                shutil.copyfile(part, copy)
                copy.replace(part)
        return real(file, buffer, offset)

    monkeypatch.setattr(sharding.readers, "read_at", reading)
    with pytest.raises(SourceChangedError, match=r"model-00002-of-00002\.safetensors"):
        reshard(placements(), 4, source, out)
    assert contents(out) == {}


def test_an_error_while_reading(source, out, monkeypatch):
    def failing(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(sharding.readers, "read_at", failing)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        reshard(placements(), 4, source, out)
    assert contents(out) == {}


def test_check_names_what_is_wrong(source, out):
    reshard(placements(), 4, source, out, digests=True)
    damage_bit(out / RANKS[0])
    damage_short(out / RANKS[1])
    damage_missing(out / RANKS[2])
    damage_header(out / RANKS[3])
    found = {problem.file: problem.message for problem in check(out)}
    assert sorted(found) == RANKS
    assert "1 tensors are not what the manifest states, 'c' first" in found[RANKS[0]]
    assert "truncated" in found[RANKS[1]]
    assert "no such file" in found[RANKS[2]]


def test_check_against_the_source(source, out):
    reshard(placements(), 4, source, out, digests=True)
    tuned = write_parts(source.parent / "tuned", [dict.fromkeys("abc", (SHAPE, "BF16"))], seed="tuned")
    (problem,) = check(out, tuned)
    assert "another checkpoint" in problem.message


def test_check_of_another_plans_files(source, out):
    made = reshard(placements(), 4, source, out)
    assert check(out, placement_id=made.placement_id) == ()
    (problem,) = check(out, placement_id="another")
    assert "made by another plan" in problem.message


def test_check_without_a_manifest(source, out):
    reshard(placements(), 4, source, out)
    (out / "manifest.json").unlink()
    with pytest.raises(ShardingError, match="the rank files are not complete; run the same command again"):
        check(out)

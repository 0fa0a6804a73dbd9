"""Sources, destinations and mirrors behind fsspec URLs."""

from __future__ import annotations

import shutil
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import sharding.writer
from sharding import check, merge, reshard
from sharding.errors import ForeignJobError, ShardingError, SourceChangedError
from sharding.placement import cut_evenly
from tests.sharding.synthetic import device, read_tensors, write_parts

SHAPE = (64, 48)
RANKS = [f"tp{rank}_sharded_checkpoint.safetensors" for rank in range(4)]
PLACEMENTS = {
    "tensors": {
        "a": device(SHAPE, cut_evenly(0, 64, 4)),
        "b": device(SHAPE, cut_evenly(1, 48, 4)),
        "c": {"shape": list(SHAPE), "dtype": "BF16", "home": "host", "placement": None, "status": "required"},
    },
    "rank_tensors": {"ids": {"dtype": "int32", "values": [[0], [1], [2], [3]]}},
}
FILES = sorted([*RANKS, "host_tables.safetensors"])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_parts(tmp_path / "in", [{"a": (SHAPE, "BF16")}, dict.fromkeys("bc", (SHAPE, "BF16"))])


@pytest.fixture
def store():
    """An empty store of objects in this process's memory."""
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    yield "memory://bucket"
    MemoryFileSystem.store.clear()


def contents(location: str | Path) -> dict[str, bytes]:
    """Files of a directory or URL, records left out."""
    system, path = fsspec.url_to_fs(str(location))
    found = {entry["name"] for entry in system.ls(path, detail=True) if entry["type"] == "file"}
    return {name.rpartition("/")[2]: system.cat_file(name) for name in sorted(found)}


def upload(directory: Path, url: str) -> str:
    system, path = fsspec.url_to_fs(url)
    for file in directory.iterdir():
        system.pipe_file(f"{path}/{file.name}", file.read_bytes())
    return url


class Dies(Exception):
    """The machine is reclaimed."""


def dies_after(monkeypatch, files: int) -> None:
    """Let a run finish that many files, and fail in the next."""
    finished = []
    real = sharding.writer.OutputFile.finish

    def finish(self):
        if self.path.name in FILES and self._file is not None:
            if len(finished) == files:
                raise Dies
            finished.append(self.path.name)
        real(self)

    monkeypatch.setattr(sharding.writer.OutputFile, "finish", finish)


def test_every_place_gives_the_same_files(source, store, tmp_path):
    remote_source = upload(source, f"{store}/in")
    reshard(PLACEMENTS, 4, source, tmp_path / "local")
    reshard(PLACEMENTS, 4, source, f"{store}/out")
    reshard(PLACEMENTS, 4, remote_source, tmp_path / "from_remote")
    reshard(PLACEMENTS, 4, remote_source, f"{store}/both")
    reshard(PLACEMENTS, 4, source, tmp_path / "mirrored", mirror=f"{store}/mirror")
    reshard(PLACEMENTS, 4, source, f"file://{tmp_path}/by_url", mirror=str(tmp_path / "second_disk"))

    expected = contents(tmp_path / "local")
    assert sorted(expected) == sorted([*FILES, "manifest.json"])
    for place in ("from_remote", "mirrored", "by_url", "second_disk"):
        assert contents(tmp_path / place) == expected, place
    for place in ("out", "both", "mirror"):
        assert contents(f"{store}/{place}") == expected, place
    assert check(f"{store}/out", remote_source) == ()


def test_merge_from_a_store(source, store, tmp_path):
    reshard(PLACEMENTS, 4, source, f"{store}/out")
    merge(f"{store}/out", tmp_path / "back")
    for part in source.glob("*.safetensors"):
        assert read_tensors(tmp_path / "back" / part.name) == read_tensors(part)
    with pytest.raises(ShardingError, match="local directory"):
        merge(f"{store}/out", f"{store}/back")


@pytest.mark.parametrize("finished", range(5))
@pytest.mark.parametrize("fresh", [True, False], ids=["fresh_machine", "same_machine"])
def test_a_run_continues_from_its_mirror(source, store, tmp_path, monkeypatch, finished, fresh):
    dies_after(monkeypatch, finished)
    with pytest.raises(Dies):
        reshard(PLACEMENTS, 4, source, tmp_path / "out", mirror=store)
    monkeypatch.undo()
    assert len([name for name in contents(store) if name in FILES] if finished else []) == finished
    if fresh:
        shutil.rmtree(tmp_path / "out")
        source = shutil.copytree(source, tmp_path / "copy", copy_function=shutil.copyfile)

    result = reshard(PLACEMENTS, 4, source, tmp_path / "out", mirror=store)

    assert len(result.written) == 5 - finished
    assert contents(tmp_path / "out") == contents(store)
    assert check(tmp_path / "out", source) == ()


@pytest.mark.parametrize("finished", range(5))
def test_a_remote_destination_continues(source, store, monkeypatch, finished):
    dies_after(monkeypatch, finished)
    with pytest.raises(Dies):
        reshard(PLACEMENTS, 4, source, store)
    monkeypatch.undo()
    assert len(reshard(PLACEMENTS, 4, source, store).written) == 5 - finished
    assert check(store, source) == ()


def test_a_damaged_file_in_the_mirror_is_not_taken(source, store, tmp_path):
    reshard(PLACEMENTS, 4, source, tmp_path / "out", mirror=store)
    system, path = fsspec.url_to_fs(store)
    data = bytearray(system.cat_file(f"{path}/{RANKS[1]}"))
    data[-1] ^= 1
    system.pipe_file(f"{path}/{RANKS[1]}", bytes(data))
    shutil.rmtree(tmp_path / "out")

    assert reshard(PLACEMENTS, 4, source, tmp_path / "out", mirror=store).written == (RANKS[1],)
    assert check(store, source) == ()


def test_another_jobs_mirror_is_refused(source, store, tmp_path):
    reshard(PLACEMENTS, 4, source, tmp_path / "out", mirror=store)
    before = contents(store)
    with pytest.raises(ForeignJobError, match=r"memory://bucket: another job's files are there: dtype"):
        reshard(PLACEMENTS, 4, source, tmp_path / "other", "float32", mirror=store)
    assert contents(store) == before
    assert not (tmp_path / "other").exists()


def test_a_rank_reads_only_its_ranges(source, tmp_path):
    size = 64 * 48 * 2
    result = reshard(PLACEMENTS, 4, source, tmp_path / "out", mirror=str(tmp_path / "mirror"))
    assert result.bytes_read == size + 4 * size + size  # a in quarters, b's short runs by every rank, c once


def test_a_remote_source_that_changes(source, store, tmp_path):
    location = upload(source, f"{store}/in")
    changed = []

    def replace(_: object) -> None:
        if not changed:
            changed.append(True)
            upload(source, location)

    with pytest.raises(SourceChangedError):
        reshard(PLACEMENTS, 4, location, tmp_path / "out", progress=replace)
    assert contents(tmp_path / "out") == {}


def test_an_unknown_scheme(source):
    with pytest.raises(ShardingError, match="nowhere://x"):
        reshard(PLACEMENTS, 4, source, "nowhere://x")


def test_nothing_is_left_in_the_staging_directory(source, store, tmp_path, monkeypatch):
    staging = tmp_path / "staging"
    staging.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(staging))
    reshard(PLACEMENTS, 4, source, store)
    assert list(staging.iterdir()) == []


def test_an_upload_that_was_cut_off_is_made_again(source, store):
    """Where a store shows files before they are whole."""
    reshard(PLACEMENTS, 4, source, store)
    system, path = fsspec.url_to_fs(store)
    system.pipe_file(f"{path}/{RANKS[2]}", system.cat_file(f"{path}/{RANKS[2]}")[:-50])
    system.rm(f"{path}/.reshard/{RANKS[2]}.json")
    assert reshard(PLACEMENTS, 4, source, store).written == (RANKS[2],)
    assert check(store, source) == ()


def test_a_mirror_onto_itself(source, tmp_path):
    with pytest.raises(ShardingError, match="both the destination and its mirror"):
        reshard(PLACEMENTS, 4, source, tmp_path / "out", mirror=str(tmp_path / "out"))

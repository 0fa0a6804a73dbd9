"""Full disks, failing disks, bad and changing sources, bad destinations, two runs at once: what is left is complete or absent,
nothing temporary stays where the process lived, and the same command ends the work once the fault is gone."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import sharding.readers
import sharding.writer
from sharding import check, merge, reshard
from sharding.errors import ForeignJobError, ShardingError, SourceChangedError
from sharding.placement import Whole, cut_evenly
from tests.checkpoints import published_config
from tests.sharding.synthetic import device, write_parts
from tests.twins import differences, expected_files, read_directory, twin_plan, twin_values, write_twin

TP = 4
SHAPE = (64, 32)
RANKS = [f"tp{rank}_sharded_checkpoint.safetensors" for rank in range(TP)]
FILES = {"host_tables.safetensors", *RANKS}
MANIFEST = "manifest.json"
ROOT = Path(__file__).parents[2]


def placements(dim: int = 0) -> dict[str, Any]:
    host = {"shape": list(SHAPE), "dtype": "BF16", "home": "host", "placement": None, "status": "required"}
    return {
        "tensors": {
            "a": device(SHAPE, cut_evenly(dim, SHAPE[dim], TP)),
            "b": device(SHAPE, cut_evenly(1, SHAPE[1], TP)),
            "c": host,
            "d": device((1,), Whole()),
        },
        "rank_tensors": {"ids": {"dtype": "int32", "values": [[rank] for rank in range(TP)]}},
    }


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_parts(
        tmp_path / "in", [{"a": (SHAPE, "BF16"), "d": ((1,), "BF16")}, dict.fromkeys("bc", (SHAPE, "BF16"))]
    )


@pytest.fixture
def reference(source: Path, tmp_path: Path) -> dict[str, bytes]:
    reshard(placements(), TP, source, tmp_path / "reference")
    return contents(tmp_path / "reference")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def contents(directory: Path) -> dict[str, bytes]:
    """Files under their final names."""
    if not directory.is_dir():
        return {}
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file() and path.name[0] != "."}


def assert_nothing_half(directory: Path, reference: dict[str, bytes]) -> dict[str, bytes]:
    """No incomplete file under a final name, no temporary one at all."""
    found = contents(directory)
    assert found == {name: reference.get(name) for name in found}
    left = list(directory.rglob("*.part")) if directory.is_dir() else []
    assert left == []
    return found


# Disks that fail.


class Fault:
    """Fails the ``number``-th call of one seam, and every later one while it lasts, as a full disk does."""

    def __init__(self, patch: pytest.MonkeyPatch, where: str, code: int, number: int) -> None:
        self.calls = count()
        self.code, self.number = code, number
        if where == "read":
            patch.setattr(sharding.readers, "read_at", self._failing(sharding.readers.read_at))
        elif where == "rename":
            patch.setattr(Path, "replace", self._failing(Path.replace))
        elif where == "open":
            patch.setattr(sharding.writer.OutputFile, "__init__", self._failing(sharding.writer.OutputFile.__init__))
        else:
            patch.setattr(sharding.writer, where, self._failing(getattr(sharding.writer, where)))

    def _failing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if next(self.calls) >= self.number:
                raise OSError(self.code, os.strerror(self.code))
            return real(*arguments)

        return call


FAULTS = [
    ("write_at", errno.ENOSPC),
    ("write_at", errno.EIO),
    ("sync", errno.EIO),
    ("sync", errno.ENOSPC),
    ("rename", errno.EIO),
    ("open", errno.ENOSPC),
    ("open", errno.EROFS),
    ("read", errno.EIO),
]


@pytest.mark.parametrize("mirrored", [False, True], ids=["local", "mirror"])
@pytest.mark.parametrize(("where", "code"), FAULTS, ids=lambda value: errno.errorcode.get(value, value))  # type: ignore[arg-type]
def test_a_disk_that_fails_at_any_call(
    source: Path, reference: dict[str, bytes], tmp_path: Path, where: str, code: int, mirrored: bool
) -> None:
    """The fault is met at every call of a run, one run after the other, until a run meets it no more."""
    met = 0
    for number in count():
        out, mirror = tmp_path / f"out{number}", tmp_path / f"mirror{number}" if mirrored else None
        with pytest.MonkeyPatch.context() as patch:
            fault = Fault(patch, where, code, number)
            try:
                reshard(placements(), TP, source, out, mirror=mirror and str(mirror))
            except OSError as error:
                assert error.errno == code
            else:
                assert next(fault.calls) <= number
                break
        met += 1
        found = assert_nothing_half(out, reference)
        kept = set(found) | (set(assert_nothing_half(mirror, reference)) if mirror else set())
        result = reshard(placements(), TP, source, out, mirror=mirror and str(mirror))
        assert set(result.reused) <= kept
        for place in (out, mirror):
            if place is not None:
                assert contents(place) == reference
                shutil.rmtree(place)
    assert met >= {"write_at": 15, "sync": 15, "rename": 10, "open": 10, "read": 3}[where], met


def test_a_disk_that_is_full_for_a_while(source: Path, reference: dict[str, bytes], out: Path) -> None:
    """The same directory, fault after fault: each run continues the last, and the last ends it."""
    for number in range(0, 40, 3):
        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(OSError):
            Fault(patch, ("write_at", "sync", "rename")[number % 3], errno.ENOSPC, number)
            reshard(placements(), TP, source, out)
        assert_nothing_half(out, reference)
    reshard(placements(), TP, source, out)
    assert contents(out) == reference


LIMITED = """
import json, resource, sys
from sharding import reshard
limit, placements, tp, source, out = json.loads(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
reshard(placements, tp, source, out)
"""


@pytest.mark.parametrize("limit", [0, 100, 1_500, 2_100, 4_200])
def test_a_limit_of_file_sizes(source: Path, reference: dict[str, bytes], out: Path, limit: int) -> None:
    """RLIMIT_FSIZE: the system itself refuses. Some limits are met by the first file, some by the largest, some by records."""
    assert limit < max(map(len, reference.values()))
    arguments = json.dumps([limit, placements(), TP, str(source), str(out)])
    ended = subprocess.run(
        [sys.executable, "-c", LIMITED, arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, "File too large" in ended.stderr) == (1, True), ended.stderr
    assert MANIFEST not in assert_nothing_half(out, reference)
    reshard(placements(), TP, source, out)
    assert contents(out) == reference


# Sources that are bad.


def bad(change: Callable[[bytearray, dict[str, Any]], bytes | bytearray]) -> Callable[[Path], None]:
    """Damage to ``model.safetensors``: ``change`` gets its data and its header and returns the new file."""

    def damage(directory: Path) -> None:
        path = directory / "model.safetensors"
        raw = path.read_bytes()
        start = 8 + int.from_bytes(raw[:8], "little")
        path.write_bytes(change(bytearray(raw[start:]), json.loads(raw[8:start])))

    return damage


def holding(content: bytes) -> Callable[[Path], None]:
    """``model.safetensors`` of just these bytes."""

    def damage(directory: Path) -> None:
        (directory / "model.safetensors").write_bytes(content)

    return damage


def packed(header: Any, data: bytes | bytearray, length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + data


def _with(header: dict[str, Any], name: str, **fields: Any) -> dict[str, Any]:
    return {**header, name: {**header[name], **fields}}


def _without(header: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in header.items() if key != name}


def _twice(header: dict[str, Any]) -> bytes:
    raw = json.dumps(header).encode()
    return raw[:-1] + b', "a": ' + json.dumps(header["a"]).encode() + b"}"


def _index(**entries: str) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        (directory / "model.safetensors").rename(directory / "part.safetensors")
        weight_map = dict.fromkeys("abcd", "part.safetensors") | entries
        (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

    return damage


def _two_files(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "x.safetensors")
    shutil.copy(directory / "x.safetensors", directory / "y.safetensors")


SIZE = SHAPE[0] * SHAPE[1] * 2
ONE_ELEMENTLESS = {"a": {"dtype": "BF16", "shape": [0, 32], "data_offsets": [0, 0]}}
ALL_ELEMENTLESS = {name: {"dtype": "BF16", "shape": [0, 32], "data_offsets": [0, 0]} for name in "abcd"}
BAD: dict[str, tuple[Callable[[Path], None], str]] = {
    "header-too-large": (bad(lambda data, header: packed(header, data, 100_000_001)), "over the limit"),
    "header-past-the-end": (bad(lambda data, header: packed(header, data, 90_000)), "truncated inside its header"),
    "header-of-2**63": (bad(lambda data, header: packed(header, data, 2**63)), "over the limit"),
    "empty-file": (holding(b""), "too short"),
    "not-json": (holding(packed(b"{oops", bytes(3 * SIZE + 2))), "not valid JSON"),
    "json-list": (holding(packed(b"[1]", bytes(3 * SIZE + 2))), "not an object"),
    "not-utf8": (holding(packed(b'{"\xff": 1}', bytes(3 * SIZE + 2))), "not valid JSON"),
    "overlap": (
        bad(lambda data, header: packed(_with(header, "c", data_offsets=[2, SIZE + 2]), data)),
        "inside the one",
    ),
    "out-of-range": (bad(lambda data, header: packed(header, data[:-1])), "truncated: "),
    "trailing-bytes": (bad(lambda data, header: packed(header, data + b"x")), "after the last tensor"),
    "hole": (bad(lambda data, header: packed(_without(header, "b"), data)), "belong to none"),
    "duplicate-key": (bad(lambda data, header: packed(_twice(header), data)), "'a' is defined twice"),
    "unknown-dtype": (bad(lambda data, header: packed(_with(header, "a", dtype="BF17"), data)), "unknown dtype"),
    "other-dtype": (bad(lambda data, header: packed(_with(header, "a", dtype="F16"), data)), "'a': it is float16"),
    "other-shape": (bad(lambda data, header: packed(_with(header, "a", shape=[32, 64]), data)), "'a': its shape in"),
    "negative-shape": (bad(lambda data, header: packed(_with(header, "a", shape=[-64, -32]), data)), "whole numbers"),
    "shape-against-offsets": (
        bad(lambda data, header: packed(_with(header, "a", shape=[64, 33]), data)),
        "offsets span",
    ),
    "huge-shape": (bad(lambda data, header: packed(_with(header, "a", shape=[2**62] * 2), data)), "offsets span"),
    "zero-size": (holding(packed(ALL_ELEMENTLESS, b"")), r"'a': its shape in model\.safetensors is \[0, 32\]"),
    "zero-size-and-missing": (holding(packed(ONE_ELEMENTLESS, b"")), "its shape in|needed tensors are missing"),
    "no-tensors": (holding(packed({}, b"")), "4 needed tensors are missing"),
    "missing-tensor": (
        bad(lambda data, header: packed({**_without(header, "a"), "z": header["a"]}, data)),
        "1 needed tensors are missing: 'a'",
    ),
    "index-of-an-absent-part": (_index(b="absent.safetensors"), r"absent\.safetensors: no such file"),
    "index-outside": (_index(b="../part.safetensors"), "outside this directory"),
    "index-absolute": (_index(b="/etc/hostname"), "outside this directory"),
    "index-of-an-url": (_index(b="s3://bucket/part.safetensors"), "outside this directory"),
    "index-of-an-absent-tensor": (_index(e="part.safetensors"), "'e' in part.safetensors, which does not hold it"),
    "no-files": (lambda directory: (directory / "model.safetensors").unlink(), r"no model\.safetensors"),
    "two-files-no-index": (_two_files, "2 safetensors files"),
}


@pytest.mark.parametrize("mirrored", [False, True], ids=["local", "mirror"])
@pytest.mark.parametrize("name", BAD)
def test_a_bad_source_is_refused_before_any_output(tmp_path: Path, name: str, mirrored: bool) -> None:
    damage, says = BAD[name]
    source = write_parts(tmp_path / "in", [{**dict.fromkeys("abc", (SHAPE, "BF16")), "d": ((1,), "BF16")}])
    damage(source)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ShardingError, match=says):
        reshard(placements(), TP, source, tmp_path / "out", mirror=str(tmp_path / "mirror") if mirrored else None)
    assert sorted(tmp_path.rglob("*")) == before


def test_every_flipped_bit_of_a_header(tmp_path: Path) -> None:
    """Refused before any output, or harmless: no flip gives other tensors."""
    shape = (4, 4)
    source = write_parts(tmp_path / "in", [dict.fromkeys("ab", (shape, "BF16"))])
    placed = {"tensors": {name: device(shape, cut_evenly(1, 4, 2)) for name in "ab"}, "rank_tensors": {}}
    reshard(placed, 2, source, tmp_path / "reference")
    expected = read_directory(tmp_path / "reference")
    path = source / "model.safetensors"
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    refused = 0
    for bit in range(8 * start):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        out = tmp_path / f"out{bit}"
        try:
            reshard(placed, 2, source, out)
        except ShardingError as error:
            refused += 1
            assert not out.exists(), bit
            assert "model.safetensors" in str(error) or str(source) in str(error), error
        else:
            assert read_directory(out) == expected, f"bit {bit % 8} of byte {bit // 8} gave other tensors"
    assert refused > 0.9 * 8 * start


@pytest.mark.parametrize("part", range(2))
def test_a_flipped_bit_of_data_is_seen_by_a_check(tmp_path: Path, out: Path, part: int) -> None:
    """Even where the file's time and size are as before and no sample meets it."""
    shape = (1024, 512)
    source = write_parts(tmp_path / "in", [{"x": (shape, "U8")}, {"y": (shape, "U8")}])
    placed = {"tensors": {name: device(shape, cut_evenly(0, 1024, 2), "U8") for name in "xy"}, "rank_tensors": {}}
    reshard(placed, 2, source, out)
    assert check(out, source) == ()
    path = sorted(source.glob("*.safetensors"))[part]
    found = path.stat()
    chance = random.Random(part)
    for _ in range(8):
        position = chance.randrange(found.st_size - 2**19, found.st_size)
        with path.open("r+b") as file:
            file.seek(position)
            byte = file.read(1)[0]
            file.seek(position)
            file.write(bytes([byte ^ 1 << chance.randrange(8)]))
            file.flush()
            os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
        assert check(out, source), position
        with path.open("r+b") as file:
            file.seek(position)
            file.write(bytes([byte]))
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
        assert check(out, source) == ()


@pytest.mark.parametrize("file", range(TP + 1))
def test_a_flipped_bit_of_a_rank_file(source: Path, reference: dict[str, bytes], out: Path, file: int) -> None:
    """Any bit, header included, is seen by a check and a merge, and made good by a run or refused by it."""
    name = sorted(FILES)[file]
    chance = random.Random(file)
    reshard(placements(), TP, source, out)
    size = len(reference[name])
    header = 8 + int.from_bytes(reference[name][:8], "little")
    positions = [0, 7, 8, header - 1, header, size - 1, *(chance.randrange(size) for _ in range(20))]
    for position in positions:
        damaged = bytearray(reference[name])
        damaged[position] ^= 1 << chance.randrange(8)
        (out / name).write_bytes(damaged)
        assert [problem.file for problem in check(out)] == [name], position
        with pytest.raises(ShardingError, match=name):
            merge(out, out.with_name("back"))
        assert not out.with_name("back").exists()
        assert reshard(placements(), TP, source, out).written == (name,), position
        assert contents(out) == reference


# Sources that change while they are read.


def _touch(path: Path) -> None:
    found = path.stat()
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns + 1_000_000))


def _flip(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-9, os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(-9, os.SEEK_END)
        file.write(bytes([byte ^ 1]))
    _touch(path)


def _shorten(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 8)


def _lengthen(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def _replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(bytes(byte ^ 255 for byte in path.read_bytes()))
    other.replace(path)


def _replace_by_a_twin(path: Path) -> None:
    """The same header, size and times; other values."""
    found, raw = path.stat(), path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    other = path.with_name("other")
    other.write_bytes(raw[:start] + bytes(byte ^ 255 for byte in raw[start:]))
    os.utime(other, ns=(found.st_atime_ns, found.st_mtime_ns))
    other.replace(path)


def _remove(path: Path) -> None:
    path.unlink()


CHANGES = [_touch, _flip, _shorten, _lengthen, _replace, _replace_by_a_twin, _remove]


@pytest.mark.parametrize("reads", [0, 1, 2])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__.strip("_"))
def test_a_source_that_changes_while_it_is_read(
    source: Path, reference: dict[str, bytes], out: Path, change: Callable[[Path], None], reads: int
) -> None:
    path = source / "model-00002-of-00002.safetensors"
    good = shutil.copytree(source, source.with_name("good"))
    with pytest.MonkeyPatch.context() as patch:
        calls, real = count(), sharding.readers.read_at

        def reading(*arguments: Any) -> int:
            if next(calls) == reads:
                change(path)
            return real(*arguments)

        patch.setattr(sharding.readers, "read_at", reading)
        with pytest.raises(SourceChangedError, match=path.name):
            reshard(placements(), TP, source, out)
        assert next(calls) > reads
    assert assert_nothing_half(out, reference) == {}

    result = reshard(placements(), TP, good, out)
    assert result.reused == ()
    assert contents(out) == reference


@pytest.mark.parametrize("change", [_flip, _replace, _replace_by_a_twin], ids=lambda change: change.__name__.strip("_"))
@pytest.mark.parametrize("files", [1, 3])
def test_files_made_before_the_source_changed_are_not_mixed_with_new_ones(
    source: Path, reference: dict[str, bytes], out: Path, tmp_path: Path, change: Callable[[Path], None], files: int
) -> None:
    path = source / "model-00002-of-00002.safetensors"
    good = shutil.copytree(source, source.with_name("good"))
    mirror = tmp_path / "mirror"
    changed: list[bool] = []

    def progress(_: object) -> None:
        if len(contents(mirror)) >= files and not changed:
            changed.append(True)
            change(path)

    with pytest.raises(SourceChangedError):
        reshard(placements(), TP, source, out, mirror=str(mirror), progress=progress)
    assert changed
    before = assert_nothing_half(mirror, reference)
    assert before.keys() & FILES
    with pytest.raises(ShardingError) as caught:
        reshard(placements(), TP, source, out, mirror=str(mirror))
    assert isinstance(caught.value, ForeignJobError) or change is _replace
    assert contents(mirror) == before

    result = reshard(placements(), TP, good, out, mirror=str(mirror))
    assert set(result.reused) == before.keys()
    assert contents(out) == contents(mirror) == reference


# Destinations that are bad.

WITHOUT_POWERS = """
import ctypes, json, sys
header = (ctypes.c_uint32 * 2)(0x20080522, 0)
if ctypes.CDLL(None, use_errno=True).capset(header, (ctypes.c_uint32 * 6)()):
    raise OSError(ctypes.get_errno(), "capset")
from sharding import reshard
placements, tp, source, out, mirror = json.loads(sys.argv[1])
reshard(placements, tp, source, out, mirror=mirror)
"""
"""Permissions hold for root too once it has given its powers away."""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="gives up root's powers as Linux does")
@pytest.mark.parametrize("what", ["destination", "parent", "mirror", "source"])
def test_no_permission(source: Path, reference: dict[str, bytes], tmp_path: Path, what: str) -> None:
    out, mirror = tmp_path / "place" / "out", tmp_path / "mirror"
    for path in (out, mirror):
        path.mkdir(parents=True)
    locked = {
        "destination": out,
        "parent": out.parent,
        "mirror": mirror,
        "source": source / "model-00002-of-00002.safetensors",
    }[what]
    if what == "parent":
        out.rmdir()
    locked.chmod(0o000 if what == "source" else 0o555)
    try:
        arguments = json.dumps([placements(), TP, str(source), str(out), str(mirror)])
        ended = subprocess.run(
            [sys.executable, "-c", WITHOUT_POWERS, arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        locked.chmod(0o755)
    assert (ended.returncode, "PermissionError" in ended.stderr) == (1, True), ended.stderr
    for place in (out, mirror):
        assert assert_nothing_half(place, reference) == {}
    reshard(placements(), TP, source, out, mirror=str(mirror))
    assert contents(out) == contents(mirror) == reference


@pytest.mark.parametrize("where", ["out", "out/below"])
@pytest.mark.parametrize("as_mirror", [False, True], ids=["destination", "mirror"])
def test_a_destination_that_is_a_file(source: Path, tmp_path: Path, where: str, as_mirror: bool) -> None:
    (tmp_path / "out").write_bytes(b"precious")
    place, other = tmp_path / where, tmp_path / "other"
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises((OSError, ShardingError), match="out"):
        if as_mirror:
            reshard(placements(), TP, source, other, mirror=str(place))
        else:
            reshard(placements(), TP, source, place)
    assert (tmp_path / "out").read_bytes() == b"precious"
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", [RANKS[2], MANIFEST, ".reshard/job.json"])
def test_a_name_that_is_taken_by_a_directory(source: Path, out: Path, name: str) -> None:
    (out / name / "precious").mkdir(parents=True)
    with pytest.raises((OSError, ShardingError)):
        reshard(placements(), TP, source, out)
    assert (out / name / "precious").is_dir()
    assert list(out.rglob("*.part")) == []
    assert not (out / MANIFEST).is_file()


def test_records_that_lost_their_job(source: Path, reference: dict[str, bytes], out: Path) -> None:
    """Whoever comes first has the directory, though what said whose it was is gone."""
    reshard(placements(), TP, source, out)
    (out / ".reshard" / "job.json").unlink()
    for name in reference:
        (out / name).unlink()
    reshard(placements(1), TP, source, out)
    with pytest.raises(ForeignJobError, match="another job's files are there"):
        reshard(placements(), TP, source, out)
    assert (
        json.loads((out / ".reshard" / "job.json").read_text())["job_id"]
        == json.loads((out / MANIFEST).read_text())["job_id"]
    )


# Two runs at once.

RACE = """
import json, sys
from sharding import reshard
from sharding.errors import ForeignJobError
placements, tp, source, out, mirror = json.loads(sys.stdin.readline())
print("ready", flush=True)
sys.stdin.readline()
try:
    result = reshard(placements, tp, source, out, mirror=mirror)
except ForeignJobError as error:
    print(error)
    sys.exit(2)
"""


def race(*jobs: tuple[int, Path, Path, Path | None]) -> list[tuple[int, str]]:
    """Exit codes and outputs of runs that begin together: each a placement's dimension, a source, a destination, a mirror."""
    processes = []
    for dim, source, out, mirror in jobs:
        process = subprocess.Popen(
            [sys.executable, "-c", RACE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert process.stdin
        process.stdin.write(json.dumps([placements(dim), TP, str(source), str(out), mirror and str(mirror)]) + "\n")
        process.stdin.flush()
        processes.append(process)
    for process in processes:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
    outputs = [process.communicate()[0] for process in processes]
    return [(process.returncode, output) for process, output in zip(processes, outputs, strict=True)]


@pytest.mark.parametrize("attempt", range(4))
@pytest.mark.parametrize("mirrored", [False, True], ids=["local", "mirror"])
def test_runs_of_one_job_at_once(
    source: Path, reference: dict[str, bytes], out: Path, tmp_path: Path, attempt: int, mirrored: bool
) -> None:
    mirror = tmp_path / "mirror" if mirrored else None
    ended = race(*[(0, source, out, mirror)] * (2 + attempt % 2))
    assert {code for code, _ in ended} == {0}, ended
    assert assert_nothing_half(out, reference) == reference
    assert mirror is None or assert_nothing_half(mirror, reference) == reference


@pytest.mark.parametrize("attempt", range(6))
def test_runs_of_different_jobs_at_once(source: Path, out: Path, tmp_path: Path, attempt: int) -> None:
    other = write_parts(
        tmp_path / "tuned",
        [{"a": (SHAPE, "BF16"), "d": ((1,), "BF16")}, dict.fromkeys("bc", (SHAPE, "BF16"))],
        seed="t",
    )
    jobs = [(0, source), (1, source) if attempt % 2 else (0, other)]
    ended = race(*[(dim, place, out, None) for dim, place in jobs])
    assert sorted(code for code, _ in ended) == [0, 2], ended
    dim, place = jobs[[code for code, _ in ended].index(0)]
    reshard(placements(dim), TP, place, tmp_path / "alone")
    assert assert_nothing_half(out, contents(tmp_path / "alone")) == contents(tmp_path / "alone")


@pytest.mark.parametrize("attempt", range(4))
def test_different_jobs_with_one_mirror(source: Path, tmp_path: Path, attempt: int) -> None:
    mirror = tmp_path / "mirror"
    ended = race(*[(dim, source, tmp_path / f"out{dim}", mirror) for dim in (0, 1)])
    assert sorted(code for code, _ in ended) == [0, 2], (attempt, ended)
    winner = [code for code, _ in ended].index(0)
    reshard(placements(winner), TP, source, tmp_path / "alone")
    expected = contents(tmp_path / "alone")
    assert assert_nothing_half(mirror, expected) == expected
    assert contents(tmp_path / f"out{winner}") == expected
    assert MANIFEST not in contents(tmp_path / f"out{1 - winner}")


# The command's exit codes.


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A small 26B-A4B with its config.json."""
    plan = twin_plan("26b-a4b", 2)
    directory = write_twin(tmp_path / "checkpoint", twin_values(plan), 3)
    config = published_config("26b-a4b")
    config["text_config"] |= {
        "hidden_size": 32,
        "vocab_size": 70,
        "head_dim": 8,
        "global_head_dim": 16,
        "intermediate_size": 28,
        "moe_intermediate_size": 24,
        "num_experts": 16,
    }
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def command(directory: Path, *overrides: str, limit: int | None = None) -> subprocess.CompletedProcess[str]:
    def before() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return subprocess.run(
        [sys.executable, "-m", "gemma4cfg", "task=shard", "tp=2", *overrides, "hydra.run.dir=run", "output=out"],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=before,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", ["unknown-dtype", "duplicate-key", "index-outside", "truncated"])
def test_a_bad_source_exits_with_2(checkpoint: Path, tmp_path: Path, name: str) -> None:
    part = checkpoint / "model-00002-of-00003.safetensors"
    raw = part.read_bytes()
    if name == "unknown-dtype":
        part.write_bytes(raw.replace(b'"BF16"', b'"BF17"', 1))
    elif name == "duplicate-key":
        start = 8 + int.from_bytes(raw[:8], "little")
        first = next(iter(json.loads(raw[8:start]).keys() - {"__metadata__"}))
        second = f"{{{json.dumps(first)}: 1, ".encode()
        part.write_bytes(packed(second + raw[9:start], raw[start:]))
    elif name == "index-outside":
        index = checkpoint / "model.safetensors.index.json"
        index.write_text(index.read_text().replace(part.name, f"../{part.name}"))
    else:
        os.truncate(part, len(raw) - 1)

    ended = command(tmp_path, f"checkpoint={checkpoint}")

    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.startswith("error"), ended.stderr
    assert "Traceback" not in ended.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["status"], result["exit_code"]) == ("refused", 2)
    assert not (tmp_path / "run" / "plan.json").exists()
    assert not (tmp_path / "out").exists()


def test_a_full_disk_exits_with_1_and_the_same_command_ends_it(checkpoint: Path, tmp_path: Path) -> None:
    ended = command(tmp_path, f"checkpoint={checkpoint}", limit=200_000)
    assert ended.returncode == 1, ended.stderr
    assert "File too large" in ended.stderr
    assert [name for name in contents(tmp_path / "out") if name in FILES | {MANIFEST}] == []
    assert list((tmp_path / "out").rglob("*.part")) == []

    ended = command(tmp_path, f"checkpoint={checkpoint}")
    assert ended.returncode == 0, ended.stderr
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    values = twin_values(twin_plan("26b-a4b", 2))
    assert differences(read_directory(tmp_path / "out"), expected_files(plan, values)) == []

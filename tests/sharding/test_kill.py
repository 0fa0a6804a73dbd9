"""``kill -9`` at random moments of real runs, and once at every moment that could matter."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sharding import check, reshard
from sharding.placement import Whole, cut_evenly
from tests.sharding.synthetic import device
from tests.twins import Stored, write_file

TP = 4
ROWS, COLUMNS = 3072, 1024
RANKS = [f"tp{rank}_sharded_checkpoint.safetensors" for rank in range(TP)]
HOST = "host_tables.safetensors"
FILES = {HOST, *RANKS}
MANIFEST = "manifest.json"
EARLY = 4
"""Kills from the start of the process on."""

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="POSIX")

RUN = """
import json, os, pathlib, sys, time
import sharding.writer
from sharding import reshard

placements, tp, source, destination, mirror, slow = json.loads(sys.stdin.readline())
if slow:
    real_write, real_sync, real_replace = sharding.writer.write_at, sharding.writer.sync, pathlib.Path.replace
    begun = False

    def write_at(file, data, offset):
        global begun
        count = real_write(file, data[: 2**19], offset)
        if not begun:
            begun = True
            print("begun", flush=True)
        time.sleep(slow)
        return count

    def sync(file):
        time.sleep(slow)
        real_sync(file)

    def replace(self, target):
        time.sleep(slow)
        real_replace(self, target)
        time.sleep(slow)

    sharding.writer.write_at, sharding.writer.sync, pathlib.Path.replace = write_at, sync, replace
result = reshard(placements, tp, source, destination, mirror=mirror)
print(json.dumps({"written": result.written, "reused": result.reused}), flush=True)
"""
"""A real run. With ``slow`` writes are small, and each step waits that many seconds, so that a kill meets it."""


@dataclass(frozen=True)
class Work:
    """One job: a source, its placements, and every file as an undisturbed run makes it."""

    source: Path
    placements: dict[str, Any]
    reference: dict[str, bytes]


def make_source(directory: Path, rows: int = ROWS, columns: int = COLUMNS) -> Path:
    generator = np.random.default_rng(11)
    tensors: Stored = {}
    for name in ("runs", "columns", "packed", "table"):
        tensors[name] = ("BF16", (rows, columns), generator.integers(0, 2**16, (rows, columns), np.uint16).tobytes())
    tensors["scalar"] = ("BF16", (1,), b"\x80\x3f")
    directory.mkdir()
    write_file(directory / "model.safetensors", tensors)
    return directory


def make_placements(rows: int = ROWS, columns: int = COLUMNS) -> dict[str, Any]:
    shape = (rows, columns)
    host = {"shape": list(shape), "dtype": "BF16", "home": "host", "placement": None, "status": "required"}
    return {
        "tensors": {
            "runs": device(shape, cut_evenly(0, rows, TP)),
            "columns": device(shape, cut_evenly(1, columns, TP)),
            "packed": device(shape, cut_evenly(0, rows, TP, parts=2)),
            "scalar": device((1,), Whole()),
            "table": host,
        },
        "rank_tensors": {"ids": {"dtype": "int32", "values": [[rank] for rank in range(TP)]}},
    }


def contents(directory: Path) -> dict[str, bytes]:
    """Every file under a final name; records and temporary files left out."""
    if not directory.is_dir():
        return {}
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file() and path.name[0] != "."}


def temporaries(directory: Path) -> list[str]:
    return sorted(str(path) for path in directory.rglob("*.part")) if directory.is_dir() else []


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Work:
    directory = tmp_path_factory.mktemp("kill")
    source = make_source(directory / "in")
    reshard(make_placements(), TP, source, directory / "reference")
    assert check(directory / "reference", source) == ()
    reference = contents(directory / "reference")
    assert reference.keys() == FILES | {MANIFEST}
    return Work(source, make_placements(), reference)


def start(work: Work, destination: Path, mirror: Path | None, slow: float) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", RUN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert process.stdin is not None
    url = None if mirror is None else f"file://{mirror}"
    process.stdin.write(json.dumps([work.placements, TP, str(work.source), str(destination), url, slow]) + "\n")
    process.stdin.flush()
    return process


def assert_sound(work: Work, directory: Path) -> set[str]:
    """No final file but the reference's, none incomplete. Returns their names."""
    found = contents(directory)
    assert found.keys() <= work.reference.keys(), sorted(found)
    for name, data in found.items():
        assert data == work.reference[name], f"{directory / name} is not complete"
    if MANIFEST in found:
        assert found.keys() == work.reference.keys(), "a manifest of files that are not there"
    return set(found)


def assert_complete(work: Work, directory: Path) -> None:
    assert contents(directory) == work.reference
    assert temporaries(directory) == [], "what the dead left is still there"
    records = sorted(path.name for path in (directory / ".reshard").iterdir())
    assert records == sorted(["job.json", *(f"{name}.json" for name in FILES)])


def resume_in_a_copy(work: Work, places: list[Path], scratch: Path) -> tuple[str, ...]:
    """What the same command makes of what a kill left: everything, byte for byte, without what was complete already."""
    copies = []
    for place in places:
        copies.append(scratch / place.name)
        if place.exists():
            shutil.copytree(place, copies[-1])
    complete = assert_sound(work, copies[0])
    mirrored = assert_sound(work, copies[1]) if len(copies) > 1 else set()
    mirror = f"file://{copies[1]}" if len(copies) > 1 else None
    result = reshard(work.placements, TP, work.source, copies[0], mirror=mirror)
    for copy in copies:
        assert_complete(work, copy)
    recorded = {name for name in FILES if name in complete or name in mirrored}
    assert set(result.written) == FILES - recorded
    shutil.rmtree(scratch)
    return result.written


@dataclass
class Tally:
    """``landed``: between a run's first byte and its manifest. ``midway``: with some files complete and others not."""

    killed: int = 0
    landed: int = 0
    resumed: int = 0
    midway: int = 0
    with_temporaries: int = 0


def kill_runs(work: Work, places: list[Path], scratch: Path, kills: int, landed: int, seed: int, slow: float) -> Tally:
    """Kill ``kills`` runs or a few more, so that ``landed`` of them are in the midst of it, and resume after each. Up to
    four continue what the one before left. The first few may die before their first byte, the others at a random moment
    after it."""
    chance = random.Random(seed)
    tally = Tally()
    began = time.monotonic()
    length = slow  # seconds from the first byte to the end, as measured
    first = start(work, places[0], places[1] if len(places) > 1 else None, slow)
    assert first.stdout is not None
    assert first.stdout.readline() == "begun\n"
    begun = time.monotonic()
    assert first.wait() == 0
    startup, length = begun - began, time.monotonic() - begun
    for place in places:
        assert_complete(work, place)
        shutil.rmtree(place)
    chained = 0
    while tally.killed < kills or tally.landed < landed:
        assert tally.killed < 2 * kills, tally
        process = start(work, places[0], places[1] if len(places) > 1 else None, slow)
        assert process.stdout is not None
        before = tally.killed < EARLY
        if before:
            time.sleep(chance.uniform(0, 1.2 * startup))
        elif process.stdout.readline() != "begun\n":
            raise AssertionError(f"a run that did not begin: {process.wait()}")
        else:
            time.sleep(chance.uniform(0, 0.98 * length))
        process.kill()
        process.wait()
        process.stdout.close()
        ended = process.returncode == 0
        if not ended:
            assert process.returncode == -signal.SIGKILL
            tally.killed += 1
            found = [assert_sound(work, place) for place in places]
            tally.landed += not before and MANIFEST not in found[0]
            tally.midway += 0 < len(found[0] - {MANIFEST}) < len(FILES)
            tally.with_temporaries += any(map(temporaries, places))
            resume_in_a_copy(work, places, scratch)
            tally.resumed += 1
        chained += 1
        if ended or any(MANIFEST in contents(place) for place in places) or chained == 4:
            chained = 0
            finish(work, places)
            for place in places:
                shutil.rmtree(place)
    return tally


def finish(work: Work, places: list[Path]) -> None:
    """The same command in a process of its own, left alone."""
    process = start(work, places[0], places[1] if len(places) > 1 else None, 0)
    output, _ = process.communicate()
    assert process.returncode == 0
    result = json.loads(output)
    assert {*result["written"], *result["reused"]} == FILES
    for place in places:
        assert_complete(work, place)


@pytest.mark.parametrize(
    ("mirrored", "kills", "landed", "slow"),
    [pytest.param(False, 29, 22, 0.007, id="local"), pytest.param(True, 25, 20, 0.0035, id="mirror")],
)
def test_random_kills(work: Work, tmp_path: Path, mirrored: bool, kills: int, landed: int, slow: float) -> None:
    """More than 50 kills in both cases together, more than 40 of them between the first byte and the manifest."""
    places = [tmp_path / "out", *([tmp_path / "mirror"] if mirrored else [])]

    tally = kill_runs(work, places, tmp_path / "scratch", kills, landed, seed=4 + mirrored, slow=slow)

    assert kills <= tally.killed == tally.resumed, tally
    assert tally.landed >= landed, tally
    assert tally.with_temporaries >= kills // 3, tally
    assert tally.midway >= 1, tally


EVERY = """
import json, os, pathlib, signal, sys
import sharding.writer
from sharding import reshard

placements, tp, source, base, mirrored = json.loads(sys.stdin.readline())
counter = limit = 0


def step():
    global counter
    counter += 1
    if counter == limit:
        os.kill(os.getpid(), signal.SIGKILL)


def dying(real):
    def call(*arguments, **options):
        step()
        result = real(*arguments, **options)
        step()
        return result
    return call


def write_at(file, data, offset):
    half = len(data) // 2
    step()
    os.pwrite(file, data[:half], offset)
    step()
    os.pwrite(file, data[half:], offset + half)
    step()
    return len(data)


ftruncate = os.ftruncate
sharding.writer.write_at = write_at
sharding.writer.sync = dying(sharding.writer.sync)
os.ftruncate = dying(ftruncate)
for name in ("replace", "rename", "mkdir", "unlink", "rmdir"):
    setattr(pathlib.Path, name, dying(getattr(pathlib.Path, name)))

numbers = iter(range(1, 10_000))
while True:
    limit = next(numbers)
    pid = os.fork()
    if pid == 0:
        counter = 0
        mirror = f"{base}/{limit}/mirror" if mirrored else None
        reshard(placements, tp, source, f"{base}/{limit}/out", mirror=mirror)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status):
        print(json.dumps([limit - 1, os.WEXITSTATUS(status)]))
        break
"""
"""Runs that kill themselves: one before each step that changes a disk, one after each (a write is half done between)."""


@pytest.mark.parametrize("mirrored", [False, True], ids=["local", "mirror"])
def test_a_kill_at_every_step(tmp_path: Path, mirrored: bool) -> None:
    rows, columns = 16, 8
    source = make_source(tmp_path / "in", rows, columns)
    placements = make_placements(rows, columns)
    reshard(placements, TP, source, tmp_path / "reference")
    work = Work(source, placements, contents(tmp_path / "reference"))
    base = tmp_path / "runs"
    ended = subprocess.run(
        [sys.executable, "-c", EVERY],
        input=json.dumps([placements, TP, str(source), str(base), mirrored]) + "\n",
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=True,
    )
    steps, code = json.loads(ended.stdout)
    assert code == 0
    assert steps > 100, "a run has more steps than that"
    seen: set[frozenset[str]] = set()
    for number in range(1, steps + 1):
        places = [base / str(number) / name for name in ("out", *(["mirror"] if mirrored else []))]
        try:
            seen.add(frozenset(assert_sound(work, places[0])))
            resume_in_a_copy(work, places, tmp_path / "scratch")
        except BaseException as error:
            raise AssertionError(f"killed at step {number} of {steps}: {error}") from error
    assert len(seen) == len(FILES) + 2, "every number of complete files, from none to all, and the manifest"
    places = [base / str(steps + 1) / name for name in ("out", *(["mirror"] if mirrored else []))]
    for place in places:
        assert_complete(work, place)


def test_a_kill_leaves_nothing_that_a_living_run_would_lose(work: Work, tmp_path: Path) -> None:
    """Two runs of one job, one killed midway: the other ends as if alone, and removes what the dead one left or leaves it
    to the next run."""
    destination = tmp_path / "out"
    one, two = start(work, destination, None, 0.01), start(work, destination, None, 0.02)
    for process in (one, two):
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
    time.sleep(0.1)
    two.kill()
    two.wait()
    output, _ = one.communicate()
    assert one.returncode == 0, output
    assert assert_sound(work, destination) == FILES | {MANIFEST}
    finish(work, [destination])

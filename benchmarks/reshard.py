"""The resharder beside ``cp``, beside the usual way and beside holding the model in memory, in one run.

``python benchmarks/reshard.py [--size GB] [--runs N] [--directory DIR] [--json FILE]``
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

TP = 8
FULL_GB = 4.9
"""Two layers of 26B-A4B and its embedding; ``--size`` below it takes fewer experts and a smaller vocabulary."""

PARTITIONS = ("intermediate", "experts")
SPEED_TARGET, MEMORY_TARGET = 0.8, 0.25
"""Of ``cp``'s speed, at least; of the usual way's peak memory, at most."""

RANK_FILE = "tp{rank}_sharded_checkpoint.safetensors"
Placed = Mapping[str, Any]


@dataclass
class Series:
    """Runs of one way. ``seconds`` end when every byte is on the disk, ``returned`` when the program ended;
    ``resident`` and ``anonymous`` are peaks in bytes, above what the process had when its work began."""

    seconds: list[float] = field(default_factory=list)
    returned: list[float] = field(default_factory=list)
    resident: list[int] = field(default_factory=list)
    anonymous: list[int] = field(default_factory=list)
    written: int = 0

    @property
    def speed(self) -> float:
        return self.written / statistics.median(self.seconds)


# The checkpoint.


def make_plan(partition: str, tp: int, size: float) -> dict[str, Any]:
    """The plan of a shortened 26B-A4B whose checkpoint has about ``size`` GB."""
    from gemma4cfg import build_plan, load_config

    scale = min(1.0, size / FULL_GB)
    layers = 2 if size <= FULL_GB else 2 + round((size - FULL_GB) / 1.7)
    choices = (f"moe.partition={partition}", f"tp={tp}", f"model.layers={layers}")
    experts, vocabulary = max(8, round(128 * scale / 8) * 8), max(1024, round(262_144 * scale / 64) * 64)
    shrunk = () if scale == 1 else (f"model.moe.experts={experts}", f"model.vocab_size={vocabulary}")
    plan: dict[str, Any] = build_plan(load_config(["model=26b-a4b", *choices, *shrunk])).to_json()
    return plan


def stored(plan: Placed) -> dict[str, tuple[int, ...]]:
    """Name to shape of what the checkpoint holds."""
    return {
        name: tuple(entry["shape"])
        for name, entry in plan["tensors"].items()
        if entry["home"] != "unused" and entry["status"] != "tied"
    }


def write_checkpoint(directory: Path, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """``model.safetensors`` of seeded noise in bfloat16; returns its bytes."""
    directory.mkdir(parents=True)
    header: dict[str, Any] = {}
    position = 0
    for name, shape in shapes.items():
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [position, position + 2 * prod(shape)]}
        position += 2 * prod(shape)
    raw = json.dumps(header).encode()
    noise = np.random.default_rng(0).integers(0, 256, 2**26, np.uint8).data
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for start in range(0, position, len(noise)):
            file.write(noise[: min(len(noise), position - start)])
        os.fsync(file.fileno())
    return 8 + len(raw) + position


def placements_of(plan: Placed) -> dict[str, Any]:
    return {"tensors": plan["tensors"], "rank_tensors": plan["rank_tensors"]}


# One way each, run in a process of its own.


def by_us(job: Mapping[str, Any], durable: bool = True) -> None:
    from sharding import reshard

    if not durable:
        import sharding.writeback
        import sharding.writer

        sharding.writer.sync = lambda file: None  # noqa: ARG005
        sharding.writeback.begin_writing = lambda file: None  # noqa: ARG005
    reshard(job["placements"], job["tp"], job["source"], job["out"], placement_id="benchmark")


def by_us_without_sync(job: Mapping[str, Any]) -> None:
    by_us(job, durable=False)


def by_slices(job: Mapping[str, Any]) -> None:
    """The usual way: each rank opens the file, takes its slices and saves them."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    path = f"{job['source']}/model.safetensors"
    tensors = job["placements"]["tensors"]
    Path(job["out"]).mkdir(parents=True)
    for rank in range(job["tp"]):
        with safe_open(path, framework="pt") as file:
            held = {
                entry["local_name"]: _slice(file.get_slice(origin(name, entry)), entry, rank)
                for name, entry in tensors.items()
                if entry["home"] == "device"
            }
            save_file(held, f"{job['out']}/{RANK_FILE.format(rank=rank)}")
    with safe_open(path, framework="pt") as file:
        host = {name: file.get_tensor(name) for name, entry in tensors.items() if entry["home"] == "host"}
        save_file(host, f"{job['out']}/host_tables.safetensors")


def in_memory(job: Mapping[str, Any]) -> None:
    """The whole model, then every rank's share of it, then the files."""
    from safetensors.torch import load_file, save_file

    whole = load_file(f"{job['source']}/model.safetensors")
    tensors = job["placements"]["tensors"]
    Path(job["out"]).mkdir(parents=True)
    ranks = [
        {
            entry["local_name"]: _slice(whole[origin(name, entry)], entry, rank).clone()
            for name, entry in tensors.items()
            if entry["home"] == "device"
        }
        for rank in range(job["tp"])
    ]
    for rank, held in enumerate(ranks):
        save_file(held, f"{job['out']}/{RANK_FILE.format(rank=rank)}")
    host = {name: whole[name] for name, entry in tensors.items() if entry["home"] == "host"}
    save_file(host, f"{job['out']}/host_tables.safetensors")


def origin(name: str, entry: Placed) -> str:
    return str(entry["source"] if entry["status"] == "tied" else name)


def _slice(whole: Any, entry: Placed, rank: int) -> Any:
    """A rank's part of a torch tensor or of a slice of a file, contiguous."""
    import torch

    placement = entry["placement"]
    if placement["dim"] is None:
        return whole[:]
    dim = placement["dim"]
    pieces = []
    for piece in placement["ranges"][rank]:
        if isinstance(piece, dict):
            shape = [*entry["shape"][:dim], piece["zeros"], *entry["shape"][dim + 1 :]]
            pieces.append(torch.zeros(shape, dtype=torch.bfloat16))
        else:
            pieces.append(whole[(slice(None),) * dim + (slice(*piece),)])
    return (pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim)).contiguous()


WAYS: dict[str, Callable[[Mapping[str, Any]], None]] = {
    "ours": by_us,
    "ours, no fsync": by_us_without_sync,
    "safe_open + slice + save_file": by_slices,
    "whole model in memory": in_memory,
}
IMPORTS = {"ours": "sharding.run", "ours, no fsync": "sharding.run"}


def child(way: str) -> None:
    """Do one job, given on standard input, and print seconds and peaks. Imports are not counted."""
    job = json.load(sys.stdin)
    __import__(IMPORTS.get(way, "safetensors.torch"))
    before = status("RssAnon"), status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak of resident memory begins anew
    peak, ended = 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not ended.wait(0.02):
            peak = max(peak, status("RssAnon"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.perf_counter()
    WAYS[way](job)
    seconds = time.perf_counter() - began
    ended.set()
    watcher.join()
    print(json.dumps([seconds, peak - before[0], status("VmHWM") - before[1]]))


def status(key: str) -> int:
    """A figure of this process, in bytes."""
    with Path("/proc/self/status").open() as file:
        return next(int(line.split()[1]) for line in file if line.startswith(key + ":")) * 1024


def run_way(way: str, job: Mapping[str, Any], series: Series) -> None:
    """One more run: the source in the page cache, nothing else waiting for the disk, what was written removed."""
    out = Path(job["out"])
    read_through(Path(job["source"]) / "model.safetensors")
    os.sync()
    began = time.perf_counter()
    if way == "cp":
        out.mkdir(parents=True)
        subprocess.run(["cp", *job["copied"], str(out)], check=True)
        seconds, anonymous, resident = time.perf_counter() - began, 0, 0
    else:
        ended = subprocess.run(
            [sys.executable, __file__, "--child", way],
            input=json.dumps(job),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])},
        )
        seconds, anonymous, resident = json.loads(ended.stdout.splitlines()[-1])
    began = time.perf_counter()
    files = [path for path in out.iterdir() if path.is_file()]
    for path in files:
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
    series.returned.append(seconds)
    series.seconds.append(seconds + time.perf_counter() - began)
    series.anonymous.append(anonymous)
    series.resident.append(resident)
    series.written = sum(path.stat().st_size for path in files)
    shutil.rmtree(out)


def read_through(path: Path) -> None:
    buffer = bytearray(2**23)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def measure(ways: Sequence[str], job: Mapping[str, Any], runs: int) -> dict[str, Series]:
    """The ways in turn, each round beginning with the next of them, so that what else the machine does meets all alike.
    One run of ``cp`` and of ours before them is not counted: a disk's first gigabytes can take several times as long."""
    for way in [way for way in ways if way in ("cp", "ours")]:
        run_way(way, job, Series())
    found = {way: Series() for way in ways}
    for number in range(runs):
        first = number % len(ways)
        for way in [*ways[first:], *ways[:first]]:
            run_way(way, job, found[way])
            print(f"  run {number + 1}: {way}: {found[way].seconds[-1]:.1f} s", file=sys.stderr)
    return found


# What is compared.


def compare(directory: Path, size: float, runs: int) -> dict[str, dict[str, Series]]:
    """Partition of the experts to way to runs. ``cp`` copies what a run writes: the checkpoint, and the embedding once
    more, since the head is made of it."""
    shapes = stored(make_plan(PARTITIONS[0], TP, size))
    write_checkpoint(directory / "in", shapes)
    (again,) = (prod(shape) * 2 for name, shape in shapes.items() if name.endswith("embed_tokens.weight"))
    with (directory / "head").open("wb") as file, (directory / "in" / "model.safetensors").open("rb") as source:
        for start in range(0, again, 2**26):
            file.write(source.read(min(2**26, again - start)))
    copied = [str(directory / "in" / "model.safetensors"), str(directory / "head")]
    found = {}
    for partition in PARTITIONS:
        placements = placements_of(make_plan(partition, TP, size))
        job = {"placements": placements, "tp": TP, "source": str(directory / "in"), "out": str(directory / "out")}
        print(f"experts by {partition}", file=sys.stderr)
        found[partition] = measure(["cp", *WAYS], {**job, "copied": copied}, runs)
    shutil.rmtree(directory / "in")
    (directory / "head").unlink()
    return found


def by_degree(directory: Path, size: float, runs: int) -> dict[int, Series]:
    """TP degree to runs of ours."""
    write_checkpoint(directory / "in", stored(make_plan(PARTITIONS[0], 1, size)))
    found = {}
    for tp in (1, 2, 4, 8):
        placements = placements_of(make_plan(PARTITIONS[0], tp, size))
        job = {"placements": placements, "tp": tp, "source": str(directory / "in"), "out": str(directory / "out")}
        print(f"tp={tp}", file=sys.stderr)
        found[tp] = measure(["ours"], job, runs)["ours"]
    shutil.rmtree(directory / "in")
    return found


def by_number(directory: Path, size: float, runs: int) -> dict[int, Series]:
    """Number of tensors to runs of ours over the same bytes; half are cut into rows, half into columns."""
    found = {}
    for number in (100, 1_000, 10_000):
        side = round((size * 1e9 / number / 2) ** 0.5 / TP) * TP or TP
        placements: dict[str, Any] = {"tensors": {}, "rank_tensors": {}}
        for index in range(number):
            run = side // TP
            ranges = [[[rank * run, rank * run + run]] for rank in range(TP)]
            placements["tensors"][f"tensor.{index:05}"] = {
                "shape": [side, side],
                "dtype": "bfloat16",
                "home": "device",
                "status": "required",
                "local_name": None,
                "placement": {"dim": index % 2, "ranges": ranges},
            }
        write_checkpoint(directory / "in", stored(placements))
        job = {"placements": placements, "tp": TP, "source": str(directory / "in"), "out": str(directory / "out")}
        print(f"{number} tensors", file=sys.stderr)
        found[number] = measure(["ours"], job, runs)["ours"]
        shutil.rmtree(directory / "in")
    return found


# The table.


def ratios(one: Sequence[float], other: Sequence[float], share: float) -> list[float]:
    """How fast ``other``'s bytes went beside ``one``'s, run by run; ``share``: bytes of ``other`` over bytes of ``one``."""
    return [share * first / second for first, second in zip(one, other, strict=True)]


def lines(found: Mapping[str, Mapping[str, Series]]) -> Iterator[str]:
    for partition, series in found.items():
        copy, ours, usual = series["cp"], series["ours"], series["safe_open + slice + save_file"]
        unsynced = series["ours, no fsync"]
        yield f"\nexperts by {partition}, tp={TP}, {copy.written / 1e9:.2f} GB written (medians of {len(copy.seconds)} runs)"
        yield f"  {'':32}{'on disk':>9}{'GB/s':>7}{'returned':>10}{'peak RSS':>11}{'anonymous':>11}"
        for way, runs in series.items():
            peaks = "" if way == "cp" else f"{_median_mb(runs.resident):>8.0f} MB{_median_mb(runs.anonymous):>8.0f} MB"
            returned = statistics.median(runs.returned)
            seconds = statistics.median(runs.seconds)
            yield f"  {way:32}{seconds:>7.1f} s{runs.speed / 1e9:>7.2f}{returned:>8.1f} s{peaks}"
        share = ours.written / copy.written
        for what, pairs in (
            ("speed beside cp, both on the disk", ratios(copy.seconds, ours.seconds, share)),
            ("speed beside cp, neither synced", ratios(copy.returned, unsynced.returned, share)),
        ):
            yield _verdict(what, statistics.median(pairs), SPEED_TARGET, True, f"{min(pairs):.2f} to {max(pairs):.2f}")
        for what, peak, other in (
            ("peak RSS beside the usual way", ours.resident, usual.resident),
            ("anonymous memory beside the usual way", ours.anonymous, usual.anonymous),
        ):
            yield _verdict(what, statistics.median(peak) / max(1, statistics.median(other)), MEMORY_TARGET, False, "")


def growth_lines(what: str, found: Mapping[int, Series]) -> Iterator[str]:
    yield f"\nours by {what}"
    for number, series in found.items():
        seconds, peak = statistics.median(series.seconds), _median_mb(series.resident)
        yield f"  {number:>6}{seconds:>9.2f} s{series.written / 1e9:>7.2f} GB{series.speed / 1e9:>7.2f} GB/s{peak:>7.0f} MB"


def _verdict(what: str, value: float, target: float, at_least: bool, spread: str) -> str:
    met = value >= target if at_least else value <= target
    bound = f"{'at least' if at_least else 'at most'} {target}"
    return f"  {what:40}{value:>6.2f}  {bound:14} {'met' if met else 'NOT MET':8}{spread}"


def _median_mb(values: Sequence[int]) -> float:
    return statistics.median(values) / 1e6


@contextmanager
def scratch(parent: str | None) -> Iterator[Path]:
    """A directory that is gone afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="reshard-benchmark-", dir=parent))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Times the resharder beside cp and beside other ways.")
    parser.add_argument("--size", type=float, default=FULL_GB, help=f"GB of the checkpoint (default {FULL_GB})")
    parser.add_argument("--runs", type=int, default=5, help="runs of each way after a warm-up (default 5)")
    parser.add_argument("--directory", help="where to work: three times the size is written (default: TMPDIR)")
    parser.add_argument("--json", help="a file for the figures")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child)
        return
    if arguments.directory and not Path(arguments.directory).is_dir():
        parser.error(f"--directory {arguments.directory}: there is no such directory")
    with scratch(arguments.directory) as directory:
        needed = 3.5e9 * arguments.size
        if shutil.disk_usage(directory).free < needed:
            parser.error(f"{directory} has less than {needed / 1e9:.0f} GB free")
        compared = compare(directory, arguments.size, arguments.runs)
        degrees = by_degree(directory, arguments.size / 4, arguments.runs)
        numbers = by_number(directory, arguments.size / 4, arguments.runs)
    print(
        "\n".join([*lines(compared), *growth_lines("TP degree", degrees), *growth_lines("number of tensors", numbers)])
    )
    if arguments.json:
        plain = {
            "compared": {name: {way: asdict(runs) for way, runs in ways.items()} for name, ways in compared.items()},
            "by_degree": {tp: asdict(runs) for tp, runs in degrees.items()},
            "by_number": {number: asdict(runs) for number, runs in numbers.items()},
        }
        Path(arguments.json).write_text(json.dumps(plain, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""Peak memory of a whole run over gigabytes: strided cuts, packed parts, eight ranks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from math import prod
from pathlib import Path

import pytest

from sharding.placement import Placement, cut_evenly
from tests.checkpoints import Tensors, write_checkpoint
from tests.sharding.synthetic import device

TP = 8
ANONYMOUS, RESIDENT = 100e6, 300e6
"""What is promised: anonymous memory in all, and the peak of resident memory above the bare interpreter's."""

ROOT = Path(__file__).parents[2]

RUN = """
import sys

def status(*keys):
    with open("/proc/self/status") as file:
        lines = dict(line.split(":", 1) for line in file)
    return sum(int(lines[key].split()[0]) for key in keys) * 1024

bare = status("VmHWM")

import json, threading
from sharding import reshard

placements, tp, source, out, mirror = json.loads(sys.argv[1])
peak, ended = 0, threading.Event()

def watch():
    global peak
    while not ended.wait(0.005):
        peak = max(peak, status("RssAnon", "VmSwap"))

watcher = threading.Thread(target=watch)
watcher.start()
result = reshard(placements, tp, source, out, mirror=mirror)
ended.set()
watcher.join()
print(json.dumps([bare, peak, status("VmHWM"), result.bytes_read]))
"""

TENSORS: dict[str, tuple[tuple[int, ...], Placement]] = {
    "short_runs": ((32_768, 12_288), cut_evenly(1, 12_288, TP)),
    "packed": ((64, 2816, 2816), cut_evenly(1, 2816, TP, parts=2)),
    "innermost": ((64, 2816, 704), cut_evenly(2, 704, TP)),
    "padded": ((64, 2816, 700), cut_evenly(2, 700, TP)),
    "rows": ((2048, 40_960), cut_evenly(0, 2048, TP)),
}
SIZE = sum(2 * prod(shape) for shape, _ in TENSORS.values())


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Removed at once: it holds gigabytes."""
    if shutil.disk_usage(tmp_path).free < 6e9:
        pytest.skip("6 GB of disk are needed")
    yield tmp_path / "memory"
    shutil.rmtree(tmp_path / "memory", ignore_errors=True)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_memory_of_gigabytes(directory: Path) -> None:
    assert SIZE > 2e9
    tensors: Tensors = {name: (shape, "BF16") for name, (shape, _) in TENSORS.items()}
    source = write_checkpoint(directory / "in", {}, tensors)
    placements = {
        "tensors": {name: device(shape, placement) for name, (shape, placement) in TENSORS.items()},
        "rank_tensors": {},
    }
    ended = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps([placements, TP, str(source), str(directory / "out"), None])],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    bare, anonymous, peak, read = json.loads(ended.stdout)
    assert read == SIZE, "every tensor is read once"
    made = sum(path.stat().st_size for path in (directory / "out").glob("tp*"))
    assert made > SIZE
    assert 0 < anonymous <= ANONYMOUS, f"{anonymous / 1e6:.0f} MB of anonymous memory"
    assert bare < peak <= bare + RESIDENT, f"{(peak - bare) / 1e6:.0f} MB resident above the interpreter"

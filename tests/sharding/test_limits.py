"""Memory stays bounded, whatever the sizes: measured in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sharding.limits import PEAK_BYTES
from sharding.placement import Placement, Whole, cut_evenly
from tests.checkpoints import write_checkpoint
from tests.sharding.synthetic import device

RUN = """
import json, resource, sys
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
from sharding import check, merge, reshard
before = peak()
placements, tp, source, out, back = json.loads(sys.argv[1])
reshard(placements, tp, source, out, "float32")
assert check(out, source) == ()
merge(out, back)
anonymous = sum(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(("RssAnon", "VmSwap")))
print(peak() - before, anonymous * 1024)
"""

CASES: dict[str, tuple[tuple[int, ...], Placement]] = {
    "rows": ((2**14, 2**12), cut_evenly(0, 2**14, 32)),
    "columns": ((2**14, 2**12), cut_evenly(1, 2**12, 32)),
    "one_huge_row": ((1, 2**26), cut_evenly(1, 2**26, 32, parts=2)),
    "whole": ((2**20, 4), Whole()),
}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
@pytest.mark.parametrize("name", CASES)
def test_peak_memory(tmp_path, name):
    shape, placement = CASES[name]
    source = write_checkpoint(tmp_path / "in", {}, {"x": (shape, "BF16")})
    placements = {"tensors": {"x": device(shape, placement)}}
    arguments = [placements, 32, str(source), str(tmp_path / "out"), str(tmp_path / "back")]
    ended = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(arguments)], capture_output=True, text=True, check=True
    )
    grown, anonymous = map(int, ended.stdout.split())
    assert grown < PEAK_BYTES / 2
    assert anonymous < 100e6

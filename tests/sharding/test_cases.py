"""Public faults of resharding, one test each, in the numbers of the collection of cases."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sharding import ShardingError, check, merge, reshard
from tests.twins import as_stored, merged_tensors, read_directory, twin_plan, twin_values, used, write_twin


def cut(plan: dict[str, Any], source: Path, destination: Path) -> None:
    placements = {"tensors": plan["tensors"], "rank_tensors": plan["rank_tensors"]}
    reshard(placements, plan["tp"], source, destination, plan["dtype"], placement_id=plan["placement_id"])


def test_case_38_every_kind_of_tensor_passes_through_the_production_path(tmp_path: Path) -> None:
    """978 of 978 checks passed while buffers were dropped and the packed branch never ran: the harness cut by itself."""
    plan = twin_plan("26b-a4b", 8)
    source = write_twin(tmp_path / "in", twin_values(plan))
    cut(plan, source, tmp_path / "out")
    held = read_directory(tmp_path / "out")["tp1_sharded_checkpoint.safetensors"]
    kinds: Counter[str] = Counter()
    for entry in plan["tensors"].values():
        if entry["home"] == "device":
            placement = entry["placement"]
            packed = placement["dim"] is not None and len(placement["ranges"][1]) > 1
            kinds["packed" if packed else "whole" if placement["dim"] is None else "cut"] += 1
            kinds[entry["kind"]] += 1
            kinds[entry["status"]] += 1
            assert entry["local_name"] in held
    assert {"packed", "whole", "cut", "buffer", "parameter", "tied", "required"} <= set(kinds)


def test_case_46_elements_are_counted_not_names(tmp_path: Path) -> None:
    """A store cut for 8 ranks was loaded at TP 4 with all names and half the experts' columns: from 8 to 4 goes through
    the whole tensors, and a directory that lacks ranks is no checkpoint."""
    eight, four = twin_plan("26b-a4b", 8), twin_plan("26b-a4b", 4)
    source = write_twin(tmp_path / "in", twin_values(eight))
    cut(eight, source, tmp_path / "eight")
    merge(tmp_path / "eight", tmp_path / "whole")
    cut(four, tmp_path / "whole", tmp_path / "four")
    cut(four, source, tmp_path / "direct")
    through, direct = read_directory(tmp_path / "four"), read_directory(tmp_path / "direct")
    assert through == direct
    for rank in range(4, 8):
        (tmp_path / "eight" / f"tp{rank}_sharded_checkpoint.safetensors").unlink()
    with pytest.raises(ShardingError, match="tp4_sharded_checkpoint"):
        merge(tmp_path / "eight", tmp_path / "half")
    assert not (tmp_path / "half").exists() or not list((tmp_path / "half").iterdir())
    assert {problem.file for problem in check(tmp_path / "eight")} >= {
        f"tp{rank}_sharded_checkpoint.safetensors" for rank in range(4, 8)
    }


def test_case_77_only_canonical_names_come_back(tmp_path: Path) -> None:
    """A store with two names for one tensor could not be read back: the tied head is in the rank files, not in what is
    restored."""
    plan = twin_plan("31b", 4)
    values = twin_values(plan)
    cut(plan, write_twin(tmp_path / "in", values), tmp_path / "out")
    assert "lm_head.weight" in read_directory(tmp_path / "out")["tp0_sharded_checkpoint.safetensors"]
    merge(tmp_path / "out", tmp_path / "back")
    assert merged_tensors(read_directory(tmp_path / "back")) == as_stored(values, used(plan))

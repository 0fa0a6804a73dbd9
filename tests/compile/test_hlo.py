"""The HLO that ``export`` leaves beside each program. Needs torch_xla; skipped without it."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from gemma4cfg.compile.backend import Places
from gemma4cfg.compile.export_backend import HLO_FILE, ExportBackend
from gemma4cfg.compile.exporting import export_graph
from gemma4cfg.verify.subject import subject_of
from tests.verify.shortened import SHORT, short_config

pytestmark = pytest.mark.skipif(not importlib.util.find_spec("torch_xla"), reason="needs torch_xla")

CASES = [
    pytest.param(model, tp, recipe, id=f"{model}-tp{tp}-{recipe}")
    for model in SHORT
    for tp, recipe in ((1, "trace"), (2, "tp_alias"), (8, "model_builder"))
]


def collectives(hlo: str) -> tuple[dict[str, int], set[str]]:
    """How many instructions of each kind, and the groups that they go over."""
    kinds = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
    counts = {kind: len(re.findall(rf" {kind}\(", hlo)) for kind in kinds}
    return counts, set(re.findall(r"replica_groups=(\{\{.*?\}\})", hlo))


@pytest.mark.parametrize(("model", "tp", "recipe"), CASES)
def test_hlo_has_the_planned_collectives(model: str, tp: int, recipe: str, tmp_path: Path) -> None:
    choices = (f"tp={tp}", f"recipe={recipe}", "verify.steps=2", "target=inf2.24xlarge")
    plan = subject_of(short_config(model, *choices)).plan
    backend = ExportBackend()
    for unit in backend.units(plan):
        (graph,) = unit.graphs
        artifact = tmp_path / unit.name
        artifact.mkdir()
        backend.build(plan, unit, (export_graph(plan, graph),), Places(artifact, tmp_path / "workdir", None))
        counts, groups = collectives((artifact / HLO_FILE).read_text())
        planned = {"all-reduce": graph.collectives.all_reduce, "all-gather": graph.collectives.all_gather}
        assert counts == {**dict.fromkeys(counts, 0), **planned}
        assert groups == ({"{{" + ",".join(map(str, range(tp))) + "}}"} if tp > 1 else set())
    assert "torch_xla" in backend.versions()

"""The real, open NxD sources trace our modules to HLO. Needs NXD_SRC (a checkout) and NEURON_DOUBLE (stand-ins for the
closed packages), with torch_xla in this environment; skipped otherwise."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.verify.shortened import SHORT

ROOT = Path(__file__).parents[2]
SOURCE, DOUBLE = os.environ.get("NXD_SRC"), os.environ.get("NEURON_DOUBLE")

pytestmark = pytest.mark.skipif(
    not (SOURCE and DOUBLE and importlib.util.find_spec("torch_xla")),
    reason="needs NXD_SRC, NEURON_DOUBLE and torch_xla",
)


def worker(*overrides: str) -> dict[str, Any]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-m", "tests.compile.nxd_worker", str(SOURCE), str(DOUBLE), *overrides],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "PJRT_DEVICE": "CPU"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    result: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    return result


CASES = [
    pytest.param(model, tp, api, partition, id="-".join(filter(None, (model, f"tp{tp}", api, partition))))
    for model in SHORT
    for partition in (("experts", "intermediate") if model == "26b-a4b" else (None,))
    for tp in (2, 8)
    for api in ("v1", "v2")
]


@pytest.mark.parametrize(("model", "tp", "api", "partition"), CASES)
def test_hlo_is_what_the_plan_says(model: str, tp: int, api: str, partition: str | None) -> None:
    choice = [f"moe.partition={partition}"] if partition else []
    made = worker(f"model={model}", *SHORT[model], f"tp={tp}", "recipe=model_builder", f"recipe.api={api}", *choice)
    assert made["graphs"] == made["expected"]
    assert made["ranks_differ"] == []
    assert made["files"] == ["model_builder.pt"]


@pytest.mark.parametrize("api", ["v1", "v2"])
def test_a_rank_that_is_baked_in_shows(api: str) -> None:
    """Or the comparison of rank 0 with the last rank would show nothing."""
    made = worker("--bake", "model=12b", *SHORT["12b"], "tp=8", "recipe=model_builder", f"recipe.api={api}")
    assert {line.partition(":")[0] for line in made["ranks_differ"]} == {"prefill_12", "decode"}


@pytest.mark.parametrize("recipe", ["trace", "v1", "v2"])
@pytest.mark.parametrize("model", SHORT)
def test_programs_give_the_modules_tokens(model: str, recipe: str) -> None:
    """One rank is run for real: the SDK's HLO on XLA's CPU backend, loaded from disk with our rank files."""
    choice = ["recipe=trace"] if recipe == "trace" else ["recipe=model_builder", f"recipe.api={recipe}"]
    made = worker(f"model={model}", *SHORT[model], "tp=1", *choice)
    assert made["graphs"] == made["expected"]
    assert made["tokens"]["program"] == made["tokens"]["module"]

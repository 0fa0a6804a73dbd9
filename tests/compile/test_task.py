"""``task=compile`` where the SDK imports, which is the recording stand-in here: made, killed, continued, loaded again."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gemma4cfg.compile import choose
from gemma4cfg.config.compose import load_config
from gemma4cfg.config.schema import Config
from gemma4cfg.errors import ConfigError
from gemma4cfg.tasks import compile as task
from tests.compile.recipes import RECIPES, checkpoint_of, subject
from tests.compile.sdk_stand_in import Recorder

TRACES = ("torch_neuronx.trace", "neuronx_distributed.trace.parallel_model_trace", ".ModelBuilder.trace")
LOADS = ("torch.jit.load", "neuronx_distributed.NxDModel.load", "neuronx_distributed.trace.parallel_model_load")


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine has one, and outputs go below ``tmp_path``."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "neuron0").touch()
    monkeypatch.setattr(choose, "DEVICES", tmp_path / "dev")
    monkeypatch.chdir(tmp_path)


def config(recipe: str, checkpoints: dict[str, Path]) -> Config:
    tp = 1 if recipe.startswith("trace") else 2
    checkpoint = checkpoint_of(checkpoints, subject("12b", tp, recipe))
    small = ("shapes.kv_length=18", "shapes.prefill_buckets=[12]", "dtype=float32", "target=inf2.24xlarge")
    return load_config([f"checkpoint={checkpoint}", f"tp={tp}", "task=compile", *small, *RECIPES[recipe]])


def compiled(given: Config, directory: Path) -> dict[str, str]:
    """Unit to status."""
    directory.mkdir(exist_ok=True)
    task.run(given, directory, Console(quiet=True))
    report: dict[str, Any] = json.loads((directory / "compile.json").read_text())
    assert report["backend"] != "export"
    assert report["not_done"] == []
    return {unit["name"]: unit["status"] for unit in report["units"]}


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("recipe", ["trace", "tp_alias_device", "model_builder_v1", "model_builder_v2"])
def test_what_is_compiled_is_loaded_again(
    recipe: str, recorder: Recorder, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    given = config(recipe, checkpoints)
    first = compiled(given, tmp_path / "run")
    assert set(first.values()) == {"built"}
    apis = [api for api, _, _ in recorder.calls]
    saved = max(number for number, api in enumerate(apis) if api.endswith(("save", "_save")))
    assert [api for api in apis[saved:] if api in LOADS], "what was saved is what is loaded"
    assert [path.name for path in (tmp_path / "run").glob("compile.py")]

    recorder.calls.clear()
    assert compiled(given, tmp_path / "run") == dict.fromkeys(first, "reused")
    apis = [api for api, _, _ in recorder.calls]
    assert [api for api in apis if api in LOADS]
    assert not [api for api in apis if api.endswith(TRACES)]


@pytest.mark.usefixtures("device")
def test_a_kill_costs_the_graph_it_came_in(
    recorder: Recorder, checkpoints: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = config("trace", checkpoints)
    sdk: Any = importlib.import_module("torch_neuronx")
    trace = sdk.trace

    def reclaimed(*args: Any, **kwargs: Any) -> Any:
        if any(api == "torch_neuronx.trace" for api, _, _ in recorder.calls):
            raise KeyboardInterrupt
        return trace(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(sdk, "trace", reclaimed)
        with pytest.raises(KeyboardInterrupt):
            compiled(given, tmp_path / "run")
    assert compiled(given, tmp_path / "run") == {"prefill_12": "reused", "decode": "built"}


@pytest.mark.usefixtures("recorder")
def test_programs_that_carry_weights_need_them() -> None:
    plan = subject("12b", 2, "tp_alias_device").plan
    with pytest.raises(
        ConfigError, match="recipe=tp_alias compiles programs that carry the weights: add checkpoint=DIR"
    ):
        choose.backend_of(plan, "auto", None)
    assert choose.backend_of(plan, "export", None).name == "export"
    assert choose.backend_of(plan, "auto", "/models/x").name == "tp_alias"

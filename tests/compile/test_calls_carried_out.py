"""Every recipe's calls against a recording stand-in: what is called is what the plan says, argument by argument."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import sharding
from gemma4cfg.compile.carry_out import BESIDE, CarryOut
from gemma4cfg.plan.records import Plan
from gemma4cfg.runtime.graphs import RankModule
from gemma4cfg.verify.subject import Subject, subject_of
from tests.compile import sdk_stand_in
from tests.compile.recorded import Said, Seen
from tests.compile.sdk_stand_in import Recorder
from tests.verify.shortened import SHORT, short_config

RECIPES = {
    "trace": ("recipe=trace",),
    "trace_core_each": ("recipe=trace", "recipe.placement=core_each"),
    "tp_alias_device": ("recipe=tp_alias", "recipe.prefill=device"),
    "tp_alias_host": ("recipe=tp_alias", "recipe.prefill=host"),
    "model_builder_v1": ("recipe=model_builder", "recipe.api=v1"),
    "model_builder_v2": ("recipe=model_builder", "recipe.api=v2"),
}

CASES = [
    pytest.param(model, tp, recipe, id=f"{model}-tp{tp}-{recipe}")
    for model in SHORT
    for tp in (1, 2, 4, 8)
    for recipe in RECIPES
    if (tp == 1) == recipe.startswith("trace") or recipe.startswith("model_builder")
]


@functools.cache
def subject(model: str, tp: int, recipe: str) -> Subject:
    return subject_of(short_config(model, f"tp={tp}", "verify.steps=2", "target=inf2.24xlarge", *RECIPES[recipe]))


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of each twin that was asked for, by its architecture."""
    return {"": tmp_path_factory.mktemp("checkpoints")}


def checkpoint_of(found: dict[str, Path], one: Subject) -> Path:
    key = repr(one.twin)
    if key not in found:
        found[key] = one.weights(0, found[""] / str(len(found)))
    return found[key]


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """The stand-in under the SDK's names, and torch's and our own calls noted beside it."""
    made = Recorder()
    for name, module in sdk_stand_in.modules(made).items():
        monkeypatch.setitem(sys.modules, name, module)
    record_torch(made, monkeypatch)
    record_ours(made, monkeypatch)
    yield made


def record_torch(made: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    def save(m: Any, f: str) -> None:
        Path(f).write_text(sdk_stand_in.VERSION)
        made.saved[Path(f).name] = m
        made.note("torch.jit.save", {"m": m, "f": f}, None)

    def load(f: str) -> Any:
        assert Path(f).read_text() == sdk_stand_in.VERSION
        kept = made.saved[Path(f).name]
        loaded = sdk_stand_in.Program({f"states.{k}": v for k, v in enumerate(kept.states.values())}, kept.inline)
        loaded.nxd_model = sys.modules["neuronx_distributed.trace.spmd"].NxDModel()
        object.__setattr__(loaded.nxd_model, "held_by", loaded)
        return made.note("torch.jit.load", {"f": f}, loaded)

    def state_dict(self: RankModule, *args: Any, **kwargs: Any) -> Any:
        names = torch.nn.Module.state_dict(self, *args, **kwargs)
        return made.note("torch.nn.Module.state_dict", {"self": self}, names)

    monkeypatch.setattr(torch.jit, "save", save)
    monkeypatch.setattr(torch.jit, "load", load)
    monkeypatch.setattr(RankModule, "state_dict", state_dict, raising=False)


def record_ours(made: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    reshard = sharding.reshard

    def recorded(placements: Any, tp: int, source: str, destination: Any, dtype: str, **more: Any) -> Any:
        given = {"placements": placements, "tp": tp, "source": source, "destination": destination, "dtype": dtype}
        return made.note("sharding.reshard", {**given, **more}, reshard(**given, **more))

    monkeypatch.setattr(sharding, "reshard", recorded, raising=False)
    for name in ("Gemma4ForConditionalGeneration", "Gemma4UnifiedForConditionalGeneration"):
        api = f"transformers.{name}.from_pretrained"

        def from_pretrained(pretrained_model_name_or_path: str, dtype: str, api: str = api) -> Any:
            given = {"pretrained_model_name_or_path": pretrained_model_name_or_path, "dtype": dtype}
            return made.note(api, given, object())

        monkeypatch.setattr(getattr(transformers, name), "from_pretrained", from_pretrained)


def carried_out(plan: Plan, checkpoint: Path, work: Path) -> tuple[list[int], Path]:
    """The plan's calls that are made once, made; their indices, and the rank files' directory."""
    artifact, workdir, rank_files = work / "artifact", work / "work", work / "ranks"
    artifact.mkdir()
    once = [index for index, call in enumerate(plan.calls) if "per" not in call.args]
    CarryOut(plan, lambda path: artifact / path, workdir, rank_files, str(checkpoint)).run(once)
    return once, rank_files


@pytest.mark.parametrize(("model", "tp", "recipe"), CASES)
def test_what_is_called_is_what_the_plan_says(
    model: str, tp: int, recipe: str, recorder: Recorder, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    one = subject(model, tp, recipe)
    checkpoint = checkpoint_of(checkpoints, one)
    once, rank_files = carried_out(one.plan, checkpoint, tmp_path)
    numbers = {index: number for number, index in enumerate(once)}
    seen = Seen(recorder.calls, tmp_path / "artifact", tmp_path / "work")
    said = Said(one.plan, rank_files, checkpoint, numbers)
    assert [api for api, _, _ in recorder.calls] == [one.plan.calls[index].api for index in once]
    for (_, given, _), index in zip(recorder.calls, once, strict=True):
        call = one.plan.calls[index]
        expected = {
            name: said.plain(name, value) for name, value in call.args.items() if name not in BESIDE or name == "self"
        }
        assert seen.plain(given) == expected, f"call {index}, {call.api}"

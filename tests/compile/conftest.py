"""The recording stand-in in the SDK's place."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import sharding
from gemma4cfg.runtime.graphs import RankModule
from tests.compile import sdk_stand_in
from tests.compile.sdk_stand_in import Recorder


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of each twin that was asked for, by its architecture."""
    return {"": tmp_path_factory.mktemp("checkpoints")}


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

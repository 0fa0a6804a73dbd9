"""The recording stand-in in the SDK's place."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from types import ModuleType
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
    modules = sdk_stand_in.modules(made)
    monkeypatch.setattr(sys, "meta_path", [StandIn(modules), *sys.meta_path])
    record_torch(made, modules, monkeypatch)
    record_ours(made, monkeypatch)
    yield made
    for name in modules:
        sys.modules.pop(name, None)


class StandIn(MetaPathFinder, Loader):
    """Imports the stand-in's modules, when they are asked for and not before."""

    def __init__(self, modules: Mapping[str, ModuleType]) -> None:
        self._modules = modules

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        return spec_from_loader(name, self, is_package=True) if name in self._modules else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """It is made already."""


def record_torch(made: Recorder, modules: Mapping[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    def save(m: Any, f: str) -> None:
        Path(f).write_text(sdk_stand_in.VERSION)
        made.saved[Path(f).name] = m
        made.note("torch.jit.save", {"m": m, "f": f}, None)

    def load(f: str) -> Any:
        assert Path(f).read_text() == sdk_stand_in.VERSION
        if not sys.modules.keys() & {"torch_neuronx", "neuronx_distributed"}:
            raise RuntimeError("Unknown type name: importing the SDK registers the classes that the file names")
        kept = made.saved[Path(f).name]
        loaded = sdk_stand_in.Program({f"states.{k}": v for k, v in enumerate(kept.states.values())}, kept.inline)
        loaded.nxd_model = modules["neuronx_distributed.trace.spmd"].NxDModel()
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

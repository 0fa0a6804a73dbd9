"""What the SDK loses without a word is found by our own check, which says that the SDK would not say so."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from gemma4cfg.compile import values
from gemma4cfg.compile.backend import Places
from gemma4cfg.compile.modules import read_rank
from gemma4cfg.compile.sdk_backends import SdkBackend
from gemma4cfg.compile.state_check import SilentLossError, check_aliases, check_buffers
from gemma4cfg.errors import PlanError
from gemma4cfg.plan.records import Plan
from gemma4cfg.runtime.graphs import BufferGraphs, ParameterGraph
from gemma4cfg.runtime.kv import TensorState
from gemma4cfg.runtime.rankless import RankReadError
from gemma4cfg.verify.proof import rank_files
from gemma4cfg.verify.subject import subject_of
from sharding.collectives.alone import Alone
from tests.compile.recipes import RECIPES, checkpoint_of, subject
from tests.verify.shortened import short_config

UNSAID = "The SDK would say nothing"


@functools.cache
def plan_of(api: str) -> Plan:
    return subject_of(short_config("12b", "tp=1", "verify.steps=2", "recipe=model_builder", f"recipe.api={api}")).plan


# --- the second version's state: buffers, assigned anew ---


def as_they_are(module: BufferGraphs) -> None:
    """Nothing is changed."""


def parameter_as_state(module: BufferGraphs) -> None:
    value = module._buffers.pop("key_0")
    assert value is not None
    module.register_parameter("key_0", nn.Parameter(value, requires_grad=False))


def written_in_place(module: BufferGraphs) -> None:
    def write(slot: int, key: Tensor, value: Tensor) -> None:
        getattr(module, f"key_{slot}").copy_(key)
        getattr(module, f"value_{slot}").copy_(value)

    module._state.write = write  # type: ignore[method-assign]


def one_slot_unwritten(module: BufferGraphs) -> None:
    right = module._state.write
    module._state.write = lambda slot, key, value: None if slot == 3 else right(slot, key, value)  # type: ignore[method-assign]


def another_type(module: BufferGraphs) -> None:
    right = module._state.write
    module._state.write = lambda slot, key, value: right(slot, key.double(), value)  # type: ignore[method-assign]


def another_name(module: BufferGraphs) -> None:
    module._buffers["cache_0"] = module._buffers.pop("key_0")


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (as_they_are, None),
        (parameter_as_state, "state key_0 is a Parameter"),
        (written_in_place, "state key_0 is written in place"),
        (one_slot_unwritten, "state key_3 is not assigned anew"),
        (another_type, r"state key_0 changes from float32\[.*\] to float64\["),
        (another_name, "state key_0 is no buffer"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_buffers(edit: Any, why: str | None) -> None:
    plan = plan_of("v2")
    module = BufferGraphs(plan, Alone())
    edit(module)
    if why is None:
        check_buffers(module, plan.graphs)
        return
    with pytest.raises(SilentLossError, match=f"graph prefill_12: {why}.*{UNSAID}"):
        check_buffers(module, plan.graphs)


# --- the first version's state: Parameters, their new values returned ---


class Forgets(ParameterGraph):
    """Returns its output alone."""

    def forward(self, *inputs: Tensor) -> Any:
        return super().forward(*inputs)[:1]


class InPlace(ParameterGraph):
    """Writes its KV into the Parameters, and returns new ones too."""

    def forward(self, *inputs: Tensor) -> Any:
        returned = super().forward(*inputs)
        for state, new in zip(self.states, returned[1:], strict=True):
            state.copy_(new)
        return returned


class HandsBack(ParameterGraph):
    """Returns the Parameters themselves."""

    def forward(self, *inputs: Tensor) -> Any:
        return (super().forward(*inputs)[0], *TensorState(list(self.states)).outputs())


@pytest.mark.parametrize(
    ("kind", "change", "why"),
    [
        (ParameterGraph, {}, None),
        (ParameterGraph, {"key_0": 2, "value_0": 1}, "state key_0 is output 1, the alias map says 2"),
        (ParameterGraph, {"value_2": None}, "state value_2 is output 6, the alias map says None"),
        (Forgets, {}, "is not returned after the graph's outputs"),
        (InPlace, {}, "state key_0 is written in place"),
        (HandsBack, {}, "state key_0 is returned as it came in"),
    ],
    ids=["right", "swapped", "missing", "not_returned", "in_place", "handed_back"],
)
def test_aliases(kind: type[ParameterGraph], change: dict[str, int | None], why: str | None) -> None:
    plan = plan_of("v1")
    graph = plan.graphs[-1]
    aliases = {port.name: 1 + number for number, port in enumerate(graph.state)} | change
    given = {name: index for name, index in aliases.items() if index is not None}
    module = kind(plan, graph, Alone())
    if why is None:
        check_aliases(module, graph, given)
        return
    with pytest.raises(SilentLossError, match=f"graph decode: .*{why}.*{UNSAID}"):
        check_aliases(module, graph, given)


# --- where modules are made for the SDK ---


class AsksForItsRank(ParameterGraph):
    """Multiplies by its rank, as the SDK's parallel state has it."""

    def forward(self, *inputs: Tensor) -> Any:
        out, *state = super().forward(*inputs)
        return (out * group().rank(), *state)


class BuffersInPlace(BufferGraphs):
    """Writes its KV in place."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        written_in_place(self)


class BuffersAskForTheirRank(BufferGraphs):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.register_forward_hook(lambda _module, _given, out: out * group().rank())


def group() -> Any:
    from importlib import import_module

    return import_module("neuronx_distributed.parallel_layers.parallel_state").get_tensor_model_parallel_group()


@pytest.mark.usefixtures("recorder")
@pytest.mark.parametrize("fault", ["loses_state", "asks_for_its_rank"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_no_backend_lets_it_through(
    recipe: str, fault: str, checkpoints: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault == "asks_for_its_rank" and recipe.startswith("trace"):
        pytest.skip("one rank has no parallel state")
    one = subject("12b", 1 if recipe.startswith("trace") else 2, recipe)
    ranks = rank_files(one.plan, checkpoint_of(checkpoints, one), tmp_path)
    lost = fault == "loses_state"
    monkeypatch.setattr(values, "ParameterGraph", InPlace if lost else AsksForItsRank)
    monkeypatch.setattr(values, "BufferGraphs", BuffersInPlace if lost else BuffersAskForTheirRank)
    backend = SdkBackend(one.plan.recipe, None)
    unit = backend.units(one.plan)[0]
    (tmp_path / "artifact").mkdir()
    with pytest.raises(SilentLossError if lost else RankReadError, match=UNSAID if lost else "rank_tensors"):
        backend.build(one.plan, unit, (), Places(tmp_path / "artifact", tmp_path / "workdir", ranks))


# --- rank files ---


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tp0_sharded_checkpoint.safetensors"
    save_file({"model.a": torch.zeros(1), "model.b": torch.ones(1)}, path)
    assert read_rank(path, frozenset(("model.a", "model.b"))).keys() == load_file(path).keys()
    with pytest.raises(PlanError, match=r"model\.c is missing\. The SDK would not say so"):
        read_rank(path, frozenset(("model.a", "model.b", "model.c")))
    with pytest.raises(PlanError, match=r"model\.b has no place in the model"):
        read_rank(path, frozenset(("model.a",)))
    with pytest.raises(PlanError, match="no such rank file; task=shard writes it"):
        read_rank(tmp_path / "tp1_sharded_checkpoint.safetensors", frozenset())

"""The rank-local model: its names, what became a Parameter, its three ways of holding KV, and that it knows no rank."""

from __future__ import annotations

import copy
import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gemma4cfg import build_plan, load_config
from gemma4cfg.errors import PlanError
from gemma4cfg.plan.architecture import architecture_of
from gemma4cfg.plan.records import Plan
from gemma4cfg.runtime.graphs import BufferGraphs, ParameterGraph, PortGraph, RankModule
from gemma4cfg.runtime.host.tables import HostTables
from gemma4cfg.runtime.kv import empty
from gemma4cfg.runtime.local_model import computed_buffers, parameters_of
from gemma4cfg.runtime.rank_files import RANK_FILE, load_rank
from gemma4cfg.runtime.reference_model import cache_keyword
from gemma4cfg.verify.proof import rank_files
from gemma4cfg.verify.subject import Subject, subject_of
from sharding.collectives.alone import Alone
from tests.verify.shortened import SHORT, short_config


def made(model: str, *choices: str) -> Subject:
    return subject_of(short_config(model, *choices))


class Silent:
    """Collectives of a group whose other ranks say nothing: for looking at modules, not at numbers."""

    size = 8

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def all_gather(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        return torch.cat([tensor] * self.size, dim)


@pytest.mark.parametrize("model", SHORT)
def test_parameters_are_the_keys_of_a_rank_file(model: str) -> None:
    """At the model's real sizes: nothing is allocated."""
    plan = build_plan(load_config([f"model={model}", "tp=8", "offload=lean"]))
    module = BufferGraphs(plan, Silent())
    found = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
    expected = {name: tuple(parameter.shape) for name, parameter in parameters_of(plan).items()}
    assert found == expected
    assert all(parameter.is_meta for parameter in module.parameters())


@pytest.mark.parametrize("model", SHORT)
def test_what_a_checkpoint_holds_is_no_buffer(model: str) -> None:
    plan = build_plan(load_config([f"model={model}", "tp=8"]))
    module = RankModule(plan, Silent())
    frequencies = {f"rotary_emb.{layer.type}_{kind}inv_freq" for layer in plan.layers for kind in ("", "original_")}
    assert set(computed_buffers(module.model)) == frequencies


@pytest.mark.parametrize("implementation", ("eager", "sdpa"))
def test_attention_is_computed_as_planned(implementation: str) -> None:
    plan = build_plan(load_config(["model=e2b", "tp=2", f"attention.implementation={implementation}"]))
    module: Any = RankModule(plan, Silent()).model
    assert module.config._attn_implementation == implementation


def test_the_cache_goes_by_the_name_that_this_release_reads() -> None:
    """Given the other name, 5.13 swallows it and keeps no K/V."""
    module: Any = RankModule(build_plan(load_config(["model=e2b"])), Alone())
    keyword = cache_keyword(module.model)
    layer = module.model.layers[0].self_attn
    assert keyword in inspect.signature(module.model.forward).parameters
    assert keyword in inspect.signature(layer.forward).parameters


@pytest.mark.parametrize("model", SHORT)
@pytest.mark.parametrize("tp", (1, 8))
def test_architecture_comes_back_from_a_plan(model: str, tp: int) -> None:
    config = load_config([f"model={model}", f"tp={tp}", "shapes=kv256", *(SHORT[model] if tp == 1 else ())])
    found = architecture_of(build_plan(config))
    assert replace(found, max_positions=config.model.max_positions) == config.model


@pytest.fixture(scope="module", params=("e2b", "26b-a4b", "12b"))
def ready(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Path]:
    """A twin at tp 1 with its rank file."""
    subject = made(request.param, "shapes.kv_layout=ring", "verify.steps=8")
    work = tmp_path_factory.mktemp("ready")
    return subject.plan, rank_files(subject.plan, subject.weights(0, work), work)


def calls(plan: Plan, directory: Path) -> list[tuple[str, dict[str, torch.Tensor]]]:
    """A prompt in two chunks for some streams, then three tokens."""
    tables, batch = HostTables.open(plan, directory), plan.shapes.batch
    made: list[tuple[str, dict[str, torch.Tensor]]] = []
    held = torch.zeros(batch, dtype=torch.int32)
    draw = torch.Generator().manual_seed(0)
    for name, rows in (("prefill_12", 12), ("prefill_12", 12), ("decode", 1), ("decode", 1), ("decode", 1)):
        valid = torch.full((batch,), 1, dtype=torch.int32) if rows == 1 else torch.arange(batch, dtype=torch.int32) % 12
        ids = torch.randint(0, 100, (batch, rows), generator=draw)
        positions = held[:, None] + torch.arange(rows, dtype=torch.int32)
        made.append((name, {**tables.inputs(ids), "position_ids": positions, "valid_length": valid}))
        held = held + valid
    return made


@torch.inference_mode()
def test_three_ways_to_hold_kv_give_the_same_bits(ready: tuple[Plan, Path]) -> None:
    plan, directory = ready
    path = directory / RANK_FILE.format(rank=0)
    buffers = BufferGraphs(plan, Alone())
    load_rank(buffers, path)
    graphs = {graph.name: graph for graph in plan.graphs}
    state = [empty(port) for port in plan.graphs[0].state]
    ported, parametrised = {}, {}
    for name, graph in graphs.items():
        ported[name] = PortGraph(plan, graph, Alone())
        load_rank(ported[name], path)
        parametrised[name] = ParameterGraph(plan, graph, Alone())
        load_rank(parametrised[name], path, tuple(f"states.{n}" for n in range(len(state))))
    held = [tensor.clone() for tensor in state]
    for name, inputs in calls(plan, directory):
        one = buffers(**inputs)
        two, *state = ported[name](*inputs.values(), *state)
        for number, tensor in enumerate(held):
            parametrised[name].states[number].data = tensor
        three, *held = parametrised[name](*inputs.values())
        assert torch.equal(one, two)
        assert torch.equal(one, three)
        for port, value, other in zip(graphs[name].state, state, held, strict=True):
            assert torch.equal(getattr(buffers, port.name), value)
            assert torch.equal(value, other)
    assert any(bool(value.any()) for value in state)


def test_a_call_leaves_its_inputs_and_old_state_alone(ready: tuple[Plan, Path]) -> None:
    plan, directory = ready
    module = PortGraph(plan, plan.graphs[0], Alone())
    load_rank(module, directory / RANK_FILE.format(rank=0))
    _, inputs = calls(plan, directory)[0]
    state = [empty(port) for port in plan.graphs[0].state]
    before = copy.deepcopy((list(inputs.values()), state))
    with torch.inference_mode():
        module(*inputs.values(), *state)
    for one, other in zip((*before[0], *before[1]), (*inputs.values(), *state), strict=True):
        assert torch.equal(one, other)


def test_the_module_of_another_rank_differs_in_weights_alone() -> None:
    plan = made("26b-a4b", "tp=8", "moe.partition=experts").plan

    def plain(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.dtype, tuple(value.shape), value.is_meta
        return value if isinstance(value, (int, float, str, bool, tuple, type(None))) else type(value).__name__

    def described(module: torch.nn.Module) -> list[tuple[str, str, Any]]:
        return [
            (name, key, plain(value))
            for name, child in module.named_modules()
            for key, value in {**vars(child), **child._parameters, **child._buffers}.items()
        ]

    assert described(RankModule(plan, Silent())) == described(RankModule(plan, Silent()))
    assert not hasattr(Silent, "rank")


@pytest.mark.parametrize(
    ("change", "message"),
    (
        ("drop", "model.norm.weight is missing"),
        ("add", "model.layers.0.other has no place in the model"),
        ("reshape", r"model.norm.weight is float32 \[1\], not float32 \[32\]"),
        ("retype", r"model.norm.weight is bfloat16 \[32\], not float32 \[32\]"),
    ),
)
def test_a_file_that_is_not_of_the_plan_is_refused(
    ready: tuple[Plan, Path], tmp_path: Path, change: str, message: str
) -> None:
    from safetensors.torch import load_file, save_file

    plan, directory = ready
    tensors = load_file(directory / RANK_FILE.format(rank=0))
    norm = tensors["model.norm.weight"]
    if change == "drop":
        del tensors["model.norm.weight"]
    elif change == "add":
        tensors["model.layers.0.other"] = torch.ones(1)
    elif change == "reshape":
        tensors["model.norm.weight"] = torch.ones(1)
    else:
        tensors["model.norm.weight"] = norm.bfloat16()
    save_file(tensors, tmp_path / "rank.safetensors")
    with pytest.raises(PlanError, match=message):
        load_rank(BufferGraphs(plan, Alone()), tmp_path / "rank.safetensors")

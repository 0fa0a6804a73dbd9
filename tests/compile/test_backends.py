"""The contract of a backend, which each of them has to pass; the SDK's against the recording stand-in."""

from __future__ import annotations

import functools
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from gemma4cfg.compile.backend import Backend, Places
from gemma4cfg.compile.export_backend import ExportBackend
from gemma4cfg.compile.exporting import export_graph
from gemma4cfg.compile.sdk_backends import SdkBackend, weights_in
from gemma4cfg.compile.sdk_runner import states_of
from gemma4cfg.errors import PlanError
from gemma4cfg.plan.records import Plan
from gemma4cfg.runtime.host.session import Runner
from gemma4cfg.runtime.kv import example_inputs
from gemma4cfg.runtime.programs import Exported
from gemma4cfg.verify.proof import rank_files
from gemma4cfg.verify.subject import Subject
from tests.compile.recipes import checkpoint_of, subject
from tests.compile.sdk_stand_in import Recorder

NAMES = {
    "export": (1, "trace"),
    "trace": (1, "trace"),
    "tp_alias": (2, "tp_alias_device"),
    "model_builder_v1": (2, "model_builder_v1"),
    "model_builder_v2": (2, "model_builder_v2"),
}
"""Backend to TP degree and recipe of the plan that it is given."""


def backend_and_subject(name: str) -> tuple[Backend, Subject]:
    one = subject("12b", *NAMES[name])
    return (ExportBackend() if name == "export" else SdkBackend(one.plan.recipe, None)), one


@functools.cache
def exported(recipe: str, tp: int) -> dict[str, Exported]:
    plan = subject("12b", tp, recipe).plan
    return {graph.name: export_graph(plan, graph) for graph in plan.graphs}


def tree(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


def build_all(backend: Backend, plan: Plan, work: Path, ranks: Path, recipe: str) -> dict[str, Path]:
    made = {}
    for unit in backend.units(plan):
        artifact = work / unit.name
        artifact.mkdir(parents=True)
        given = tuple(exported(recipe, plan.tp)[graph.name] for graph in unit.graphs) if recipe == "trace" else ()
        backend.build(plan, unit, given, Places(artifact, work / "workdir", ranks))
        made[unit.name] = artifact
    return made


@pytest.mark.parametrize("name", NAMES)
def test_contract(
    name: str,
    recorder: Recorder,
    checkpoints: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend, one = backend_and_subject(name)
    plan, recipe = one.plan, NAMES[name][1]
    ranks = rank_files(plan, checkpoint_of(checkpoints, one), tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)

    units = backend.units(plan)
    assert [graph.name for unit in units for graph in unit.graphs] == [graph.name for graph in plan.graphs]
    first = build_all(backend, plan, tmp_path / "first", ranks, recipe)
    second = build_all(backend, plan, tmp_path / "second", ranks, recipe)
    for unit in units:
        assert tree(first[unit.name]), "everything that load needs is there"
        assert tree(first[unit.name]) == tree(second[unit.name]), "building knows nothing of an earlier time"
        given = backend.flags(plan, unit)
        assert not given if name == "export" else given.keys() == {graph.name for graph in unit.graphs}
        assert all(flag.startswith("-") for flags in given.values() for flag in flags)
    assert not tree(elsewhere), "nothing is written elsewhere"
    assert all(backend.versions().values())

    recorder.calls.clear()
    for module in [one for one in sys.modules if one.startswith(("torch_neuronx", "neuronx_distributed"))]:
        del sys.modules[module]  # as in a process that never compiled anything
    assert hasattr(backend.load(plan, first, ranks), "run")
    apis = [api for api, _, _ in recorder.calls]
    assert not [api for api in apis if api.endswith((".trace", ".compile", ".save", "_trace", "_save"))], (
        "it only loads"
    )


@pytest.mark.parametrize("name", ["trace", "tp_alias"])
def test_decode_is_handed_the_kv_of_prefill(
    name: str, recorder: Recorder, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    """On every rank, of each stream when decode goes on with it, and not again."""
    backend, one = backend_and_subject(name)
    plan = one.plan
    ranks = rank_files(plan, checkpoint_of(checkpoints, one), tmp_path)
    runner = backend.load(plan, build_all(backend, plan, tmp_path / "programs", ranks, NAMES[name][1]), ranks)
    prefill, decode = (result for api, _, result in recorder.calls if api.endswith(("jit.load", "model_load")))
    for rank in range(plan.tp):
        for slot, tensor in enumerate(states_of(prefill, rank)):
            tensor.copy_(100 * rank + slot + 1 + torch.arange(plan.shapes.batch)[:, None, None, None] / 10)

    run(runner, plan, plan.graphs[0].name, {0: (0, 5), 1: (0, 5)})
    for goes_on in (0, 1):
        run(runner, plan, "decode", {goes_on: (5, 1)})
        for rank in range(plan.tp):
            for old, new in zip(states_of(prefill, rank), states_of(decode, rank), strict=True):
                assert torch.equal(new[: goes_on + 1], old[: goes_on + 1])
                assert not new[goes_on + 1 :].any()
    for tensor in states_of(prefill, plan.tp - 1):
        tensor.zero_()
    run(runner, plan, "decode", {0: (6, 1)})
    assert all(tensor[:2].all() for tensor in states_of(decode, plan.tp - 1)), "decode's own KV is newer"


def run(runner: Runner, plan: Plan, graph: str, streams: dict[int, tuple[int, int]]) -> None:
    """``streams``: what each holds already, and how many rows it takes."""
    inputs = example_inputs(next(one for one in plan.graphs if one.name == graph))
    for stream, (held, rows) in streams.items():
        inputs["position_ids"][stream] += held
        inputs["valid_length"][stream] = rows
    runner.run(graph, inputs)


@pytest.mark.usefixtures("recorder")
@pytest.mark.parametrize("name", [name for name in NAMES if name != "tp_alias"])
def test_a_foreign_rank_file_is_refused(
    name: str,
    checkpoints: dict[str, Path],
    tmp_path: Path,
) -> None:
    backend, one = backend_and_subject(name)
    ranks = rank_files(one.plan, checkpoint_of(checkpoints, one), tmp_path)
    made = build_all(backend, one.plan, tmp_path / "first", ranks, NAMES[name][1])
    file = ranks / "tp0_sharded_checkpoint.safetensors"
    held = load_file(file)
    dropped = next(key for key in sorted(held) if key.endswith("layer_scalar"))
    held.pop(dropped)
    save_file(held, file)
    with pytest.raises(PlanError, match=f"{dropped} is missing"):
        backend.load(one.plan, made, ranks)


@pytest.mark.parametrize(
    ("name", "inline", "carries"), [("trace", False, False), ("trace", True, True), ("tp_alias", False, True)]
)
def test_which_programs_carry_weights(name: str, inline: bool, carries: bool) -> None:
    """Another checkpoint is another artifact only where the weights are in it."""
    backend, one = backend_and_subject(name)
    calls = tuple(
        replace(call, args={**call.args, "inline_weights_to_neff": inline})
        if "inline_weights_to_neff" in call.args
        else call
        for call in one.plan.calls
    )
    plan = replace(one.plan, calls=calls)
    assert [weights_in(plan, unit) for unit in backend.units(plan)] == [carries] * 2

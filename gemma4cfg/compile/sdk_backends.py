"""The SDK's APIs: each backend says which of the plan's calls make a unit and which load it; ``CarryOut`` makes them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gemma4cfg.compile.backend import Places, Unit
from gemma4cfg.compile.carry_out import CarryOut, imported
from gemma4cfg.compile.sdk_environment import prepare
from gemma4cfg.compile.versions import versions_of
from gemma4cfg.plan.records import Graph, Plan

if TYPE_CHECKING:
    from gemma4cfg.runtime.host.session import Runner
    from gemma4cfg.runtime.programs import Exported

_SAVES = {
    "torch.jit.save": "f",
    "neuronx_distributed.NxDModel.save": "path_to_save",
    "neuronx_distributed.trace.parallel_model_save": "save_dir",
}
"""Calls that end a unit, and the argument that says where it is saved."""

_REGISTERS = {"trace": "torch_neuronx", "tp_alias": "neuronx_distributed", "model_builder": "neuronx_distributed"}
"""What has to be imported before a saved program is read: it registers the classes that the file names."""

PACKAGES = ("torch", "transformers", "torch-neuronx", "neuronx-cc", "libneuronxla", "neuronx-distributed")


class SdkBackend:
    """See ``Backend``: one recipe's API. A device is needed for ``load`` alone."""

    def __init__(self, name: str, checkpoint: str | None) -> None:
        self.name, self._checkpoint = name, checkpoint

    def versions(self) -> Mapping[str, str]:
        return versions_of(PACKAGES)

    def units(self, plan: Plan) -> tuple[Unit, ...]:
        """A unit ends with the call that saves it; graphs of one builder are one."""
        units: list[Unit] = []
        begun: list[int] = []
        for index in _once(plan):
            begun.append(index)
            if plan.calls[index].api in _SAVES:
                units.append(Unit(_graphs(plan, begun), tuple(begun)))
                begun = []
        return tuple(units)

    def flags(self, plan: Plan, unit: Unit) -> Mapping[str, tuple[str, ...]]:
        """As the calls hand them over."""
        given: dict[str, tuple[str, ...]] = {}
        for index in unit.build:
            args = plan.calls[index].args
            flags = args.get("compiler_args")
            if isinstance(flags, Mapping):
                given |= {name: tuple(words.split()) for name, words in flags.items()}
            elif flags is not None:
                words = tuple(flags.split()) if isinstance(flags, str) else tuple(flags)
                given[args.get("key", unit.name)] = words
        return given

    def build(self, plan: Plan, unit: Unit, exported: tuple[Exported, ...], places: Places) -> None:  # noqa: ARG002
        prepare()
        shutil.rmtree(places.workdir, ignore_errors=True)
        places.workdir.mkdir(parents=True)
        carry = CarryOut(plan, lambda path: places.artifact / path, places.workdir, places.rank_files, self._checkpoint)
        carry.run(unit.build)

    def load(self, plan: Plan, artifacts: Mapping[str, Path], rank_files: Path) -> Runner:
        from gemma4cfg.compile.sdk_runner import runner_of

        prepare()
        imported(_REGISTERS[plan.recipe])
        units = self.units(plan)
        places = {_saved_as(plan, unit): artifacts[unit.name] for unit in units}
        carry = CarryOut(plan, lambda path: places[path] / path, Path(), rank_files, self._checkpoint)
        built = {index for unit in units for index in unit.build}
        loads = [index for index in _once(plan) if index not in built]
        carry.run(loads)
        return runner_of(plan, carry)


def weights_in(plan: Plan, unit: Unit) -> bool:
    """Whether the unit's program carries the weights: then another checkpoint is another artifact."""
    for index in unit.build:
        args = plan.calls[index].args
        if args.get("inline_weights_to_neff") or "weights" in str(args.get("func", "")):
            return True
    return False


def _once(plan: Plan) -> tuple[int, ...]:
    """Calls that are made once, not for every prompt; rank files are there before any of them."""
    return tuple(
        index for index, call in enumerate(plan.calls) if "per" not in call.args and call.api != "sharding.reshard"
    )


def _graphs(plan: Plan, calls: Sequence[int]) -> tuple[Graph, ...]:
    text = " ".join(str(dict(plan.calls[index].args)) for index in calls)
    return tuple(graph for graph in plan.graphs if f"'graphs/{graph.name}/inputs'" in text)


def _saved_as(plan: Plan, unit: Unit) -> str:
    last = plan.calls[unit.build[-1]]
    path: str = last.args[_SAVES[last.api]]
    return path

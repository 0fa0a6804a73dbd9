"""The plan's calls, carried out: each one imported by its name and given what its arguments say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gemma4cfg.compile import values
from gemma4cfg.compile.modules import state_names
from gemma4cfg.plan.records import Call, Plan

BESIDE = ("self", "within", "per")
"""Keys of a call that are no arguments of its API."""

_SAVED = frozenset({"f", "path_to_save", "path_to_model", "save_dir", "model_dir"})
"""Arguments that are paths of programs, below the artifact's directory."""

Handler = Callable[["CarryOut", Call], Any]


class CarryOut:
    """Carries out calls of one plan in their order; what each returned is kept, for later ones refer to it.

    ``saved`` gives the directory of a saved program by the path that the plan has for it. Context managers are open around
    the calls that are ``within`` them, and closed before the first that is not. Raises what the APIs raise, PlanError for
    rank files that are not the plan's, SilentLossError for what the SDK would lose without a word.
    """

    def __init__(
        self,
        plan: Plan,
        saved: Callable[[str], Path],
        workdir: Path,
        rank_files: Path | None,
        checkpoint: str | None,
    ) -> None:
        self.plan, self.rank_files = plan, rank_files
        self._saved, self._workdir, self._checkpoint = saved, workdir, checkpoint
        self._plain = plan.to_json()
        self._results: dict[int, Any] = {}
        self._open: list[tuple[int, ExitStack]] = []

    def run(self, indices: Iterable[int]) -> Any:
        """The calls of these indices; returns what the last one returned. A call made earlier is not made again."""
        result = None
        try:
            for index in indices:
                if index not in self._results:
                    self._results[index] = self._call(self.plan.calls[index])
                result = self._results[index]
        finally:
            self._close(0)
        return result

    def result(self, index: int) -> Any:
        """What the call returned. A context manager or builder that was not wanted yet is made now."""
        if index not in self._results:
            self._results[index] = self._call(self.plan.calls[index])
        return self._results[index]

    def resolve(self, value: Any) -> Any:
        """An argument's value. See ``planner.calls`` for how they are spelled."""
        if isinstance(value, list):
            return [self.resolve(item) for item in value]
        if not isinstance(value, Mapping):
            return value
        if "module" in value:
            return values.make_module(self.plan, value)
        if "rank_files" in value:
            found = values.read_ranks(value, self.rank_files, self._names(value))
            return found[0] if self.plan.tp == 1 and self.plan.recipe == "trace" else found
        if "tensor" in value:
            return torch.tensor(value["tensor"], dtype=getattr(torch, value["dtype"]))
        if "ref" in value:
            return self._referred(value)
        return {key: self.resolve(item) for key, item in value.items()}

    def _referred(self, value: Mapping[str, Any]) -> Any:
        head, *rest = value["ref"].split("/")
        if head == "calls":
            result = self.result(int(rest[0]))
            for name in filter(None, value.get("attribute", "").split(".")):
                result = getattr(result, name)
            return result
        if head == "graphs":
            return values.port_tensors(self.plan, value["ref"])
        if value["ref"] == "provenance/checkpoint":
            return self._checkpoint
        found: Any = self._plain
        for part in (head, *rest):
            found = found[part]
        return found

    def _names(self, value: Mapping[str, Any]) -> frozenset[str]:
        """What the rank files must hold: the names that an earlier call found, or the plan's."""
        if "names" not in value:
            return values.weight_names(self.plan)
        module = self.result(int(value["names"]["ref"].split("/")[1]))
        return frozenset(module)

    def _call(self, call: Call) -> Any:
        self._enter(call)
        handler = _HANDLERS.get(call.api)
        return handler(self, call) if handler else self.plainly(call)

    def plainly(self, call: Call, **instead: Any) -> Any:
        """The API called with its resolved arguments, some of them given by ``instead``."""
        given = {
            name: self._argument(name, value)
            for name, value in call.args.items()
            if name not in BESIDE and name not in instead
        }
        arguments = {name: (instead | given)[name] for name in call.args if name not in BESIDE}
        if "self" in call.args:
            owner = self.resolve(call.args["self"])
            return getattr(owner, call.api.rpartition(".")[2])(**arguments)
        return imported(call.api)(**arguments)

    def _argument(self, name: str, value: Any) -> Any:
        if name in _SAVED:
            return str(self._saved(value))
        if name == "compiler_workdir":
            return str(self._workdir / value)
        resolved = self.resolve(value)
        if name == "example_inputs":
            if isinstance(value, list):
                return [tuple(each.values()) for each in resolved]
            return tuple(resolved.values())
        return resolved

    def _enter(self, call: Call) -> None:
        """Have exactly the context managers open that the call is within, outermost first."""
        wanted: list[int] = []
        within = call.args.get("within")
        while within is not None:
            index = int(within["ref"].split("/")[1])
            wanted.insert(0, index)
            within = self.plan.calls[index].args.get("within")
        kept = 0
        while kept < min(len(wanted), len(self._open)) and self._open[kept][0] == wanted[kept]:
            kept += 1
        self._close(kept)
        for index in wanted[kept:]:
            stack = ExitStack()
            manager: AbstractContextManager[Any] = self.result(index)
            stack.enter_context(manager)
            self._open.append((index, stack))

    def _close(self, keep: int) -> None:
        while len(self._open) > keep:
            self._open.pop()[1].close()


def imported(path: str) -> Any:
    """The package or object of an import path; the SDK comes into the process here and nowhere else."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = import_module(".".join(parts[:length]))
        except ModuleNotFoundError as error:
            if error.name and ".".join(parts[:length]).startswith(error.name):
                continue
            raise
        for name in parts[length:]:
            found = getattr(found, name)
        return found
    raise ModuleNotFoundError(f"No module named {parts[0]!r}", name=parts[0])


def _trace(carry: CarryOut, call: Call) -> Any:
    aliases = call.args["input_output_aliases"]
    values.check_module(carry.plan, call.args["func"], aliases)
    module = carry.resolve(call.args["func"])
    return carry.plainly(call, func=module, input_output_aliases=values.aliases_of(module, aliases))


def _parallel_model_trace(carry: CarryOut, call: Call) -> Any:
    spelled, aliases = call.args["func"]["returns"]
    values.check_module(carry.plan, spelled, aliases)
    function = values.RankFunction(carry.plan, spelled, aliases, carry.rank_files)
    return carry.plainly(call, func=function)


def _builder(carry: CarryOut, call: Call) -> Any:
    values.check_module(carry.plan, call.args["model"], None)
    return carry.plainly(call)


def _instance(carry: CarryOut, call: Call) -> Any:
    spelled, aliases = call.args["module_cls"], call.args["input_output_aliases"]
    values.check_module(carry.plan, spelled, aliases)
    return instance_of(carry.plan, spelled, aliases)


def instance_of(plan: Plan, spelled: Mapping[str, Any], aliases: Mapping[str, int]) -> Any:
    """A ``BaseModelInstance`` that builds the module where it is asked to, inside the builder's parallel state, and names its
    Parameters as they are then."""
    base = imported("neuronx_distributed.trace.model_builder.BaseModelInstance")

    class RankInstance(base):  # type: ignore[misc,valid-type]
        def load_module(self) -> None:
            self.module = self.module_cls()

        def get(self, bucket_rank: int | None, **kwargs: Any) -> Any:  # noqa: ARG002
            self.input_output_aliases = [values.aliases_of(self.module, aliases)]
            return self.module, self.input_output_aliases[0]

    return RankInstance(module_cls=lambda: values.make_module(plan, spelled), input_output_aliases=aliases)


def _on_device(carry: CarryOut, call: Call) -> Any:
    return carry.plainly(call, device=torch.device(call.args["device"]))


def _names_of(carry: CarryOut, call: Call) -> tuple[str, ...]:
    return weight_names_of(carry.plan, carry.resolve(call.args["self"]))


def weight_names_of(plan: Plan, module: nn.Module) -> tuple[str, ...]:
    """The names of a module's weights: of all that it holds, less its KV."""
    ports = {port.name for graph in plan.graphs for port in graph.state}
    state = {*state_names(module), *ports}
    return tuple(name for name in module.state_dict() if name not in state)


def _reshard(carry: CarryOut, call: Call) -> Any:
    if carry.rank_files is None:
        return None
    return carry.plainly(call, destination=carry.rank_files)


def _forward(carry: CarryOut, call: Call) -> Any:
    tensors = carry.resolve(call.args["tensors"])
    return carry.resolve(call.args["self"])(*tensors.values())


_HANDLERS: dict[str, Handler] = {
    "torch_neuronx.trace": _trace,
    "neuronx_distributed.trace.parallel_model_trace": _parallel_model_trace,
    "neuronx_distributed.ModelBuilder": _builder,
    "neuronx_distributed.trace.model_builder.BaseModelInstance": _instance,
    "neuronx_distributed.utils.model_utils.init_on_device": _on_device,
    "torch.nn.Module.state_dict": _names_of,
    "sharding.reshard": _reshard,
    "neuronx_distributed.trace.trace.TensorParallelNeuronModel.forward": _forward,
}

"""What was recorded and what a plan says, in one form that can be compared; neither side goes through the package."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from gemma4cfg.plan.records import Graph, Plan
from gemma4cfg.runtime.graphs import BufferGraphs, ParameterGraph

Recorded = list[tuple[str, dict[str, Any], Any]]


class Seen:
    """Recorded objects: tensors as type and shape, modules by what they hold, results of earlier calls by number."""

    def __init__(self, calls: Recorded, artifact: Path, workdir: Path) -> None:
        self._results = {
            id(result): number for number, (_, _, result) in reversed(list(enumerate(calls))) if result is not None
        }
        self._roots = (artifact, workdir)

    def plain(self, value: Any) -> Any:
        if isinstance(value, torch.device):
            return value.type
        if id(value) in self._results and not isinstance(value, (str, int, bool)):
            return {"call": self._results[id(value)]}
        if owner := getattr(value, "held_by", None):
            return {**self.plain(owner), "attribute": "nxd_model"}
        if isinstance(value, Tensor):
            return tensor_form(value)
        if isinstance(value, nn.Module):
            return module_form(value)
        if isinstance(value, Path):
            return self._path(str(value))
        if isinstance(value, str):
            return self._path(value)
        if isinstance(value, Mapping):
            if value and all(isinstance(key, nn.Parameter) for key in value):
                return {"aliases": list(value.values())}
            if "input_output_aliases" in value:
                value = {**value, "input_output_aliases": {"aliases": self._alias_outputs(value)}}
            if value and all(isinstance(item, Tensor) for item in value.values()) and "position_ids" not in value:
                return {key: tensor_digest(item) for key, item in sorted(value.items())}
            return {key: self.plain(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.plain(item) for item in value]
        if callable(value):
            return self.plain(value())
        return value

    @staticmethod
    def _alias_outputs(value: Mapping[str, Any]) -> list[int]:
        return list(value["input_output_aliases"].values())

    def _path(self, text: str) -> str:
        for root in self._roots:
            if text.startswith(f"{root}/"):
                return str(Path(text).relative_to(root))
        return text


class Said:
    """A plan's arguments in the same form."""

    def __init__(self, plan: Plan, rank_files: Path, checkpoint: Path, numbers: Mapping[int, int]) -> None:
        """``numbers``: a call's index in the plan to its number among those recorded."""
        self._plan, self._plain = plan, json.loads(json.dumps(plan.to_json()))
        self._rank_files, self._checkpoint, self._numbers = rank_files, checkpoint, numbers

    def plain(self, name: str, value: Any) -> Any:
        if name in ("input_output_aliases",):
            return {"aliases": list(value.values())}
        if isinstance(value, list):
            return [self.plain("", item) for item in value]
        if not isinstance(value, Mapping):
            return value
        if "returns" in value:
            module, aliases = value["returns"]
            weights = [weights_form(self._rank_files / file) for file in module["weights"]["rank_files"]]
            return [[{**self._module(module), "weights": one}, {"aliases": list(aliases.values())}] for one in weights]
        if "module" in value:
            return self._module(value)
        if "rank_files" in value:
            found = [weights_form(self._rank_files / file) for file in value["rank_files"]]
            return found[0] if self._plan.recipe == "trace" else found
        if "tensor" in value:
            return {"tensor": value["dtype"], "shape": [len(value["tensor"])], "sum": sum(value["tensor"])}
        if "ref" in value:
            return self._ref(name, value)
        return {key: self.plain(key, item) for key, item in value.items()}

    def _ref(self, name: str, value: Mapping[str, Any]) -> Any:
        head, *rest = value["ref"].split("/")
        if head == "calls":
            attribute = {"attribute": value["attribute"]} if "attribute" in value else {}
            return {"call": self._numbers[int(rest[0])], **attribute}
        if head == "graphs":
            ports = getattr(self._graph(rest[0]), rest[1])
            tensors = {port.name: {"tensor": port.dtype, "shape": list(port.shape), "sum": 0} for port in ports}
            return tensors if name == "kwargs" else list(tensors.values())
        if value["ref"] == "provenance/checkpoint":
            return str(self._checkpoint)
        if name == "destination":
            return str(self._rank_files)
        found = self._plain
        for part in (head, *rest):
            found = found[part]
        return found

    def _module(self, value: Mapping[str, Any]) -> dict[str, Any]:
        if value["state"] == "buffer":
            graphs = [self._graph(each["ref"].split("/")[1]) for each in value["graphs"]]
            assert {graph.state for graph in graphs} == {graphs[0].state}
            return {"state": "buffer", "inputs": None, "kv": state_form(graphs[0])}
        graph = self._graph(value["graph"]["ref"].split("/")[1])
        return {"state": "parameter", "inputs": [port.name for port in graph.inputs], "kv": state_form(graph)}

    def _graph(self, name: str) -> Graph:
        return next(graph for graph in self._plan.graphs if graph.name == name)


def tensor_form(value: Tensor) -> dict[str, Any]:
    found = {"tensor": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
    return {**found, "sum": 0 if value.is_floating_point() and not value.any() else int(value.double().sum())}


def state_form(graph: Graph) -> list[Any]:
    return [[port.dtype, list(port.shape)] for port in graph.state]


def module_form(module: nn.Module) -> dict[str, Any]:
    if isinstance(module, BufferGraphs):
        kv = [one for name, one in module.named_buffers() if name.startswith(("key_", "value_"))]
        return {
            "state": "buffer",
            "inputs": None,
            "kv": [[str(one.dtype).removeprefix("torch."), list(one.shape)] for one in kv],
        }
    assert isinstance(module, ParameterGraph)
    kv = list(module.states)
    form: dict[str, Any] = {
        "state": "parameter",
        "inputs": list(module._names),
        "kv": [[str(one.dtype).removeprefix("torch."), list(one.shape)] for one in kv],
    }
    weights = {name: one for name, one in module.named_parameters() if not name.startswith("states.")}
    if any(not one.is_meta and one.any() for one in weights.values()):
        form["weights"] = {name: tensor_digest(one) for name, one in sorted(weights.items())}
    return form


def weights_form(path: Path) -> dict[str, Any]:
    with safe_open(str(path), framework="pt") as file:
        return {name: tensor_digest(file.get_tensor(name)) for name in sorted(file.keys())}


def tensor_digest(value: Tensor) -> list[Any]:
    return [str(value.dtype).removeprefix("torch."), list(value.shape), float(value.double().sum())]

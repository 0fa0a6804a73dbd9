"""What a rule is given: one graph of a plan as an exported program, and the machine and release that it is for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, fx

from gemma4cfg.config.sdk import Sdk
from gemma4cfg.config.target import Target
from gemma4cfg.findings import Finding, Severity
from gemma4cfg.plan.records import Graph, Plan
from gemma4cfg.runtime.programs import Exported

_LAYER = re.compile(r"\.layers\.(\d+)\b")


@dataclass(frozen=True, slots=True)
class Subject:
    """``sdk`` and ``target`` are the plan's."""

    plan: Plan
    exported: Exported
    sdk: Sdk
    target: Target

    @property
    def graph(self) -> Graph:
        return self.exported.graph

    @property
    def nodes(self) -> Iterator[fx.Node]:
        """Operators, in order; those of graphs within the graph come where they are called."""
        yield from _operators(self.exported.program.graph_module)

    @property
    def weights(self) -> dict[str, Tensor]:
        """Name to a tensor of the weight's shape and type."""
        held = self.exported.program.state_dict
        return {
            name: held[name]
            for name in self.exported.program.graph_signature.parameters
            if not name.startswith("states.")
        }

    def finding(self, severity: Severity, code: str, node: fx.Node | None, message: str, fix: str) -> Finding:
        """One that names the graph, the operator and the layer."""
        where = f"graph {self.graph.name}"
        if node is not None:
            where += f", {operator(node)} ({node.name})"
        return Finding(severity, code, None if node is None else layer_of(node), f"{where}: {message}", fix)


def operator(node: fx.Node) -> str:
    """``aten.topk``: without the overload."""
    return ".".join(str(node.target).split(".")[:2])


def overload(node: fx.Node) -> str:
    """``aten.where.self``."""
    return str(node.target)


def layer_of(node: fx.Node) -> int | None:
    """The decoder layer that the operator was traced in."""
    for path, _ in reversed(list(node.meta.get("nn_module_stack", {}).values())):
        if found := _LAYER.search(path):
            return int(found[1])
    return None


def results(node: fx.Node) -> list[Tensor]:
    """The tensors that a node gives, without contents."""
    value = node.meta.get("val")
    items = value if isinstance(value, (list, tuple)) else [value]
    return [item for item in items if isinstance(item, Tensor)]


def operands(node: fx.Node) -> list[Tensor]:
    """The tensors that a node takes, without contents."""
    return [tensor for each in node.all_input_nodes for tensor in results(each)]


def _operators(module: fx.GraphModule) -> Iterator[fx.Node]:
    for node in module.graph.nodes:
        if node.op == "call_function":
            for inner in node.all_input_nodes:
                if inner.op == "get_attr" and isinstance(
                    found := getattr(module, str(inner.target), None), fx.GraphModule
                ):
                    yield from _operators(found)
            yield node

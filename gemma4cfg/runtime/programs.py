"""One graph of a plan as an exported program: what it computes as text, and every value that is baked into it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from gemma4cfg.plan.records import Graph
from gemma4cfg.runtime.graphs import BufferGraphs, RankModule
from gemma4cfg.runtime.kv import example_inputs
from gemma4cfg.runtime.rankless import rankless
from gemma4cfg.runtime.weights import without_memory

if TYPE_CHECKING:
    from torch.export import ExportedProgram

GROUP = "ranks"
"""What a program calls its process group, whatever torch called it while exporting."""


@dataclass(frozen=True, slots=True)
class Exported:
    """``program`` holds no weights. ``text`` is a line for each operator, types and shapes included; it is equal in every
    process. ``constants`` are the tensors baked into the program, by name, state left out."""

    graph: Graph
    program: ExportedProgram
    text: str
    constants: Mapping[str, Tensor]

    @property
    def text_digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def constants_digest(self) -> str:
        """Of names, types, shapes and bytes."""
        hasher = hashlib.sha256()
        for name, value in sorted(self.constants.items()):
            hasher.update(f"{name} {value.dtype} {list(value.shape)} ".encode())
            hasher.update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return hasher.hexdigest()


def export_module(module: RankModule, graph: Graph) -> Exported:
    """``module`` exported with the inputs of ``graph``. Weights that it has been given are read as they are; those on the
    meta device stay without contents. To compare ranks, give it each rank's weights in turn."""
    inputs = example_inputs(graph)
    with without_memory(module) as mode, torch.no_grad(), rankless():
        given = {name: mode.from_tensor(tensor) for name, tensor in inputs.items()}
        if isinstance(module, BufferGraphs):
            program = torch.export.export(module, (), given, strict=False)
        else:
            program = torch.export.export(module, tuple(given.values()), strict=False)
    state = {port.name for port in graph.state}
    constants = baked_values(program, state)
    _hollow_out(program, state)
    program.example_inputs = ((), inputs) if isinstance(module, BufferGraphs) else (tuple(inputs.values()), {})
    _rename_group(program.graph)
    return Exported(graph, program, program_text(program.graph), constants)


def program_text(graph: fx.Graph) -> str:
    """A line for each node: its operator, its operands, and the types and shapes that it gives."""
    return "\n".join(
        str(node.format_node()) if node.op == "output" else f"{node.format_node()} -> {_spelled(node.meta.get('val'))}"
        for node in graph.nodes
    )


def baked_values(program: ExportedProgram, state: set[str]) -> dict[str, Tensor]:
    """Name to value: tensors lifted out of the code, and buffers, less those of ``state``."""
    stored = program.state_dict
    buffers = {name: stored[name] for name in program.graph_signature.buffers if name in stored}
    held = {**program.constants, **buffers}
    return {name: value for name, value in held.items() if isinstance(value, Tensor) and name not in state}


def rank_differences(one: Exported, other: Exported) -> tuple[str, ...]:
    """Where the programs of two ranks differ, a sentence each; empty where one program serves both. Numbers other than 0 and
    1 are lifted out of a text, so the baked values are compared too."""
    found = []
    if lines := _first_difference(one.text.splitlines(), other.text.splitlines()):
        found.append(f"{lines[0]!r} on one rank, {lines[1]!r} on the other")
    for name in sorted(one.constants.keys() | other.constants.keys()):
        mine, theirs = one.constants.get(name), other.constants.get(name)
        if mine is None or theirs is None or mine.dtype != theirs.dtype or not torch.equal(mine, theirs):
            found.append(f"the baked value {name} differs")
    return tuple(found)


def _first_difference(one: Sequence[str], other: Sequence[str]) -> tuple[str, str] | None:
    return next(((mine, theirs) for mine, theirs in zip_longest(one, other, fillvalue="") if mine != theirs), None)


def _hollow_out(program: ExportedProgram, state: set[str]) -> None:
    """Take weights and KV out, their shapes stay: a rank file gives the former when the program is loaded, the latter is
    made anew. Nothing else would keep a saved program small."""
    for name in program.graph_signature.parameters:
        program.state_dict[name] = torch.nn.Parameter(_shape_of(program.state_dict[name]), requires_grad=False)
    for name in state & program.constants.keys():
        program.constants[name] = _shape_of(program.constants[name])


def _shape_of(value: Any) -> Tensor:
    return torch.empty(value.shape, dtype=value.dtype, device="meta")


def _rename_group(graph: fx.Graph) -> None:
    """Torch numbers groups as it makes them; the program must not depend on how many there were."""
    for node in graph.nodes:
        if node.op == "call_function" and str(node.target).startswith("_c10d_functional.") and len(node.args) == 3:
            node.args = (*node.args[:2], GROUP)


def _spelled(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"({', '.join(_spelled(item) for item in value)})"
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return str(value)

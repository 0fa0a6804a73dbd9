"""One program for all ranks: every graph exported with one rank's weights and with another's must be the same but for them.

What differs would be compiled into every rank from the one that was traced, silently: shapes are right and numbers are not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import torch
from torch import Tensor
from torch.export import ExportedProgram

from gemma4cfg.plan.records import Graph, Plan
from gemma4cfg.runtime.graphs import BufferGraphs
from gemma4cfg.runtime.kv import empty
from gemma4cfg.runtime.rank_files import RANK_FILE, load_rank
from gemma4cfg.verify.records import Check
from sharding.collectives.distributed import fake_group

Edit = Callable[[BufferGraphs, int], None]
"""Changes the module of a rank before it is exported; for drills."""


@dataclass(frozen=True, slots=True)
class Program:
    """A graph's code, an operation a line, and what it holds beside weights: constant name to digest."""

    lines: tuple[str, ...]
    constants: Mapping[str, str]


def rank_programs(plan: Plan, directory: Path, rank: int, edit: Edit | None = None) -> dict[str, Program]:
    """Graph name to program, built as ``rank`` with its weights."""
    with fake_group(plan.tp, rank) as collectives, torch.inference_mode():
        module = BufferGraphs(plan, collectives)
        load_rank(module, directory / RANK_FILE.format(rank=rank))
        if edit:
            edit(module, rank)
        return {graph.name: _program(export(module, graph)) for graph in plan.graphs}


def export(module: BufferGraphs, graph: Graph) -> ExportedProgram:
    """The graph as torch.export sees it, inputs by the ports' names."""
    inputs = {port.name: empty(port) for port in graph.inputs}
    with torch.no_grad():
        return torch.export.export(module, (), inputs, strict=False)


def one_program(plan: Plan, directory: Path, edit: Edit | None = None) -> Check:
    """Whether the first and the last rank's programs are equal; the first difference names graph and operation."""
    last = plan.tp - 1
    first = rank_programs(plan, directory, 0, edit)
    other = rank_programs(plan, directory, last, edit)
    found = [
        f"{name}: {difference}" for name in first if (difference := _difference(first[name], other[name])) is not None
    ]
    if found:
        return Check("spmd", False, None, None, f"rank constant found, rank 0 against rank {last}: {'; '.join(found)}")
    lines = sum(len(program.lines) for program in first.values())
    return Check("spmd", True, None, None, f"{len(first)} graphs, {lines} lines, the same on rank 0 and rank {last}")


def _difference(one: Program, other: Program) -> str | None:
    for line, counterpart in zip_longest(one.lines, other.lines, fillvalue="(nothing)"):
        if line != counterpart:
            return f"{line.strip()} | {counterpart.strip()}"
    for name in one.constants.keys() | other.constants.keys():
        if one.constants.get(name) != other.constants.get(name):
            return f"constant {name}"
    return None


def _program(exported: ExportedProgram) -> Program:
    weights = set(exported.graph_signature.parameters)
    held = {**exported.constants, **{name: value for name, value in exported.state_dict.items() if name not in weights}}
    constants = {name: _digest(value) for name, value in held.items() if isinstance(value, Tensor)}
    return Program(_lines(exported), constants)


def _lines(exported: ExportedProgram) -> tuple[str, ...]:
    return tuple(exported.graph_module.code.splitlines())


def _digest(tensor: Tensor) -> str:
    raw = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(f"{tensor.dtype} {list(tensor.shape)}".encode() + raw).hexdigest()

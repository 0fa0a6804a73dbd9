"""One program for all ranks: every graph exported with one rank's weights and with another's must be the same but for them.

What differs would be compiled into every rank from the one that was traced, silently: shapes are right and numbers are not.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gemma4cfg.plan.records import Plan
from gemma4cfg.runtime.graphs import BufferGraphs
from gemma4cfg.runtime.programs import Exported, export_module, rank_differences
from gemma4cfg.runtime.rank_files import RANK_FILE, load_rank
from gemma4cfg.verify.records import Check
from sharding.collectives.distributed import fake_group

Edit = Callable[[BufferGraphs, int], None]
"""Changes the module of a rank before it is exported; for drills."""


def rank_programs(plan: Plan, directory: Path, rank: int, edit: Edit | None = None) -> dict[str, Exported]:
    """Graph name to program, built as ``rank`` with its weights."""
    with fake_group(plan.tp, rank) as collectives:
        module = BufferGraphs(plan, collectives)
        load_rank(module, directory / RANK_FILE.format(rank=rank))
        if edit:
            edit(module, rank)
        return {graph.name: export_module(module, graph) for graph in plan.graphs}


def one_program(plan: Plan, directory: Path, edit: Edit | None = None) -> Check:
    """Whether the first and the last rank's programs are equal; the first difference of each graph is named."""
    last = plan.tp - 1
    first = rank_programs(plan, directory, 0, edit)
    other = rank_programs(plan, directory, last, edit)
    found = [
        f"{name}: {differences[0]}" for name in first if (differences := rank_differences(first[name], other[name]))
    ]
    if found:
        return Check("spmd", False, None, None, f"rank constant found, rank 0 against rank {last}: {'; '.join(found)}")
    lines = sum(len(program.text.splitlines()) for program in first.values())
    return Check("spmd", True, None, None, f"{len(first)} graphs, {lines} lines, the same on rank 0 and rank {last}")

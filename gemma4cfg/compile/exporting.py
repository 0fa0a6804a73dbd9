"""A plan's graphs as exported programs, of the modules that its recipe traces."""

from __future__ import annotations

from gemma4cfg.compile.modules import graph_module
from gemma4cfg.plan.records import Graph, Plan
from gemma4cfg.runtime.programs import Exported, export_module
from sharding.collectives.alone import Alone
from sharding.collectives.distributed import fake_group


def export_graph(plan: Plan, graph: Graph, rank: int = 0) -> Exported:
    """``graph`` exported as any rank's: weights have shapes and no contents, and reading a rank raises RankReadError.

    ``rank`` is what the process group would be made with; nothing can come to know it.
    """
    if plan.tp == 1:
        return export_module(graph_module(plan, graph, Alone()), graph)
    with fake_group(plan.tp, rank) as group:
        return export_module(graph_module(plan, graph, group), graph)

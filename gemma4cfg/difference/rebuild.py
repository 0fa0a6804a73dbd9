"""What has to be made again for another plan, and what of the first plan's artifacts and rank files stays valid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gemma4cfg.decode import decode
from gemma4cfg.plan.records import Span

JsonPlan = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class GraphRebuild:
    """``compile``: no artifact of the first plan is of this graph. ``keep``: one is. ``drop``: the second plan has no such
    graph. ``old`` and ``new`` are the graphs' ids, null where the plan has none of the name; both null where it is kept."""

    name: str
    action: Literal["compile", "keep", "drop"]
    old: str | None
    new: str | None


@dataclass(frozen=True, slots=True)
class RankFilesRebuild:
    """``write``: the ranks hold something else. ``keep``: the files fit both plans. ``unused``: the second plan's stack cuts
    weights by itself. ``old`` and ``new`` are the placement ids, both null where they are equal."""

    action: Literal["write", "keep", "unused"]
    old: str | None
    new: str | None


@dataclass(frozen=True, slots=True)
class Rebuild:
    """``compile_s``: seconds to compile every graph of the second plan, as it estimates; null where none is to be compiled, or
    its stack compiles nothing ahead."""

    graphs: tuple[GraphRebuild, ...]
    rank_files: RankFilesRebuild
    compile_s: Span | None


def plan_rebuild(old: JsonPlan, new: JsonPlan) -> Rebuild:
    """An artifact is valid for any graph of its id, whatever that is called; rank files for any plan of their placement."""
    before, after = ({graph["name"]: graph["id"] for graph in plan["graphs"]} for plan in (old, new))
    made = set(before.values())
    graphs = [
        GraphRebuild(name, "keep", None, None) if id_ in made else GraphRebuild(name, "compile", before.get(name), id_)
        for name, id_ in after.items()
    ]
    graphs += [GraphRebuild(name, "drop", id_, None) for name, id_ in before.items() if name not in after]
    ids = (old["placement_id"], new["placement_id"])
    if not any(call["api"] == "sharding.reshard" for call in new["calls"]):
        files = RankFilesRebuild("unused", None, None)
    elif ids[0] == ids[1]:
        files = RankFilesRebuild("keep", None, None)
    else:
        files = RankFilesRebuild("write", *ids)
    seconds = new["estimate"]["compile_s"] if any(graph.action == "compile" for graph in graphs) else None
    return Rebuild(tuple(graphs), files, decode(Span, seconds) if seconds else None)

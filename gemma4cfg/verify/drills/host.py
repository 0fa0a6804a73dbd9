"""Faults of the host's part: its tables' scales, its positions, its softcap."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gemma4cfg.plan.records import Numerics, Plan
from gemma4cfg.runtime.graphs import RankModule
from gemma4cfg.runtime.host.tables import HostTables
from gemma4cfg.verify.drills.records import NOTHING, PLE, Drill, Need, of_plan
from gemma4cfg.verify.faults import Fault
from gemma4cfg.verify.subject import Subject


def _scale(table: str, change: Callable[[Numerics], Numerics]) -> Callable[[Plan], Fault]:
    """A table's scale is left out, by whoever looks it up: the host, or the device."""

    def tables(given: HostTables) -> HostTables:
        return replace(given, numerics=change(given.numerics))

    def module(rank: RankModule, plan: Plan) -> None:  # noqa: ARG001
        embedding: Any = getattr(rank.model, table)
        if embedding is not None:
            embedding.embed_scale = torch.ones(())

    return lambda plan: Fault(tables=tables, module=module)  # noqa: ARG005


def _without_ple_scale(numerics: Numerics) -> Numerics:
    return replace(numerics, ple=replace(numerics.ple, embedding_scale=1.0)) if numerics.ple else numerics


def _positions_restart(plan: Plan) -> Fault:
    """Every chunk of a prompt counts from 0."""
    rows = {graph.name: graph.kind == "prefill" for graph in plan.graphs}

    def inputs(graph: str, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        positions = given["position_ids"]
        restarted = positions - positions[:, :1] if rows[graph] else positions
        return {**given, "position_ids": restarted}

    return Fault(inputs=inputs)


def _no_softcap(plan: Plan) -> Fault:  # noqa: ARG001
    def host_plan(plain: dict[str, Any]) -> None:
        plain["host"] = [part for part in plain["host"] if part["what"] != "softcap"]

    def module(rank: RankModule, plan: Plan) -> None:  # noqa: ARG001
        rank.softcap = None

    return Fault(host_plan=host_plan, module=module)


def _cut_in_chunks(subject: Subject) -> bool:
    shapes = subject.plan.shapes
    return shapes.prompt_chunking and max(subject.lengths) > max(shapes.prefill_buckets)


CHUNKS = Need(
    "a prompt longer than the largest prefill bucket (shapes.prompt_chunking=true, and room in shapes.kv_length)",
    _cut_in_chunks,
)
SOFTCAP = of_plan("a model with a softcap on its logits", lambda plan: plan.numerics.final_logit_softcap is not None)


DRILLS = (
    Drill(
        "embedding_scale",
        "host",
        "token embeddings are not scaled",
        _scale("embed_tokens", lambda numerics: replace(numerics, embedding_scale=1.0)),
        NOTHING,
    ),
    Drill(
        "ple_scale",
        "host",
        "per-layer embeddings are not scaled",
        _scale("embed_tokens_per_layer", _without_ple_scale),
        PLE,
    ),
    Drill(
        "prefill_chunk_positions", "host", "every chunk of a prompt begins at position 0", _positions_restart, CHUNKS
    ),
    Drill("softcap_dropped", "host", "logits are not capped, which changes no greedy token", _no_softcap, SOFTCAP),
)

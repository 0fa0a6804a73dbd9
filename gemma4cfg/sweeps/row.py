"""One job of a sweep as a row of its table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from gemma4cfg.decode import decode
from gemma4cfg.plan.cores import cores_taken
from gemma4cfg.plan.records import Costs, HbmBudget, Span

Status = Literal["done", "refused", "disproved", "failed"]


@dataclass(frozen=True, slots=True)
class Row:
    """``reason`` is the code of the first error finding, ``message`` and ``fix`` its words; null where the job is done, as
    every figure is where it is not. ``device_bytes``: of every core that is used. ``usd_per_million_tokens`` is null too where
    the machine's price on demand is not known. Against the first job that has a plan, ``recompiles`` counts the graphs whose
    ids it lacks. ``rank_files_of`` is the first job with the same placement: its rank files serve this one."""

    job: int
    overrides: tuple[str, ...]
    status: Status
    reason: str | None = None
    message: str | None = None
    fix: str | None = None
    model: str | None = None
    target: str | None = None
    sdk: str | None = None
    recipe: str | None = None
    tp: int | None = None
    dtype: str | None = None
    hbm_per_rank: HbmBudget | None = None
    device_bytes: int | None = None
    decode_tokens_per_s: Span | None = None
    prefill_ms: Span | None = None
    usd_per_hour: float | None = None
    usd_per_million_tokens: Span | None = None
    plan_id: str | None = None
    placement_id: str | None = None
    graphs: tuple[str, ...] | None = None
    recompiles: int | None = None
    rank_files_of: int | None = None


def row_of_plan(job: int, overrides: Sequence[str], plan: Mapping[str, Any]) -> Row:
    """The row of a job with a plan, in JSON form."""
    estimate, price = plan["estimate"], plan["provenance"]["price"]["on_demand"]
    hbm = decode(HbmBudget, plan["budget"]["hbm_per_rank"])
    return Row(
        job=job,
        overrides=tuple(overrides),
        status="done",
        reason=None,
        message=None,
        fix=None,
        **{key: plan[key] for key in ("model", "target", "sdk", "recipe", "tp", "dtype", "plan_id", "placement_id")},
        hbm_per_rank=hbm,
        device_bytes=hbm.on_cores(cores_taken(plan["tp"], (call["args"] for call in plan["calls"]))),
        decode_tokens_per_s=decode(Span, estimate["decode_tokens_per_s"]),
        prefill_ms=decode(Span, estimate["prefill_ms"]),
        usd_per_hour=price["usd_per_hour"] if price else None,
        usd_per_million_tokens=decode(Costs, estimate["usd_per_million_tokens"]).on_demand,
        graphs=tuple(graph["id"] for graph in plan["graphs"]),
    )


def row_without_plan(job: int, overrides: Sequence[str], status: Status, findings: Iterable[Mapping[str, Any]]) -> Row:
    """The row of a job that did not end well, with the first error of ``findings`` (JSON form); or that makes no plan."""
    error = next((finding for finding in findings if finding["severity"] == "error"), None)
    if error is None:
        return Row(job, tuple(overrides), status)
    return Row(job, tuple(overrides), status, error["code"], error["message"], error["fix"] or None)


def compared(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Rows with what is measured against the other jobs."""
    known: frozenset[str] | None = None
    placements: dict[str, int] = {}
    done = []
    for row in rows:
        if row.graphs is not None and row.placement_id is not None:
            known = frozenset(row.graphs) if known is None else known
            row = replace(
                row,
                recompiles=sum(graph not in known for graph in row.graphs),
                rank_files_of=placements.setdefault(row.placement_id, row.job),
            )
        done.append(row)
    return tuple(done)

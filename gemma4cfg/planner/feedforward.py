"""How the dense MLP, the experts and the per-layer-embedding gates lie on the ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gemma4cfg.architecture.model import Architecture, layer_facts
from gemma4cfg.config.schema import MoeChoice, PleChoice
from gemma4cfg.errors import ConfigError
from gemma4cfg.plan.bytes import ITEM_BYTES
from gemma4cfg.plan.reasons import Reason
from gemma4cfg.plan.records import Decision, LayerMlp, LayerMoe, LayerPle, RankTensor, TurnedDown

ID_DTYPE = "int32"
"""Of rank tensors that hold ids or columns: what the device indexes with."""


@dataclass(frozen=True, slots=True)
class Feedforward:
    """``moe`` and ``ple`` are null where the model has none. ``rank_tensors`` are what makes a partition rank-dependent."""

    moe: LayerMoe | None
    ple: LayerPle | None
    rank_tensors: dict[str, RankTensor]
    decisions: tuple[Decision, ...]


def local_size(size: int, tp: int) -> int:
    """A rank's share of ``size``, padded up where TP does not divide it."""
    return -(-size // tp)


def mlp_of(intermediate: int, tp: int) -> LayerMlp:
    return LayerMlp(intermediate, local_size(intermediate, tp), reduce=tp > 1)


def plan_feedforward(architecture: Architecture, moe: MoeChoice, ple: PleChoice, tp: int, dtype: str) -> Feedforward:
    """Partitions of experts and PLE gates, with the decisions that took them.

    Raises ConfigError for whole experts that TP does not divide.
    """
    rank_tensors: dict[str, RankTensor] = {}
    decisions = [_mlp_decision(architecture, tp)]
    planned_moe = planned_ple = None
    if architecture.moe:
        planned_moe = _plan_moe(architecture, moe.partition, tp)
        decisions += _moe_decisions(architecture, planned_moe, moe.partition, tp)
        if planned_moe.partition == "experts" and tp > 1:
            count = planned_moe.local_experts
            ids = RankTensor(ID_DTYPE, tuple(tuple(range(r * count, (r + 1) * count)) for r in range(tp)))
            rank_tensors |= {f"model.layers.{i}.experts.expert_ids": ids for i in range(architecture.layers)}
    if architecture.ple:
        split = ple.partition == "split" and tp > 1
        width = architecture.ple.width
        planned_ple = LayerPle(width, local_size(width, tp) if split else width, reduce=split)
        decisions.append(_ple_decision(architecture, ple.partition, tp, dtype))
        if split:
            rank_tensors["model.ple_columns"] = RankTensor(ID_DTYPE, _columns(width, tp))
    return Feedforward(planned_moe, planned_ple, rank_tensors, tuple(decisions))


def _columns(width: int, tp: int) -> tuple[tuple[int, ...], ...]:
    """The PLE columns of each rank; a padding column reads column 0 and meets weights of zero."""
    run = local_size(width, tp)
    return tuple(tuple(c if c < width else 0 for c in range(r * run, (r + 1) * run)) for r in range(tp))


def _plan_moe(architecture: Architecture, partition: str, tp: int) -> LayerMoe:
    facts = architecture.moe
    assert facts is not None
    if partition == "experts" and facts.experts % tp:
        raise ConfigError(
            f"moe.partition=experts: {facts.experts} experts do not divide over tp={tp}; "
            "moe.partition=intermediate works at any TP"
        )
    taken: Literal["experts", "intermediate"] = "experts" if partition == "experts" else "intermediate"
    return LayerMoe(
        experts=facts.experts,
        top_k=facts.top_k,
        intermediate=facts.intermediate_size,
        partition=taken,
        local_experts=facts.experts // tp if taken == "experts" else facts.experts,
        local_intermediate=facts.intermediate_size if taken == "experts" else local_size(facts.intermediate_size, tp),
        reduce=tp > 1,
    )


def _mlp_decision(architecture: Architecture, tp: int) -> Decision:
    widths = sorted({layer.intermediate_size for layer in layer_facts(architecture)})
    shares = ", ".join(f"{width} -> {local_size(width, tp)} a rank{_alignment(width, tp)}" for width in widths)
    wide = "; layers that borrow K/V are double-wide" if len(widths) > 1 else ""
    return Decision(
        id="mlp",
        choice="split",
        over=(TurnedDown("replicate", Reason.MORE_BYTES, ""),) if tp > 1 else (),
        reason=Reason.FEWEST_BYTES if tp > 1 else Reason.ONLY_OPTION,
        detail=f"gate and up by rows, down by columns: {shares}{wide}",
    )


def _alignment(size: int, tp: int) -> str:
    """What is left over after the cut, against the 128 partitions of a core and against TP."""
    share = local_size(size, tp)
    notes = []
    if share * tp != size:
        notes.append(f"{share * tp - size} of padding in all")
    if share % 128:
        notes.append(f"{share % 128} past a multiple of 128")
    return f" ({', '.join(notes)})" if notes else ""


def _moe_decisions(architecture: Architecture, moe: LayerMoe, asked: str, tp: int) -> list[Decision]:
    if moe.partition == "experts":
        other, reason = "intermediate", Reason.NOT_REQUESTED
        detail = f"{moe.local_experts} whole experts a rank, their ids fed as a tensor"
    else:
        other, reason = "experts", Reason.RANK_DEPENDENT
        detail = (
            f"all {moe.experts} experts on every rank, {moe.intermediate} -> {moe.local_intermediate} of each"
            f"{_alignment(moe.intermediate, tp)}; packed gate and up are cut part by part"
        )
    return [
        Decision(
            id="experts",
            choice=moe.partition,
            over=(TurnedDown(other, reason, ""),),
            reason=Reason.REQUESTED if asked != "auto" else Reason.NO_RANK_DEPENDENCE,
            detail=detail + f"; top {moe.top_k} of {moe.experts} by a mask over all, so no index depends on data",
        ),
        Decision(
            id="router",
            choice="replicate",
            over=(TurnedDown("split", Reason.MORE_COLLECTIVES, ""),),
            reason=Reason.SMALL_AND_SHARED,
            detail=f"reads the raw residual; {moe.experts} x {architecture.hidden_size} a layer. Experts read "
            "pre_feedforward_layernorm_2 of it, their output and the MLP's pass a norm each before the sum",
        ),
    ]


def _ple_decision(architecture: Architecture, asked: str, tp: int, dtype: str) -> Decision:
    assert architecture.ple is not None
    layers, width = architecture.layers, architecture.ple.width
    gates = 2 * layers * architecture.hidden_size * ITEM_BYTES[dtype]
    whole, cut = gates * width, gates * local_size(width, tp)
    figures = (
        f"replicate: {whole:,} bytes a rank, no collective; split: {cut:,} bytes, {layers if tp > 1 else 0} all-reduces"
    )
    split = asked == "split"
    return Decision(
        id="ple.partition",
        choice="split" if split else "replicate",
        over=(TurnedDown("replicate", Reason.MORE_BYTES, ""),)
        if split
        else (TurnedDown("split", Reason.MORE_COLLECTIVES if tp > 1 else Reason.NOT_NEEDED, ""),),
        reason=Reason.REQUESTED if asked != "auto" else Reason.FEWEST_COLLECTIVES if tp > 1 else Reason.ONLY_OPTION,
        detail=f"gates and projections of {layers} layers: {figures}",
    )

"""Which head layout each layer takes. Layers that share K/V share a layout: a borrower takes its owner's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from gemma4cfg.architecture.model import Architecture, LayerFacts, layer_facts
from gemma4cfg.config.schema import AttentionChoice, Policy
from gemma4cfg.errors import ConfigError
from gemma4cfg.plan.bytes import ITEM_BYTES
from gemma4cfg.plan.reasons import Reason
from gemma4cfg.plan.records import Decision, Shapes, TurnedDown
from gemma4cfg.planner.heads import MODES, HeadLayout, Mode, layouts
from gemma4cfg.planner.kv import kv_length_of
from gemma4cfg.planner.selectors import assign
from gemma4cfg.runs import index_runs

KEY = "attention.layers"


@dataclass(frozen=True, slots=True)
class Cost:
    """Device bytes per rank (weights and KV) and collectives of one layer under one layout."""

    bytes: int
    collectives: int


def choose_layouts(
    architecture: Architecture, choice: AttentionChoice, tp: int, dtype: str, shapes: Shapes
) -> tuple[tuple[HeadLayout, ...], tuple[Decision, ...]]:
    """A layout for every layer, and one decision for every group of layers that were decided alike.

    Raises ConfigError where the policy asked for is not possible, naming the layer and what is.
    """
    layers = layer_facts(architecture)
    policies = assign(choice.policy, choice.layers or {}, layers, KEY)
    chosen: list[HeadLayout] = []
    taken: list[tuple[LayerFacts, Policy]] = []
    for layer in layers:
        policy = policies[layer.owner]
        if policies[layer.index] != policy:
            raise ConfigError(
                f"{KEY}: layer {layer.index} ({policies[layer.index]}) reads the K/V of layer {layer.owner} ({policy}); "
                f"both need one policy, e.g. {KEY}={{{layer.owner}: {policy}, {layer.index}: {policy}}}"
            )
        chosen.append(_layout(architecture, layers[layer.owner], policy, tp, dtype, shapes))
        taken.append((layer, policy))
    return tuple(chosen), _decisions(architecture, taken, chosen, tp, dtype, shapes)


def _layout(
    architecture: Architecture, layer: LayerFacts, policy: Policy, tp: int, dtype: str, shapes: Shapes
) -> HeadLayout:
    """Of the layouts that the policy allows: fewest bytes, then fewest collectives, then the order of preference."""
    possible = layouts(layer.attention.q_heads, layer.attention.kv_heads, tp)
    modes = [layout.mode for layout in possible]
    allowed = allowed_modes(policy, modes)
    if not allowed:
        raise ConfigError(_impossible(layer, policy, tp, modes))

    def preference(layout: HeadLayout) -> tuple[int, int]:
        cost = cost_of(architecture, layer, layout, tp, dtype, shapes)
        return cost.bytes, cost.collectives

    return min((layout for layout in possible if layout.mode in allowed), key=preference)


def allowed_modes(policy: Policy, modes: Sequence[Mode]) -> frozenset[Mode]:
    """Those of a layer's possible ``modes`` that ``policy`` may take; none where it cannot be had."""
    if "split" in modes:
        return frozenset({"split"})  # TP divides the KV heads: every policy is about the layers where it does not
    if policy == "auto":
        return frozenset(modes) - {"replicate"}
    if policy == "pad" and "group" in modes:
        return frozenset({"group"})  # no zero head is needed
    return frozenset({policy}) & frozenset(modes)


def distinct_policies(architecture: Architecture, policies: Sequence[Policy], tp: int) -> dict[Policy, Policy]:
    """Each policy to the first of ``policies`` that allows the same in every layer, and so gives the same plan; to itself
    where it is not possible."""
    heads = {(layer.attention.q_heads, layer.attention.kv_heads) for layer in layer_facts(architecture)}
    modes = [[layout.mode for layout in layouts(*counts, tp)] for counts in sorted(heads)]
    first: dict[tuple[frozenset[Mode], ...], Policy] = {}
    same: dict[Policy, Policy] = {}
    for policy in policies:
        allowed = tuple(allowed_modes(policy, of_layer) for of_layer in modes)
        same[policy] = first.setdefault(allowed, policy) if all(allowed) else policy
    return same


def cost_of(
    architecture: Architecture, layer: LayerFacts, layout: HeadLayout, tp: int, dtype: str, shapes: Shapes
) -> Cost:
    """What ``layer`` costs one rank: q, k, v and o projections, and its KV if it owns any."""
    attention = layer.attention
    rows = 2 * layout.local_q_heads  # q_proj and o_proj
    kv_elements = 0
    if not layer.borrows:
        rows += layout.local_kv_heads * (1 if attention.k_eq_v else 2)
        kv_elements = 2 * shapes.batch * layout.local_kv_heads * kv_length_of(layer, shapes) * attention.head_dim
    weights = rows * attention.head_dim * architecture.hidden_size
    reduces = tp > 1 and layout.mode != "replicate"
    return Cost(weights * ITEM_BYTES[dtype] + kv_elements * ITEM_BYTES[shapes.kv_dtype], int(reduces))


def _impossible(layer: LayerFacts, policy: str, tp: int, possible: Sequence[Mode]) -> str:
    attention = layer.attention
    why = {
        "split": f"its {attention.kv_heads} KV heads do not divide over {tp} ranks: {attention.kv_heads} x "
        f"{attention.head_dim} rows / {tp} is not whole heads",
        "group": f"tp={tp} is not a multiple of its {attention.kv_heads} KV heads that divides its "
        f"{attention.q_heads} query heads",
    }[policy]
    return (
        f"attention.policy={policy}: layer {layer.index} ({layer.type}): {why}; possible there: "
        f"{', '.join(dict.fromkeys(possible))}; e.g. attention.policy=auto or {KEY}={{{layer.type}: {possible[0]}}}"
    )


def _decisions(
    architecture: Architecture,
    taken: Sequence[tuple[LayerFacts, Policy]],
    chosen: Sequence[HeadLayout],
    tp: int,
    dtype: str,
    shapes: Shapes,
) -> tuple[Decision, ...]:
    def likeness(index: int) -> tuple[str, Mode, Policy]:
        layer, policy = taken[index]
        return layer.type, chosen[index].mode, policy

    decisions = []
    for (kind, mode, policy), group in groupby(sorted(range(len(taken)), key=likeness), key=likeness):
        indices = list(group)
        layer = layer_facts(architecture)[taken[indices[0]][0].owner]
        layout = chosen[indices[0]]
        taken_cost = cost_of(architecture, layer, layout, tp, dtype, shapes)
        rivals: dict[Mode, Cost] = {}
        for rival in layouts(layer.attention.q_heads, layer.attention.kv_heads, tp):
            if rival != layout:
                cost = cost_of(architecture, layer, rival, tp, dtype, shapes)
                rivals[rival.mode] = min(cost, rivals.get(rival.mode, cost), key=lambda it: (it.bytes, it.collectives))
        decisions.append(
            Decision(
                id=f"attention.{kind}" + ("" if policy == "auto" else f".{policy}"),
                choice=mode,
                over=tuple(_turned_down(name, rivals, taken_cost, mode) for name in MODES if name != mode),
                reason=_reason(mode, policy, taken_cost, rivals),
                detail=f"layers {index_runs(indices)}: {layer.attention.q_heads} query and {layer.attention.kv_heads} KV "
                f"heads of {layer.attention.head_dim}; a rank holds {layout.local_q_heads} and {layout.local_kv_heads}"
                + (f", each KV head on {layout.replication} ranks" if layout.replication > 1 else "")
                + f"; {taken_cost.bytes:,} bytes an owning layer",
            )
        )
    return tuple(decisions)


def _reason(mode: Mode, policy: Policy, taken: Cost, rivals: dict[Mode, Cost]) -> Reason:
    if mode == policy and mode in ("group", "replicate", "pad"):
        return Reason.REQUESTED
    if not rivals:
        return Reason.ONLY_OPTION
    fewest = all(taken.bytes < rival.bytes for rival in rivals.values())
    return Reason.FEWEST_BYTES if fewest else Reason.FIRST_IN_ORDER


def _turned_down(name: Mode, rivals: dict[Mode, Cost], taken: Cost, mode: Mode) -> TurnedDown:
    """Split, group and pad exclude each other, so a rival of another mode is one that was not asked for."""
    if name not in rivals:
        needless = mode == "split" or name == "pad"  # not offered: split or group divides the heads
        return TurnedDown(name, Reason.NOT_NEEDED if needless else Reason.HEADS_NOT_DIVISIBLE, "")
    rival = rivals[name]
    detail = f"{rival.bytes:,} bytes, {rival.collectives} all-reduce; taken: {taken.bytes:,} bytes, {taken.collectives}"
    return TurnedDown(name, Reason.NOT_REQUESTED, detail)

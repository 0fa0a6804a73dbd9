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
        mode = _mode(architecture, layers[layer.owner], policy, tp, dtype, shapes)
        chosen.append(layouts(layer.attention.q_heads, layer.attention.kv_heads, tp)[mode])
        taken.append((layer, policy))
    return tuple(chosen), _decisions(architecture, taken, chosen, tp, dtype, shapes)


def _mode(architecture: Architecture, layer: LayerFacts, policy: Policy, tp: int, dtype: str, shapes: Shapes) -> Mode:
    possible = layouts(layer.attention.q_heads, layer.attention.kv_heads, tp)
    if "split" in possible:
        return "split"  # TP divides the KV heads: every policy is about the layers where it does not
    if policy == "auto":
        costs = {
            mode: cost_of(architecture, layer, layout, tp, dtype, shapes)
            for mode, layout in possible.items()
            if mode != "replicate"
        }
        return min(costs, key=lambda mode: (costs[mode].bytes, costs[mode].collectives, MODES.index(mode)))
    if policy == "pad" and "group" in possible:
        return "group"  # no zero head is needed
    if policy not in possible:
        raise ConfigError(_impossible(layer, policy, tp, possible))
    return policy


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


def _impossible(layer: LayerFacts, policy: str, tp: int, possible: Sequence[Mode] | dict[Mode, HeadLayout]) -> str:
    attention = layer.attention
    why = {
        "split": f"its {attention.kv_heads} KV heads do not divide over {tp} ranks: {attention.kv_heads} x "
        f"{attention.head_dim} rows / {tp} is not whole heads",
        "group": f"tp={tp} is not a multiple of its {attention.kv_heads} KV heads that divides its "
        f"{attention.q_heads} query heads",
    }[policy]
    return (
        f"attention.policy={policy}: layer {layer.index} ({layer.type}): {why}; possible there: {', '.join(possible)}; "
        f"e.g. attention.policy=auto or {KEY}={{{layer.type}: {next(iter(possible))}}}"
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
        possible = layouts(layer.attention.q_heads, layer.attention.kv_heads, tp)
        costs = {name: cost_of(architecture, layer, layout, tp, dtype, shapes) for name, layout in possible.items()}
        layout = chosen[indices[0]]
        decisions.append(
            Decision(
                id=f"attention.{kind}" + ("" if policy == "auto" else f".{policy}"),
                choice=mode,
                over=tuple(_turned_down(name, costs, layout, policy) for name in MODES if name != mode),
                reason=_reason(mode, policy, costs),
                detail=f"layers {index_runs(indices)}: {layer.attention.q_heads} query and {layer.attention.kv_heads} KV "
                f"heads of {layer.attention.head_dim}; a rank holds {layout.local_q_heads} and {layout.local_kv_heads}"
                + (f", each KV head on {layout.replication} ranks" if layout.replication > 1 else "")
                + f"; {costs[layout.mode].bytes:,} bytes an owning layer",
            )
        )
    return tuple(decisions)


def _reason(mode: Mode, policy: Policy, costs: dict[Mode, Cost]) -> Reason:
    if policy not in ("auto", "split") and mode == policy:
        return Reason.REQUESTED
    rivals = [cost for name, cost in costs.items() if name not in (mode, "replicate")]
    if not rivals:
        return Reason.ONLY_OPTION
    if all(costs[mode].bytes < rival.bytes for rival in rivals):
        return Reason.FEWEST_BYTES
    if all(costs[mode].collectives < rival.collectives for rival in rivals if rival.bytes == costs[mode].bytes):
        return Reason.FEWEST_COLLECTIVES
    return Reason.FIRST_IN_ORDER


def _turned_down(name: Mode, costs: dict[Mode, Cost], layout: HeadLayout, policy: Policy) -> TurnedDown:
    if name not in costs:
        needless = layout.mode == "split" or name == "pad"  # not offered: split or group divides the heads
        return TurnedDown(name, Reason.NOT_NEEDED if needless else Reason.HEADS_NOT_DIVISIBLE, "")
    cost, taken = costs[name], costs[layout.mode]
    detail = f"{cost.bytes:,} bytes, {cost.collectives} all-reduce; taken: {taken.bytes:,} bytes, {taken.collectives}"
    if policy not in ("auto", name) or name == "replicate":
        return TurnedDown(name, Reason.NOT_REQUESTED, detail)
    return TurnedDown(name, Reason.MORE_BYTES if cost.bytes > taken.bytes else Reason.LATER_IN_ORDER, detail)

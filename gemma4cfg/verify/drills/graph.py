"""Faults of the graph: the right weights, put together wrongly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gemma4cfg.plan.records import Plan
from gemma4cfg.runtime import cache, steps
from gemma4cfg.runtime.graphs import RankModule
from gemma4cfg.verify.constants import inverse_frequencies
from gemma4cfg.verify.drills.records import BORROWERS, MOE, NOTHING, PAST_WINDOW, PLE, Drill, of_plan
from gemma4cfg.verify.faults import Fault


def _edit(change: Callable[[Any, Plan], None]) -> Callable[[Plan], Fault]:
    """``change`` is given the text model."""

    def module(rank: RankModule, plan: Plan) -> None:
        change(rank.model, plan)

    return lambda plan: Fault(module=module)  # noqa: ARG005


def _wrong_owner(text: Any, plan: Plan) -> None:
    """Borrowers read the layer before their owner, of the same type."""
    for owner, before in _owners_and_before(plan):
        text.layers[owner].self_attn.store_full_length_kv = False
        text.layers[before].self_attn.store_full_length_kv = True


def _owners_and_before(plan: Plan) -> list[tuple[int, int]]:
    """Owners that others read, each with the layer of its type before it."""
    found = []
    for owner in sorted({layer.kv.owner for layer in plan.layers if layer.kv.owner != layer.index}):
        earlier = [layer.index for layer in plan.layers[:owner] if layer.type == plan.layers[owner].type]
        if earlier:
            found.append((owner, earlier[-1]))
    return found


def _second_writer(text: Any, plan: Plan) -> None:
    """A borrower puts its own queries into its owner's slot before it reads."""
    borrower = next(layer for layer in plan.layers if layer.kv.owner != layer.index)

    def writes(attention: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG001
        cache: Any = kwargs.get("cache", kwargs.get("past_key_values"))
        shared, hidden = kwargs["shared_kv_states"], kwargs["hidden_states"]
        queries = attention.q_proj(hidden).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
        written = queries[:, : shared[attention.layer_type][0].shape[1]]
        shared[attention.layer_type] = cache.update(written, written, borrower.kv.owner)

    text.layers[borrower.index].self_attn.register_forward_pre_hook(writes, with_kwargs=True)


def _groups_interleaved(text: Any, plan: Plan) -> None:
    """K/V heads are repeated as a row (0, 1, 0, 1) and not each in place (0, 0, 1, 1)."""
    for layer, module in zip(plan.layers, text.layers, strict=True):
        groups = layer.attention.local_q_heads // layer.attention.local_kv_heads
        if layer.attention.local_kv_heads > 1 and groups > 1:
            _permute_queries(module.self_attn, layer.attention.local_kv_heads, groups)


def _permute_queries(attention: Any, kv_heads: int, groups: int) -> None:
    """Query head h of a layer attends to KV head h mod kv_heads."""
    order = torch.arange(kv_heads * groups).view(groups, kv_heads).t().flatten()
    inverse = torch.argsort(order)
    attention.q_norm.register_forward_hook(lambda _module, _given, output: output[:, :, order])
    attention.o_proj.register_forward_pre_hook(
        lambda _module, given: (_heads(given[0], kv_heads * groups, inverse),),
    )


def _heads(rows: Tensor, heads: int, order: Tensor) -> Tensor:
    split = rows.view(*rows.shape[:-1], heads, rows.shape[-1] // heads)
    return split[..., order, :].flatten(-2)


class _NormedTwice(nn.Module):
    """V after k_norm."""

    def __init__(self, k_norm: nn.Module, v_norm: nn.Module) -> None:
        super().__init__()
        self.__dict__["norms"] = (k_norm, v_norm)
        self.eps = v_norm.eps

    def forward(self, values: Tensor) -> Tensor:
        k_norm, v_norm = self.__dict__["norms"]
        normed: Tensor = v_norm(k_norm(values))
        return normed


def _value_after_k_norm(text: Any, plan: Plan) -> None:
    for layer, module in zip(plan.layers, text.layers, strict=True):
        if layer.value_source == "k_proj":
            module.self_attn.v_norm = _NormedTwice(module.self_attn.k_norm, module.self_attn.v_norm)


def _no_v_norm(text: Any, plan: Plan) -> None:
    for layer, module in zip(plan.layers, text.layers, strict=True):
        if layer.kv.owner == layer.index:
            module.self_attn.v_norm = nn.Identity()


def _frequencies(of: Callable[[Any, int], Tensor]) -> Callable[[Any, Plan], None]:
    def change(text: Any, plan: Plan) -> None:
        layer = next(layer for layer in plan.layers if layer.rope.type == "proportional")
        table = of(layer.rope, layer.head_dim).to(torch.float32)
        text.rotary_emb.register_buffer(f"{layer.type}_inv_freq", table, persistent=False)

    return change


def _rotary_denominator(rope: Any, head_dim: int) -> Tensor:
    """The pairs' own width as the denominator, as other models have it."""
    table = inverse_frequencies(rope, head_dim)
    exponents = torch.arange(rope.rotary_pairs, dtype=torch.float64) / max(1, rope.rotary_pairs)
    table[: rope.rotary_pairs] = rope.theta**-exponents
    return table


def _all_dims(rope: Any, head_dim: int) -> Tensor:
    table: Tensor = rope.theta ** -(torch.arange(head_dim // 2, dtype=torch.float64) * 2 / head_dim)
    return table


def _experts_wrong_norm(text: Any, plan: Plan) -> None:  # noqa: ARG001
    """Experts read the residual through the norm of their own output."""
    for module in text.layers:
        norm = module.pre_feedforward_layernorm_2
        other = module.post_feedforward_layernorm_2
        norm.forward = other.forward


def _constant(name: str) -> Callable[[Any, Plan], None]:
    def change(text: Any, plan: Plan) -> None:  # noqa: ARG001
        setattr(text, name, 1.0)

    return change


def _ple_layers_shifted(text: Any, plan: Plan) -> None:  # noqa: ARG001
    project = text.project_per_layer_inputs
    text.project_per_layer_inputs = lambda embeds, given: project(embeds, given).roll(1, dims=2)


def _not_renormalised(text: Any, plan: Plan) -> None:  # noqa: ARG001
    """The chosen experts' weights keep the size that the softmax over all of them gave."""
    for module in text.layers:
        router = module.router

        def forward(hidden_states: Tensor, router: Any = router) -> tuple[Tensor, Tensor, Tensor]:
            probabilities, weights, index = type(router).forward(router, hidden_states)
            share = probabilities.gather(1, index).sum(dim=-1, keepdim=True)
            return probabilities, weights * share, index

        router.forward = forward


def _weight_baked_in(text: Any, plan: Plan) -> None:  # noqa: ARG001
    """A projection multiplies with a copy of its weight, and the weight itself is read by nothing."""
    projection = text.layers[0].mlp.gate_proj
    constant = projection.weight.detach().clone()
    projection.forward = lambda rows: functional.linear(rows, constant)


class _TakesPads(cache.SlotCache):
    """Pad rows are written like any other, round the ring."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._steps = {kind: _with_pads(step) for kind, step in self._steps.items()}


def _with_pads(step: steps.Step) -> steps.Step:
    if step.source is None:
        return step
    rows, length = step.source.shape[3], step.source.shape[2]
    row = torch.arange(rows)
    source = torch.zeros_like(step.source)
    source[:, :, row % length, row] = True
    return steps.Step(step.sees, step.mask, source.any(dim=3, keepdim=True), source)


def _pads_visible(plan: Plan) -> Fault:  # noqa: ARG001
    def module(rank: RankModule, plan: Plan) -> None:  # noqa: ARG001
        rank.cache_class = _TakesPads

    return Fault(module=module)


def _repeats_heads(plan: Plan) -> bool:
    return any(
        layer.attention.local_kv_heads > 1 and layer.attention.local_q_heads > layer.attention.local_kv_heads
        for layer in plan.layers
    )


OTHER_OWNERS = of_plan(
    "layers that read another's K/V, with one of its type before that", lambda plan: bool(_owners_and_before(plan))
)
REPEATED_HEADS = of_plan("a rank with several KV heads, each read by several query heads", _repeats_heads)
DOUBLE_KEYS = of_plan(
    "keys that double as values", lambda plan: any(layer.value_source == "k_proj" for layer in plan.layers)
)
PROJECTED_ON_DEVICE = PLE & of_plan(
    "offload.per_layer_projection=device",
    lambda plan: all(part.what != "per_layer_projection" for part in plan.host),
)

DRILLS = (
    Drill("wrong_kv_owner", "graph", "borrowers read the layer before their owner", _edit(_wrong_owner), OTHER_OWNERS),
    Drill("second_writer", "graph", "a borrower writes its owner's slot", _edit(_second_writer), BORROWERS),
    Drill(
        "groups_interleaved",
        "graph",
        "query heads attend to the wrong KV head",
        _edit(_groups_interleaved),
        REPEATED_HEADS,
    ),
    Drill("value_after_k_norm", "graph", "keys double as values after k_norm", _edit(_value_after_k_norm), DOUBLE_KEYS),
    Drill("v_norm_dropped", "graph", "values are not normed", _edit(_no_v_norm), NOTHING),
    Drill(
        "rope_denominator",
        "graph",
        "full layers' frequencies are of the rotary width, not of head_dim",
        _edit(_frequencies(_rotary_denominator)),
        NOTHING,
    ),
    Drill("rope_all_dims", "graph", "full layers turn every channel", _edit(_frequencies(_all_dims)), NOTHING),
    Drill(
        "pad_rows_visible",
        "graph",
        "pad rows are written into the ring",
        _pads_visible,
        PAST_WINDOW,
        (("shapes.kv_layout", "ring"),),
    ),
    Drill(
        "experts_wrong_norm",
        "graph",
        "experts read the residual through another norm",
        _edit(_experts_wrong_norm),
        MOE,
    ),
    Drill("ple_wiring", "graph", "each layer is given its neighbour's embedding", _edit(_ple_layers_shifted), PLE),
    Drill(
        "ple_combine_scale",
        "graph",
        "the sum of both per-layer inputs is not scaled, which a norm hides",
        _edit(_constant("per_layer_input_scale")),
        PROJECTED_ON_DEVICE,
    ),
    Drill(
        "ple_projection_scale",
        "graph",
        "the per-layer projection is not scaled, which a norm hides",
        _edit(_constant("per_layer_model_projection_scale")),
        PROJECTED_ON_DEVICE,
    ),
    Drill(
        "top_k_not_renormalised",
        "graph",
        "the chosen experts' weights do not sum to one, which a norm hides",
        _edit(_not_renormalised),
        MOE,
    ),
    Drill(
        "weight_baked_in",
        "graph",
        "a weight is a constant of the graph, so that no checkpoint's is ever used",
        _edit(_weight_baked_in),
        NOTHING,
    ),
)

"""The reference's text model made rank-local: the same forward pass, its modules replaced as the plan says.

What changes: weights have the shapes that one rank holds; the sum over ranks follows where the plan's ``reduce`` says so
and nowhere else; attention repeats its local K/V heads for its local query heads; all experts run on all tokens; what the
host does is taken out. Everything that a checkpoint holds is a Parameter, buffers too: the SDK's tracers take what is
neither Parameter nor assigned state for a constant. The result is the same module on every rank, but for its weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gemma4cfg.architecture.inventory import EMBEDDING, LM_HEAD, PLE_PROJECTION, PLE_TABLE
from gemma4cfg.plan.records import Layer, Plan
from gemma4cfg.runtime.layers import GatheredHead, ReducedLinear, StaticExperts, parameter
from gemma4cfg.runtime.reference_model import empty_text_model
from sharding.collectives.protocol import Collectives
from sharding.placement import from_json

PLE_COLUMNS = "model.ple_columns"
"""The rank tensor that names the PLE columns of a rank, where gates are cut."""

Parameters = dict[str, nn.Parameter]


def local_model(plan: Plan, collectives: Collectives) -> tuple[nn.Module, nn.Module | None]:
    """The text model and the head of any rank of ``plan``, without memory; their parameters' names, the first under
    ``model.`` and the second under ``lm_head.``, are the keys of a rank file. The head is null where it is the embedding.
    """
    text: Any = empty_text_model(plan)
    unplaced = parameters_of(plan)
    for layer, module in zip(plan.layers, text.layers, strict=True):
        _localise_layer(layer, module, unplaced, collectives)
    _localise_inputs(plan, text, unplaced)
    head = _head(plan, unplaced, collectives)
    for name in list(unplaced):
        _place(text, name.removeprefix("model."), unplaced.pop(name))
    _refuse_leftovers(plan, text)
    return text, head


def parameters_of(plan: Plan) -> Parameters:
    """Local name to parameter, of the shapes that one rank holds: the keys of every rank file."""
    dtype = getattr(torch, plan.dtype)
    found = {
        entry["local_name"]: parameter(from_json(entry["placement"]).local_shape(entry["shape"]), dtype)
        for entry in plan.tensors.values()
        if entry["home"] == "device"
    }
    for name, tensor in plan.rank_tensors.items():
        found[name] = parameter((len(tensor.values[0]),), getattr(torch, tensor.dtype))
    return found


def _localise_layer(layer: Layer, module: Any, unplaced: Parameters, collectives: Collectives) -> None:
    prefix = f"model.layers.{layer.index}."
    attention = module.self_attn
    attention.num_key_value_groups = layer.attention.local_q_heads // layer.attention.local_kv_heads
    for reduce, parent, name in (
        (layer.attention.reduce, attention, "self_attn.o_proj"),
        (layer.mlp.reduce, module.mlp, "mlp.down_proj"),
        (layer.ple is not None and layer.ple.reduce, module, "per_layer_projection"),
    ):
        if reduce:
            linear = ReducedLinear(unplaced.pop(f"{prefix}{name}.weight"), collectives)
            setattr(parent, name.rpartition(".")[2], linear)
    if layer.moe:
        module.experts = StaticExperts(
            unplaced.pop(f"{prefix}experts.gate_up_proj"),
            unplaced.pop(f"{prefix}experts.down_proj"),
            unplaced.pop(f"{prefix}experts.expert_ids", None),
            module.experts.act_fn,
            collectives if layer.moe.reduce else None,
        )


def _localise_inputs(plan: Plan, text: Any, unplaced: Parameters) -> None:
    """Take out what the host looks up, and cut the per-layer inputs to the columns that the rank's gates read."""
    for name in (EMBEDDING, PLE_TABLE):
        if name in plan.tensors:
            table = name.split(".")[-2]
            if plan.tensors[name]["home"] == "device":
                embedding = getattr(text, table)
                embedding.embed_scale = torch.tensor(embedding.scalar_embed_scale)
            else:
                setattr(text, table, None)
    if PLE_PROJECTION not in plan.tensors:
        return
    project: Callable[..., Tensor] = text.project_per_layer_inputs
    if plan.tensors[PLE_PROJECTION]["home"] == "host":
        text.per_layer_model_projection = text.per_layer_projection_norm = None
        project = _already_projected
    if PLE_COLUMNS in unplaced:
        text.ple_columns = unplaced.pop(PLE_COLUMNS)
        whole = project

        def project(inputs_embeds: Tensor, per_layer_inputs: Tensor) -> Tensor:
            return whole(inputs_embeds, per_layer_inputs).index_select(-1, text.ple_columns)

    text.project_per_layer_inputs = project


def _already_projected(inputs_embeds: Tensor, per_layer_inputs: Tensor) -> Tensor:  # noqa: ARG001
    return per_layer_inputs


def _head(plan: Plan, unplaced: Parameters, collectives: Collectives) -> nn.Module | None:
    if LM_HEAD not in unplaced:
        return None
    weight, entry = unplaced.pop(LM_HEAD), plan.tensors[LM_HEAD]
    if plan.tp > 1 and entry["placement"]["dim"] is not None:
        return GatheredHead(weight, entry["shape"][0], collectives)
    head = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    head.weight = weight
    return head


def _place(text: nn.Module, name: str, value: nn.Parameter) -> None:
    """Put a parameter where the reference has a parameter or a buffer of that name."""
    path, _, last = name.rpartition(".")
    try:
        owner = text.get_submodule(path)
    except AttributeError:
        raise LookupError(f"{name}: the reference has no such module") from None
    if last not in owner._parameters and last not in owner._buffers:
        raise LookupError(f"{name}: the reference's {type(owner).__name__} has no such tensor")
    owner._buffers.pop(last, None)
    owner.register_parameter(last, value)


def _refuse_leftovers(plan: Plan, text: nn.Module) -> None:
    """Raises LookupError where the reference has a parameter that the plan lacks, or computes a buffer from nothing that is
    known here: either would run with whatever memory held."""
    known = set(parameters_of(plan))
    foreign = [name for name, _ in text.named_parameters() if f"model.{name}" not in known]
    unmade = [name for name, buffer in text.named_buffers() if buffer.is_meta]
    if foreign or unmade:
        raise LookupError(f"tensors of the reference that the plan does not give: {', '.join(foreign + unmade)}")


def computed_buffers(text: nn.Module) -> Mapping[str, Tensor]:
    """What is in no checkpoint and made anew on every rank: rotary frequencies, and the scale of an embedding that is on the
    device."""
    return dict(text.named_buffers())

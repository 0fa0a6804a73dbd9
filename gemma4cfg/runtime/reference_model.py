"""The reference's own text model, built without memory, for the rank-local model to be made of."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn

from gemma4cfg.architecture.huggingface_writer import text_config
from gemma4cfg.plan.architecture import architecture_of
from gemma4cfg.plan.records import Plan


def empty_text_model(plan: Plan) -> nn.Module:
    """transformers' text model of the plan's sizes: parameters on the meta device, what it computes for itself (rotary
    frequencies) real. Unified checkpoints have a class of their own."""
    unified = "Unified" in plan.provenance["class_name"]
    name = "Gemma4UnifiedText" if unified else "Gemma4Text"
    module = transformers.models.gemma4_unified if unified else transformers.models.gemma4
    config = getattr(transformers, f"{name}Config")(**text_config(architecture_of(plan)))
    config._attn_implementation = plan.layers[0].attention.implementation
    with torch.device("meta"):
        model: Any = getattr(module, f"{name}Model")(config)
    model.rotary_emb = type(model.rotary_emb)(config)
    _fix_order(model)
    built: nn.Module = model.eval()
    return built


def cache_keyword(model: nn.Module) -> str:
    """What the forward pass calls its cache: ``cache`` from transformers 5.20 or so on, ``past_key_values`` before, where
    the new word would vanish in ``**kwargs`` and no K/V would be kept."""
    import inspect

    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def _fix_order(model: Any) -> None:
    """Layer types are sets in transformers: without an order of its own, a graph would depend on PYTHONHASHSEED."""
    model.unique_layer_types = sorted(model.unique_layer_types)
    buffers = model.rotary_emb._buffers
    for name in sorted(buffers):
        buffers[name] = buffers.pop(name)

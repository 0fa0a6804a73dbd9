"""How the model lies on the ranks and the host, whatever the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gemma4cfg.architecture.inventory import LM_HEAD
from gemma4cfg.config.schema import Config, OffloadChoice
from gemma4cfg.plan.bytes import ITEM_BYTES
from gemma4cfg.plan.records import Decision, LayerKv, Shapes
from gemma4cfg.planner.attention import choose_layouts
from gemma4cfg.planner.feedforward import Feedforward, plan_feedforward
from gemma4cfg.planner.heads import HeadLayout
from gemma4cfg.planner.kv import kv_bytes, kv_bytes_per_token, plan_kv
from gemma4cfg.planner.lm_head import plan_lm_head
from gemma4cfg.planner.tensors import PlacedTensor, place_tensors

GATHERED = ("embed_tokens.weight", "embed_tokens_per_layer.weight")
"""Roles of tables of which a token reads one row (but all of an embedding that is the head too)."""


@dataclass(frozen=True, slots=True)
class Division:
    """``weights`` and ``kv``: bytes of one copy on one rank (rank tensors among the weights), ``weights_read`` of them for
    each decoded token, ``kv_per_token`` what a token occupies. ``slots`` has an entry
    for every layer."""

    dtype: str
    shapes: Shapes
    offload: OffloadChoice
    layouts: tuple[HeadLayout, ...]
    feedforward: Feedforward
    split_lm_head: bool
    placed: Mapping[str, PlacedTensor]
    slots: tuple[LayerKv, ...]
    weights: int
    weights_read: int
    kv: int
    kv_per_token: int
    attention_decisions: tuple[Decision, ...]
    lm_head_decision: Decision


class Divider:
    """Divides the model of one configuration; machines that ask for the same types and shapes share the answer."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._known: dict[tuple[str, Shapes, OffloadChoice], Division] = {}

    def __call__(self, dtype: str, shapes: Shapes, offload: OffloadChoice) -> Division:
        """Raises ConfigError where heads or experts cannot lie as asked."""
        key = (dtype, shapes, offload)
        if key not in self._known:
            self._known[key] = _divide(self._config, dtype, shapes, offload)
        return self._known[key]


def _divide(config: Config, dtype: str, shapes: Shapes, offload: OffloadChoice) -> Division:
    model, settings, tp = config.model, config.settings, config.settings.tp
    layouts, attention_decisions = choose_layouts(model, settings.attention, tp, dtype, shapes)
    feedforward = plan_feedforward(model, settings.moe, settings.ple, tp, dtype)
    split_lm_head, lm_head_decision = plan_lm_head(model, settings.lm_head.partition, tp, dtype)
    placed = place_tensors(model, layouts, feedforward, offload, split_lm_head, tp)
    slots = plan_kv(model, layouts, shapes)
    elements = sum(tensor.local_elements for tensor in placed.values())
    gathered = set(GATHERED) - ({"embed_tokens.weight"} if placed[LM_HEAD].home == "unused" else set())
    unread = sum(tensor.local_elements for tensor in placed.values() if tensor.facts.role in gathered)
    rank_tensors = feedforward.rank_tensors.values()
    return Division(
        dtype=dtype,
        shapes=shapes,
        offload=offload,
        layouts=layouts,
        feedforward=feedforward,
        split_lm_head=split_lm_head,
        placed=placed,
        slots=slots,
        weights=elements * ITEM_BYTES[dtype]
        + sum(len(tensor.values[0]) * ITEM_BYTES[tensor.dtype] for tensor in rank_tensors),
        weights_read=(elements - unread) * ITEM_BYTES[dtype],
        kv=kv_bytes(slots, shapes),
        kv_per_token=kv_bytes_per_token(slots, shapes),
        attention_decisions=attention_decisions,
        lm_head_decision=lm_head_decision,
    )

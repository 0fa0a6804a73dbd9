"""What an objective may choose from: every value of each key that is left open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

from gemma4cfg.architecture.model import Architecture
from gemma4cfg.config.catalog import choices, every_choice
from gemma4cfg.config.schema import OffloadChoice, Policy, SearchSpace, Settings
from gemma4cfg.errors import ConfigError

TP_DEGREES = (1, 2, 4, 8, 12, 16, 24, 32)
"""Degrees that are tried where none is given."""


def search_space(
    settings: Settings, tp_is_open: bool, model: Architecture, overrides: Sequence[str]
) -> SearchSpace | None:
    """The space of an objective: keys at ``auto``, and the offload unless a word gives one. None without an objective.

    Raises ConfigError for what only an objective reads where there is none.
    """
    objective = settings.objective
    if objective.minimise is None:
        _refuse_unread(settings, tp_is_open)
        return None
    attention, moe = settings.attention.policy, settings.moe.partition
    lm_head, ple = settings.lm_head.partition, settings.ple.partition
    return SearchSpace(
        degrees=TP_DEGREES if tp_is_open else (settings.tp,),
        policies=get_args(Policy) if attention == "auto" else (attention,),
        moe_partitions=() if model.moe is None else ("intermediate", "experts") if moe == "auto" else (moe,),
        lm_head_partitions=("split", "replicate") if lm_head == "auto" else (lm_head,),
        ple_partitions=() if model.ple is None else ("replicate", "split") if ple == "auto" else (ple,),
        offloads=_offloads(settings.offload, overrides),
    )


def _refuse_unread(settings: Settings, tp_is_open: bool) -> None:
    if tp_is_open:
        raise ConfigError(
            f"tp=auto: by what? Add objective={'|'.join(_objectives())}, or give a number of ranks, e.g. tp=8"
        )
    for key in ("max_usd_per_hour", "min_tokens_per_s"):
        if getattr(settings.objective, key) is not None:
            raise ConfigError(
                f"objective.{key} is never read: there is no objective; e.g. objective={_objectives()[0]}"
            )


def _objectives() -> list[str]:
    return [name for name in choices("objective") if name != "none"]


def _offloads(composed: OffloadChoice, overrides: Sequence[str]) -> Mapping[str, OffloadChoice]:
    """Every choice, the default one first; none where the user's words settle it (an experiment settles all of its keys)."""
    keys = {override.lstrip("+").partition("=")[0].partition(".")[0] for override in overrides}
    if keys & {"offload", "experiment"}:
        return {}
    named = dict(zip(choices("offload"), every_choice(OffloadChoice, "offload"), strict=True))
    return dict(sorted(named.items(), key=lambda item: item[1] != composed))

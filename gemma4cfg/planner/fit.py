"""A plan that does not fit: by how much, and what would fit instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gemma4cfg.config.schema import Config
from gemma4cfg.config.space import TP_DEGREES
from gemma4cfg.config.target import Target
from gemma4cfg.errors import ConfigError, PlanError
from gemma4cfg.findings import Finding
from gemma4cfg.planner.division import Divider
from gemma4cfg.planner.draft import Draft, draft_plan
from gemma4cfg.planner.offload import crossing_bytes


def does_not_fit(config: Config, draft: Draft, asked: bool, dtypes: Mapping[str, str]) -> PlanError:
    """The refusal of ``draft``: its figures, and what would fit. ``asked``: the machine was the user's choice."""
    where = f"does not fit {draft.target.name}" if asked else f"fits no known machine; on {draft.target.name}"
    message = f"{config.model.name} at tp={config.settings.tp} {where}: {figures(draft)}"
    would = _what_would_fit(config, draft, dtypes)
    others = "target=auto with a higher tp" if draft.recipe.name == "vllm" else "recipe=auto, offload=host"
    fix = "; ".join(would) or f"nothing with the rest as it is; try {others}, or a smaller shapes.kv_length"
    finding = Finding("error", "does_not_fit", None, message, fix)
    return PlanError(f"{message}. Would fit: {fix}", (*draft.findings, finding))


def figures(draft: Draft) -> str:
    """Device memory of one rank in GiB, in one line."""
    hbm = draft.budget.hbm_per_rank
    gib = 2**30
    if hbm.weights > hbm.limit:
        return f"weights alone are {hbm.weights / gib:.1f} GiB a core, {hbm.limit / gib:.1f} available"
    parts = {"weights": hbm.weights, "KV": hbm.kv, "scratch": hbm.scratch, "code": hbm.code, "runtime": hbm.runtime}
    shown = ", ".join(f"{name} {value / gib:.2f}" for name, value in parts.items())
    return f"{hbm.total / gib:.1f} GiB a core, {hbm.limit / gib:.1f} available ({shown})"


def _what_would_fit(config: Config, draft: Draft, dtypes: Mapping[str, str]) -> list[str]:
    """The smallest TP that fits on the machine asked for, in its family, anywhere; everything else equal."""
    asked = draft.target
    found: list[str] = []
    tables = replace(config.settings.offload, token_embedding="host", per_layer_embedding="host")
    if tables != config.settings.offload and _first_fit(_Option.of(config, offload=tables), [asked], dtypes):
        crossing = crossing_bytes(config.model, draft.division.dtype)
        found.append(f"the tables on the host, offload=host ({crossing:,} bytes a token cross instead)")
    comparable = [target for target in config.known_targets if (target.family == "g5g") == (asked.family == "g5g")]
    same_family = [target for target in comparable if target.family == asked.family]
    options = [_Option.of(config, tp=tp) for tp in TP_DEGREES]
    for candidates in ([asked], same_family, comparable):
        for option in options:
            if target := _first_fit(option, candidates, dtypes):
                found.append(f"tp={option.config.settings.tp} target={target.name}")
                break
    return list(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class _Option:
    """The configuration with some settings changed, and what divides its model."""

    config: Config
    divide: Divider

    @classmethod
    def of(cls, config: Config, **settings: Any) -> _Option:
        changed = replace(config, settings=replace(config.settings, **settings))
        return cls(changed, Divider(changed))


def _first_fit(option: _Option, candidates: list[Target], dtypes: Mapping[str, str]) -> Target | None:
    too_small = 0
    for target in candidates:
        if target.hbm_bytes_per_core <= too_small or target.cores < option.config.settings.tp:
            continue  # a core no larger than one that was too small
        try:
            if draft_plan(option.config, target, dtypes, option.divide).fits:
                return target
        except (ConfigError, PlanError):
            continue
        too_small = target.hbm_bytes_per_core
    return None

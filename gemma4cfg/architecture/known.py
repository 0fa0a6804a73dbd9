"""A configuration that is almost a published one: told apart before it costs anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from gemma4cfg.architecture.inventory import inventory
from gemma4cfg.architecture.model import Architecture
from gemma4cfg.findings import Finding


def near_known(architecture: Architecture, known: Mapping[str, Architecture]) -> tuple[Finding, ...]:
    """A warning where every tensor is as in a known model (by name) and some constant is not."""
    if architecture in known.values():
        return ()
    for name, other in known.items():
        if inventory(architecture) != inventory(other):
            continue
        differences = _differences(architecture, other)
        shown = "; ".join(f"{key}={mine}, the known value for {name} is {theirs}" for key, mine, theirs in differences)
        wrong_positions = any(key == "max_positions" for key, _, _ in differences)
        hint = "; such a config.json was published for a while (vllm-project/vllm#39914)" if wrong_positions else ""
        return (
            Finding(
                "warning",
                "differs_from_known_model",
                None,
                f"every tensor is as in {name}, but {shown}{hint}",
                f"use model={name}, or a config.json from the publisher",
            ),
        )
    return ()


def _differences(mine: Any, theirs: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """Dotted key, value here, value there, of every field that takes part in equality and differs."""
    if type(mine) is not type(theirs) or not is_dataclass(mine):
        return [] if mine == theirs else [(path, mine, theirs)]
    found = []
    for field in fields(mine):
        if field.compare:
            key = f"{path}.{field.name}" if path else field.name
            found += _differences(getattr(mine, field.name), getattr(theirs, field.name), key)
    return found

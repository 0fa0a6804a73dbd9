"""Hydra's and OmegaConf's complaints in the user's words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import get_type_hints

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from gemma4cfg.config.catalog import choice_hint, choices
from gemma4cfg.config.schema import GROUPS, Settings
from gemma4cfg.errors import ConfigError, did_you_mean


@contextmanager
def translated() -> Iterator[None]:
    """Turns what Hydra raises inside the block into a ConfigError that says what would work."""
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_explain(error)) from error


def _explain(error: Exception) -> str:
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else None
    text = "\n".join(str(part) for part in (error, cause) if part is not None)
    full_key = match[1] if (match := re.search(r"full_key: (\S+)", text)) else None
    if match := re.search(r"Could not find '(\w+)/([^']+)'", text):
        group, name = match.groups()
        return f"{group}={name}: no such choice{choice_hint(group, name)}"
    if match := re.search(r"Interpolation key '([^']+)' not found", text):
        return f"{full_key}: ${{{match[1]}}} refers to no key"
    if match := re.search(r"Could not override '([^']+)'", text):
        return f"unknown key {match[1]}{key_hint(match[1])}"
    if match := re.search(r"Key '(\S+)' is not in struct", text):
        return f"unknown key {full_key or match[1]}{key_hint(full_key or match[1])}"
    return " ".join(line.strip() for line in text.strip().split("\n\n")[0].splitlines() if "object_type" not in line)


def key_hint(key: str) -> str:
    """The nearest known key: by its last part too, as the right key may belong to another node."""
    node, _, last = key.rpartition(".")
    if node in GROUPS:
        return f": {node} has no {last} as chosen; choices of {node}: {', '.join(choices(node))}"
    if node and "did you mean" in (near := did_you_mean(last, _keys())):
        return near
    return did_you_mean(key, _keys())


def _keys() -> list[str]:
    """Every plain key, dotted, and every group."""
    keys = [*GROUPS, "experiment"]
    for name, kind in get_type_hints(Settings).items():
        keys.append(name)
        if is_dataclass(kind):
            keys += [f"{name}.{field.name}" for field in fields(kind)]
    return keys

"""Hydra's and OmegaConf's complaints in the user's words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from gemma4cfg.config.catalog import choices, conf_directory
from gemma4cfg.config.schema import Settings
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
    if match := re.search(r"Could not find '(\w+)/([^']+)'", text):
        group, name = match.groups()
        return f"{group}={name}: no such choice{did_you_mean(name, [*choices(group), 'auto'])}"
    if match := re.search(r"You must specify '(\w+)'", text):
        group = match[1]
        return f"{group} is not chosen; e.g. {group}={choices(group)[0]} (choices: {', '.join(choices(group))})"
    if match := re.search(r"Could not override '([^']+)'", text):
        return f"unknown key {match[1]}{_near_key(match[1])}"
    if match := re.search(r"Key '(\S+)' is not in struct", text):
        full = re.search(r"full_key: (\S+)", text)
        key = full[1] if full else match[1]
        return f"unknown key {key}{_near_key(key)}"
    return _first_paragraph(text)


def _near_key(key: str) -> str:
    """The nearest known key: of the same node, at the top level, or a group."""
    top = [field.name for field in fields(Settings)]
    groups = [path.name for path in conf_directory().iterdir() if path.is_dir()]
    node, _, last = key.rpartition(".")
    nested = {
        f"{field.name}.{inner.name}"
        for field in fields(Settings)
        if (kind := _record_of(field.name)) is not None
        for inner in fields(kind)
    }
    if node and (suggestion := did_you_mean(last, [*top, *groups])) and "did you mean" in suggestion:
        return suggestion
    return did_you_mean(key, [*top, *groups, *nested])


def _record_of(name: str) -> type | None:
    from typing import get_type_hints

    kind = get_type_hints(Settings)[name]
    return kind if hasattr(kind, "__dataclass_fields__") else None


def _first_paragraph(text: str) -> str:
    return text.strip().split("\n\n")[0].replace("\n", ": ", 1)

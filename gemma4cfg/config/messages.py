"""Hydra's and OmegaConf's complaints in the user's words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import get_type_hints

from hydra.errors import HydraException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from gemma4cfg.config.catalog import choice_hint, choices
from gemma4cfg.config.schema import GROUPS, Settings
from gemma4cfg.errors import ConfigError, did_you_mean

_NULL_GROUP = "Config group override must be a string"
_USAGE = (_NULL_GROUP, "Only one of --", "The --")
"""How messages begin that Hydra raises as plain ValueErrors, and that are about the user's words."""


@contextmanager
def translated() -> Iterator[None]:
    """Turns what Hydra raises inside the block into a ConfigError that says what would work."""
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_explain(error)) from error
    except ValueError as error:
        if not str(error).startswith(_USAGE):
            raise
        raise ConfigError(_explain(error)) from error


def _explain(error: Exception) -> str:
    if isinstance(error, OverrideParseException):
        return _unreadable(error)
    if str(error).startswith(_NULL_GROUP):
        groups = ", ".join((*GROUPS, "shapes", "offload", "objective", "experiment"))
        return f"a group ({groups}) takes the name of a choice ({choices('model')[0]}), not null or a number"
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else None
    text = "\n".join(str(part) for part in (error, cause) if part is not None)
    full_key = match[1] if (match := re.search(r"full_key: (\S+)", text)) else None
    if match := re.search(r"Could not (?:find|load) '((?:hydra/)?\w+)/([^']*)'", text):
        group, name = match.groups()
        if group.startswith("hydra/"):
            return f"{group}={name}: no such choice; choices: {', '.join(getattr(error, 'options', None) or ['none'])}"
        return f"{group}={name}: no such choice{choice_hint(group, name)}"
    if match := re.search(r"Interpolation key '([^']+)' not found", text):
        return f"{full_key}: ${{{match[1]}}} refers to no key"
    if match := re.search(r"Missing mandatory value: (\S+)", text):
        return f"{match[1]}=???: a value is missing; give one, or leave the key out for the default"
    if match := re.search(r"Could not override ''", text):
        return "an override without a key; write key=value"
    if match := re.search(r"Could not override '(hydra/\w+)@", text):
        return chosen_too_late(match[1], "…")
    if match := re.search(r"Could not override '([^']+)'", text):
        return f"unknown key {match[1]}{key_hint(match[1])}"
    if match := re.search(r"Key '(\S+)' is not in struct", text):
        return f"unknown key {full_key or match[1]}{key_hint(full_key or match[1])}"
    lines = [line.strip() for line in text.strip().split("\n\n")[0].splitlines()]
    told = " ".join(line for line in lines if "_type=" not in line and "full_key:" not in line)
    return f"{full_key}: {told}" if full_key and full_key not in told else told


def chosen_too_late(group: str, choice: str) -> str:
    """Why a file of a group may not choose Hydra's launcher or sweeper."""
    return (
        f"{group}={choice} stands in a file of the configuration, which is read when a sweep has its own already; say it "
        f"on the command line: {group}={choice}"
    )


def _unreadable(error: OverrideParseException) -> str:
    """An override that is not one, with what the parser stumbled over where it says that in words."""
    told = [line.strip() for line in str(error).splitlines()]
    told = [line for line in told if line and line != "^" and not line.startswith(("See ", "Error parsing", "Lexer"))]
    why = f" ({'; '.join(told)})" if told else ""
    return (
        f"{error.override}: not an override{why}; write key=value without spaces around =, and quote values with special "
        "characters twice, e.g. 'output=\"a: b\"'"
    )


def key_hint(key: str) -> str:
    """The nearest known key: by its last part too, as the right key may belong to another node."""
    node, _, last = key.rpartition(".")
    if node == "attention.layers":
        return f"; selectors are given together, e.g. attention.layers={{{last}: replicate}}"
    group = key.partition(".")[0]
    if node and group in GROUPS:
        named = ", ".join(choices(group))
        swept = f"where -m sweeps over {group}, which is composed as {group}=auto first, write ++{key}"
        return f": {node} has no {last} as {group} is chosen; choices of {group}: {named}; {swept}"
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

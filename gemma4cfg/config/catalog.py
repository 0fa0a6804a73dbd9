"""The files under ``conf/``, read without composing: candidates for ``auto``, published models to name one by, and the
facts that machines and releases name (``conf/chip``, ``conf/stack``, ``conf/failures``, ``conf/operators``)."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from gemma4cfg.decode import decode
from gemma4cfg.errors import ConfigError, did_you_mean

T = TypeVar("T")

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml: ten times faster


@functools.cache
def conf_directory() -> Path:
    """``conf/`` of a checkout, or ``gemma4cfg/conf`` of an installed wheel."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "conf"
    return installed if installed.is_dir() else package.parent / "conf"


def choices(group: str) -> list[str]:
    """Names of a group's choices, ``auto`` left out, sorted."""
    return sorted(path.stem for path in (conf_directory() / group).glob("*.yaml") if path.stem != "auto")


def choice_hint(group: str, name: str) -> str:
    """What to take instead of a choice that is none: the nearest, and all of them."""
    near = did_you_mean(name, choices(group))
    near = near if "did you mean" in near else ";"
    return f"{near} choices: {', '.join(choices(group))}"


@functools.cache
def read_choice(group: str, name: str) -> dict[str, Any]:
    """The contents of one file of a group. Raises ConfigError for a name that is none."""
    path = conf_directory() / group / f"{name}.yaml"
    if not path.is_file():
        raise ConfigError(f"{group}={name}: no such choice{choice_hint(group, name)}")
    data: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)
    return data


def decode_choice(kind: type[T], group: str, data: Mapping[str, Any]) -> T:
    """``data`` as a record, with the facts that it names in their place."""
    return decode(kind, _with_facts(data), group)


def _with_facts(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """A machine names its chip, a release its stack, a stack its published failures and the operators that fail; each is a
    file of that folder."""
    for key in ("chip", "stack", "failures", "operators"):
        if isinstance(name := data.get(key), str):
            data = {**data, key: _with_facts(read_choice(key, name))}
    return data


@functools.cache
def every_choice(kind: type[T], group: str) -> tuple[T, ...]:
    """Every choice of a group as a record, ``auto`` left out, by name."""
    return tuple(decode_choice(kind, group, read_choice(group, name)) for name in choices(group))

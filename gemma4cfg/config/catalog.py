"""The choices under ``conf/``, read without composing: candidates for ``auto``, and the published models to name one by."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import yaml

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


@functools.cache
def read_choice(group: str, name: str) -> dict[str, Any]:
    """A choice of a group as Hydra composes it, at a fraction of the cost.

    Of the defaults list it knows the one form our files use: ``/group@key: choice`` puts that choice under ``key``.
    """
    text = (conf_directory() / group / f"{name}.yaml").read_text(encoding="utf-8")
    data: dict[str, Any] = yaml.load(text, Loader=_LOADER) or {}
    result: dict[str, Any] = {}
    for entry in data.pop("defaults", ()):
        if entry != "_self_":
            ((target, choice),) = entry.items()
            included, _, key = target.lstrip("/").partition("@")
            result[key] = read_choice(included, choice)
    return result | data

"""Records to plain data and back, canonical JSON, and the plan's three identities."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from gemma4cfg.decode import decode
from gemma4cfg.errors import ConfigError
from gemma4cfg.plan.records import Plan

OUTSIDE_PLAN_ID = ("plan_id", "provenance", "findings", "estimate", "budget", "decisions")
"""Keys that may change without anything having to be rebuilt."""


def to_plain(value: Any) -> Any:
    """Dataclasses as dicts, tuples as lists, closed-list members as their identifiers."""
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    return {name: to_plain(getattr(value, name)) for name in _field_names(value.__class__)}


@functools.cache
def _field_names(kind: Any) -> tuple[str, ...]:
    if not is_dataclass(kind):
        raise TypeError(f"{kind.__name__} is no record")
    return tuple(field.name for field in fields(kind))


def canonical(plain: Any) -> str:
    """Canonical JSON: sorted keys, no spaces, non-ASCII as it is."""
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest(plain: Any) -> str:
    """SHA-256 of the canonical JSON, in hex."""
    return hashlib.sha256(canonical(plain).encode()).hexdigest()


def placement_id(plain: Mapping[str, Any]) -> str:
    """Identity of rank files: what lies where, in which type."""
    return digest({key: plain[key] for key in ("tp", "dtype", "tensors", "rank_tensors")})


def plan_id(plain: Mapping[str, Any]) -> str:
    """Identity of the whole plan, figures and words aside."""
    return digest({key: value for key, value in plain.items() if key not in OUTSIDE_PLAN_ID})


def plan_from_json(data: Mapping[str, Any]) -> Plan:
    """A plan from plain data. Raises ConfigError for a foreign format, a missing or unknown key, or ids that do not hold."""
    if data.get("format_version") != "1.0":
        raise ConfigError(f"plan format_version={data.get('format_version')}: this version reads 1.0")
    plan = decode(Plan, data, "plan")
    for key, identity in (("placement_id", placement_id), ("plan_id", plan_id)):
        if (found := data[key]) != (expected := identity(data)):
            raise ConfigError(
                f"the plan was changed after it was made: its {key} is {found}, its contents give {expected}"
            )
    return plan

"""Records to plain data, canonical JSON, and the plan's identities."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

OUTSIDE_PLAN_ID = ("plan_id", "provenance", "findings", "estimate", "budget", "decisions")
"""Keys that may change without anything having to be rebuilt."""


def to_plain(value: Any, known: dict[int, Any] | None = None) -> Any:
    """Dataclasses as dicts, tuples as lists, closed-list members as their identifiers.

    A record or tuple met again becomes the same plain object again: a plan's layers share most of their parts. ``known``
    carries them by identity from call to call, while the records live.
    """
    if value is None or value.__class__ in _PLAIN:
        return value
    known = {} if known is None else known
    if isinstance(value, (dict, list)):  # may be gone, and their identity another's, before the records are
        return _to_plain(value, known)
    plain = known.get(id(value))
    if plain is None:
        plain = known[id(value)] = _to_plain(value, known)
    return plain


_PLAIN = frozenset((str, int, float, bool))


def _to_plain(value: Any, known: dict[int, Any]) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (list, tuple)):
        return [to_plain(item, known) for item in value]
    if isinstance(value, Mapping):
        return {key: to_plain(item, known) for key, item in value.items()}
    return {name: to_plain(getattr(value, name), known) for name in _field_names(value.__class__)}


@functools.cache
def _field_names(kind: Any) -> tuple[str, ...]:
    if not is_dataclass(kind):
        raise TypeError(f"{kind.__name__} is no record")
    return tuple(field.name for field in fields(kind))


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, check_circular=False)


def canonical(plain: Any) -> str:
    """Canonical JSON: sorted keys, no spaces, non-ASCII as it is."""
    return _ENCODER.encode(plain)


def readable(plain: Mapping[str, Any]) -> str:
    """JSON for a file: a line for every entry of every top-level value, each encoded at the C encoder's speed."""
    lines = [f'"{key}": {_entries(plain[key])}' for key in sorted(plain)]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _entries(value: Any) -> str:
    if isinstance(value, Mapping) and value:
        return "{\n " + ",\n ".join(f"{canonical(key)}: {canonical(value[key])}" for key in sorted(value)) + "\n}"
    if isinstance(value, list) and value:
        return "[\n " + ",\n ".join(map(canonical, value)) + "\n]"
    return canonical(value)


def digest(plain: Any) -> str:
    """SHA-256 of the canonical JSON, in hex."""
    return hashlib.sha256(canonical(plain).encode()).hexdigest()


def identities(plain: Mapping[str, Any]) -> tuple[str, str]:
    """``placement_id`` (of rank files: what lies where, in which type) and ``plan_id`` (of the whole plan, figures and words
    aside). A plan's large parts are encoded once for both."""
    encoded = {key: canonical(value) for key, value in plain.items() if key not in OUTSIDE_PLAN_ID}
    placement = digest_of({key: encoded[key] for key in ("tp", "dtype", "tensors", "rank_tensors")})
    return placement, digest_of({**encoded, "placement_id": f'"{placement}"'})


def digest_of(encoded: Mapping[str, str]) -> str:
    """SHA-256 of the canonical JSON of an object whose values are canonical JSON already."""
    body = ",".join(f'"{key}":{encoded[key]}' for key in sorted(encoded))
    return hashlib.sha256(f"{{{body}}}".encode()).hexdigest()

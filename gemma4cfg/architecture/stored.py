"""A checkpoint as its headers say it is, and what an audit finds: records that ``checkpoint`` and ``audit`` fill."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gemma4cfg.findings import Finding


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """``dtype`` as torch spells it (``bfloat16``); ``file`` is the part that holds it."""

    shape: tuple[int, ...]
    dtype: str
    file: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """``tensors`` by the names in the files. ``header_hash`` is SHA-256 over all parts' headers. ``problems`` are what
    is wrong with the files themselves (absent or truncated parts, an index that disagrees with them).
    ``head_equals_embedding`` is null where there is no head of its own to compare, and ``head_comparison`` says how
    much of it was compared."""

    location: str
    config: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]
    header_hash: str
    problems: tuple[Finding, ...]
    head_equals_embedding: bool | None
    head_comparison: str


@dataclass(frozen=True, slots=True)
class Audit:
    """``dtypes``: canonical name to dtype as stored, for stored tensors of the inventory. ``names`` maps what stands in the
    files (a prefix, or the head's name) to what is canonical. ``other_modules``: module to
    ``{"tensors": n, "elements": n}``."""

    findings: tuple[Finding, ...]
    dtypes: dict[str, str]
    names: dict[str, str]
    other_modules: dict[str, dict[str, int]]

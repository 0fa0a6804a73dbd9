"""Paths of a plan against patterns."""

from __future__ import annotations

from collections.abc import Sequence


def under(path: Sequence[str], patterns: Sequence[Sequence[str]]) -> bool:
    """Whether ``path`` lies at or under one of ``patterns``."""
    return any(matches(path, pattern) for pattern in patterns)


def matches(path: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether ``path`` lies at or under ``pattern``, in which ``*`` is any part."""
    return len(path) >= len(pattern) and all(known in ("*", part) for part, known in zip(path, pattern, strict=False))

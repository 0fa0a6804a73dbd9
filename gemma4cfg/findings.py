"""A finding: something about a plan that its reader should know, with what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True, slots=True)
class Finding:
    """``code`` is a stable identifier, ``layer`` a layer index or null, ``fix`` what would work (empty where nothing need)."""

    severity: Severity
    code: str
    layer: int | None
    message: str
    fix: str


def errors_of(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(finding for finding in findings if finding.severity == "error")

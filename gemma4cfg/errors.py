"""The errors that are a user's to mend. Anything else that is raised is a defect of the program."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from gemma4cfg.findings import Finding


class UserError(Exception):
    """A configuration, an input or a fit that is wrong (exit code 2).

    ``findings`` are what ``result.json`` records; each says what is wrong and what would work.
    """

    code = "plan"

    def __init__(self, message: str, findings: Sequence[Finding] = ()) -> None:
        super().__init__(message)
        self.findings = tuple(findings)

    @property
    def recorded(self) -> tuple[Finding, ...]:
        """The findings, or the message as one; an error is always among them."""
        return self.findings or (Finding("error", self.code, None, str(self), ""),)


class ConfigError(UserError):
    """A key, a value or a combination of values that cannot be: found before anything is planned."""

    code = "config"


class PlanError(UserError):
    """A configuration that reads well but has no plan: it does not fit, or the checkpoint contradicts it."""


class DisprovedError(UserError):
    """A plan that was run and is not right (exit code 3)."""

    code = "disproved"


def did_you_mean(word: str, known: Iterable[str], most: int = 12) -> str:
    """``"; did you mean 'tp'?"`` when a known word is near ``word`` in any case, else the known words, at most so many."""
    known = sorted(set(known))
    by_lower = {entry.lower(): entry for entry in known}
    near = get_close_matches(word.lower(), by_lower, n=1, cutoff=0.7)
    if near:
        return f"; did you mean '{by_lower[near[0]]}'?"
    shown = ", ".join(known[:most]) + (", …" if len(known) > most else "")
    return f"; known: {shown}" if known else ""

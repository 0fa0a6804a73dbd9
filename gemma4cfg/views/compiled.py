"""What was compiled, on the terminal, from its JSON form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

_STYLE = {"error": "bold red", "warning": "yellow", "info": "dim"}


def show_compiled(unit: Mapping[str, Any], console: Console) -> None:
    """Print one unit: whether it was made or found, its key, and what the graph check found in it."""
    took = f" in {unit['seconds']:.1f} s" if unit["status"] == "built" else ""
    console.print(f"{unit['name']}  {unit['status']}{took}, key {unit['key'][:12]}", soft_wrap=True)
    for difference in unit["differs"]:
        console.print(f"  not the nearest artifact: {escape(difference)}", soft_wrap=True)
    for finding in unit["findings"]:
        layer = "" if finding["layer"] is None else f" layer {finding['layer']},"
        style = _STYLE[finding["severity"]]
        console.print(f"  [{style}]{finding['severity']}[/]{layer} {escape(finding['message'])}", soft_wrap=True)


def show_not_done(sentences: Sequence[str], console: Console) -> None:
    """Print what was left out."""
    for sentence in sentences:
        console.print(f"not done: {escape(sentence)}", soft_wrap=True)

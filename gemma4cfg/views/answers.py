"""Generated text on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape


def show_piece(piece: str, console: Console) -> None:
    """Print what is new of an answer, as it is: no markup, no wrapping."""
    console.out(piece, end="", highlight=False)
    console.file.flush()


def show_answers(report: Mapping[str, Any], console: Console) -> None:
    """Print what ``generation.json`` says: the texts where there are several, how each ended, and how long it took."""
    answers, seconds = report["answers"], report["seconds"]
    if len(answers) > 1:
        for answer in answers:
            console.print(f"\n[bold]{escape(answer['prompt'])}[/]", soft_wrap=True)
            show_piece(f"{answer['text']}\n", console)
    ends = ", ".join(f"{len(answer['token_ids'])} tokens ({answer['finish_reason']})" for answer in answers)
    spent = ", ".join(f"{name.replace('_', ' ')} {value:.1f} s" for name, value in seconds.items())
    ranks = "1 CPU rank" if report["tp"] == 1 else f"{report['tp']} CPU ranks"
    console.print(f"\n{ends}; {report['dtype']} on {ranks}: {spent}", style="dim", soft_wrap=True)

"""Where output goes: a terminal at its own width, anything else at one width, whatever the encoding."""

from __future__ import annotations

import io
import sys

from rich.console import Console

PIPE_WIDTH = 160
"""Columns where standard output is no terminal."""


def output_console(quiet: bool = False) -> Console:
    """Standard output; with ``quiet`` nothing is printed."""
    return Console(highlight=False, quiet=quiet, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def error_console() -> Console:
    """Standard error, for sentences that are not to be broken."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def escape_unprintable() -> None:
    """Characters that a terminal or pipe cannot take are written as escapes, not refused."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")

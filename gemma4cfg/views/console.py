"""Where output goes."""

from __future__ import annotations

import sys

from rich.console import Console

PIPE_WIDTH = 160
"""Columns where standard output is no terminal."""


def standard_console(quiet: bool = False) -> Console:
    """Standard output; with ``quiet`` nothing is printed."""
    return Console(highlight=False, quiet=quiet, width=None if sys.stdout.isatty() else PIPE_WIDTH)

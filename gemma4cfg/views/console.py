"""Where output goes: a terminal at its own width, anything else at one width, whatever the encoding."""

from __future__ import annotations

import io
import os
import sys
from typing import Any

from rich.console import Console

PIPE_WIDTH = 160
"""Columns where standard output is no terminal."""


def output_console(quiet: bool = False) -> Console:
    """Standard output; with ``quiet`` nothing is printed."""
    return Console(highlight=False, quiet=quiet, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def error_console() -> Console:
    """Standard error, for sentences that are not to be broken."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


class _PatientFile(io.FileIO):
    """A pipe whose reader may leave, as ``head`` does: the rest goes nowhere, and nobody is told."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return super().write(data)


def forgive_streams() -> None:
    """Of standard output and error: characters that a terminal or pipe cannot take are written as escapes, and what a reader
    that left would not take is dropped, so that a run comes to its end."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__") and isinstance(stream, io.TextIOWrapper):
            file = io.BufferedWriter(_PatientFile(stream.fileno(), "wb", closefd=False))
            lines = stream.line_buffering
            setattr(sys, name, io.TextIOWrapper(file, stream.encoding, "backslashreplace", line_buffering=lines))

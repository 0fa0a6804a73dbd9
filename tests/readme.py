"""The README's shown runs. A block of output follows a comment that says how it came about:

    <!-- shows: model=26b-a4b tp=8; lines 1-9 memory -->

that is, the arguments of ``python -m gemma4cfg`` (of another module: ``shows gemma4cfg.diff: …``), then which lines of its
output stand below: runs of numbers, or a word for the line that starts with it and the one after. ``python -m tests.readme``
writes the blocks anew.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"

_BLOCK = re.compile(
    r"<!-- shows(?: (?P<module>\S+))?: (?P<arguments>.*?); lines (?P<lines>.*?) -->\n\n?```\n(?P<body>.*?)```\n",
    re.DOTALL,
)


def shown(text: str) -> Iterator[re.Match[str]]:
    """The blocks of README text."""
    yield from _BLOCK.finditer(text)


def block(match: re.Match[str]) -> str:
    """What is to stand in a block: the command, and the chosen lines of what it prints."""
    module, arguments, lines = match["module"] or "gemma4cfg", match["arguments"], match["lines"]
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "tests").symlink_to(README.parent / "tests")  # a checkout's, for its checkpoints
        command = [sys.executable, "-m", module, *shlex.split(arguments)]
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    output = (done.stdout + done.stderr).splitlines()
    return "\n".join([f"$ python -m {module} {arguments}", *(line.rstrip() for line in _chosen(output, lines))]) + "\n"


def rewritten(text: str) -> str:
    """README text with every block as it is now."""

    def renew(match: re.Match[str]) -> str:
        start, end = match.start("body") - match.start(), match.end("body") - match.start()
        return match[0][:start] + block(match) + match[0][end:]

    return _BLOCK.sub(renew, text)


def _chosen(output: list[str], lines: str) -> Iterator[str]:
    for choice in lines.split():
        if re.fullmatch(r"\d+(-\d+)?", choice):
            first, _, last = choice.partition("-")
            yield from output[int(first) - 1 : int(last or first)]
        else:
            at = next(number for number, line in enumerate(output) if line.startswith(choice))
            yield from ("…", *output[at : at + 2])


if __name__ == "__main__":
    README.write_text(rewritten(README.read_text(encoding="utf-8")), encoding="utf-8")

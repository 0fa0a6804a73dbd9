"""``python -m gemma4cfg.verify VERIFY.json …``: the runs of a matrix as one page of Markdown."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from gemma4cfg.views.matrix import matrix_page


def main(arguments: list[str] | None = None) -> int:
    """0; 2 where a file is not a finished matrix."""
    parser = argparse.ArgumentParser(
        prog="python -m gemma4cfg.verify", description="The results of task=verify verify.matrix=… as Markdown."
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="VERIFY.json", help="one of each model")
    given = parser.parse_args(arguments)
    runs = []
    for path in given.runs:
        try:
            runs.append(json.loads(path.read_text(encoding="utf-8")))
            matrix_page(runs[-1:])
        except (OSError, ValueError, LookupError, TypeError) as error:
            print(f"error {path}: no finished run of task=verify verify.matrix=full: {error}", file=sys.stderr)
            return 2
    print(matrix_page(runs), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""``python -m gemma4cfg.verify VERIFY.json …``: the runs of a matrix, and others, as one page of Markdown."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from gemma4cfg.views.matrix import proof_page


def main(arguments: list[str] | None = None) -> int:
    """0; 2 where a file is no run of ``task=verify``, or a matrix that is not finished, or none is of a matrix."""
    parser = argparse.ArgumentParser(
        prog="python -m gemma4cfg.verify", description="The results of task=verify verify.matrix=… as Markdown."
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="VERIFY.json", help="of a matrix, or of a single plan")
    given = parser.parse_args(arguments)
    runs = []
    for path in given.runs:
        try:
            runs.append(_run(path))
        except (OSError, ValueError) as error:
            print(f"error {path}: no finished run of task=verify: {error}", file=sys.stderr)
            return 2
    if not any("cases" in run for run in runs):
        print("error none of them is of verify.matrix=full, which the page is about", file=sys.stderr)
        return 2
    print(proof_page(runs), end="")
    return 0


def _run(path: Path) -> dict[str, Any]:
    run = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(run, dict) or not ("checks" in run or run.get("cases")):
        raise ValueError("neither a plan's checks nor a matrix's cases")
    if "cases" in run and len(run["cases"]) != run["of"]:
        raise ValueError(f"{len(run['cases'])} of {run['of']} cases")
    return run


if __name__ == "__main__":
    sys.exit(main())

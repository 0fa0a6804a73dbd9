"""``python -m gemma4cfg.verify VERIFY.json …``: the runs of a matrix and others, or of drills, as one page of Markdown."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from gemma4cfg.views.console import forgive_streams
from gemma4cfg.views.drills import drills_page
from gemma4cfg.views.matrix import proof_page


def main(arguments: list[str] | None = None) -> int:
    """0; 2 where a file is no run of ``task=verify``, or a matrix that is not finished, or they make no page together."""
    parser = argparse.ArgumentParser(
        prog="python -m gemma4cfg.verify",
        description="The results of task=verify with verify.matrix=… or verify.inject=all as Markdown.",
    )
    parser.add_argument(
        "runs", type=Path, nargs="+", metavar="VERIFY.json", help="of a matrix, of a single plan, or of drills"
    )
    given = parser.parse_args(arguments)
    runs = []
    for path in given.runs:
        try:
            runs.append(_run(path))
        except (OSError, ValueError) as error:
            print(f"error {path}: no finished run of task=verify: {error}", file=sys.stderr)
            return 2
    drills = ["drills" in run for run in runs]
    if all(drills):
        print(drills_page(runs), end="")
    elif any("cases" in run for run in runs) and not any(drills):
        print(proof_page(runs), end="")
    else:
        print(
            "error a page is of verify.matrix=full and single plans, or of verify.inject=all alone; give files of one kind",
            file=sys.stderr,
        )
        return 2
    return 0


def _run(path: Path) -> dict[str, Any]:
    run = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(run, dict) or not ("checks" in run or run.get("cases") or run.get("drills")):
        raise ValueError("neither a plan's checks nor a matrix's cases nor drills")
    if "cases" in run and len(run["cases"]) != run["of"]:
        raise ValueError(f"{len(run['cases'])} of {run['of']} cases")
    return run


if __name__ == "__main__":
    forgive_streams()
    sys.exit(main())

"""``python -m gemma4cfg.diff A B``: what changes from one plan to another, and what of it has to be rebuilt.

Exit codes are those of diff(1): 0 the same, 1 different, 2 trouble.
"""

from __future__ import annotations

import gc

gc.disable()  # a comparison drops nothing before it ends, see __main__

import argparse  # noqa: E402
import json  # noqa: E402
import sys  # noqa: E402
import traceback  # noqa: E402
from collections.abc import Sequence  # noqa: E402

from gemma4cfg.difference.plans import diff_plans  # noqa: E402
from gemma4cfg.errors import UserError  # noqa: E402
from gemma4cfg.tasks.sides import plan_of  # noqa: E402
from gemma4cfg.views.console import error_console, forgive_streams, output_console  # noqa: E402
from gemma4cfg.views.diff.show import show_diff, total  # noqa: E402
from gemma4cfg.views.terminal import show_refusal  # noqa: E402

SAME, DIFFERENT, TROUBLE = 0, 1, 2


def main() -> None:
    """Run from ``sys.argv`` and exit; a defect is trouble too, with its traceback."""
    forgive_streams()
    try:
        code = run(sys.argv[1:])
    except UserError as error:
        show_refusal(error, error_console())
        code = TROUBLE
    except Exception:
        traceback.print_exc()
        code = TROUBLE
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Compare, print, and return the exit code. Raises UserError where a side has no plan."""
    asked = _parser().parse_args(arguments)
    diff = diff_plans(plan_of(asked.old), plan_of(asked.new))
    plain = diff.to_json()
    if asked.json:
        print(json.dumps(plain, indent=1, ensure_ascii=False))
    else:
        show_diff(plain, output_console(), every_tensor=asked.tensors)
    if asked.expect == "same":
        told = (
            "[green]as expected[/]: the same"
            if diff.same
            else f"[bold red]expected the same plan[/], but {total(plain)}"
        )
        error_console().print(told)
    return SAME if diff.same else DIFFERENT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m gemma4cfg.diff",
        description="What changes from one plan to another, and what has to be rebuilt. "
        "Exit codes: 0 the same, 1 different, 2 trouble.",
    )
    side = "a plan.json, the directory of a run or of a sweep's job, or overrides in quotes: 'model=31b tp=4'"
    parser.add_argument("old", metavar="A", help=side)
    parser.add_argument("new", metavar="B", help="the same")
    parser.add_argument("--json", action="store_true", help="the difference as JSON, from which the text is made")
    parser.add_argument("--tensors", action="store_true", help="every tensor whose placement changed, not by role")
    parser.add_argument("--expect", choices=["same"], help="say on standard error whether that is so, for a CI")
    return parser


if __name__ == "__main__":
    main()

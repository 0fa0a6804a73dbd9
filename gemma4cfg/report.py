"""``python -m gemma4cfg.report PATH``: a plan, a difference or a sweep as one self-contained page."""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from gemma4cfg.decode import decode
from gemma4cfg.difference.plans import diff_plans
from gemma4cfg.errors import ConfigError, UserError
from gemma4cfg.sweeps.files import SWEEP_JSON
from gemma4cfg.sweeps.row import Row
from gemma4cfg.tasks.files import write_text
from gemma4cfg.tasks.sides import plan_of
from gemma4cfg.views.console import error_console, forgive_streams
from gemma4cfg.views.report.pages import diff_page, map_picture, plan_page, sweep_page
from gemma4cfg.views.terminal import show_refusal

REPORT_FILE = "report.html"


def main() -> None:
    """Run from ``sys.argv`` and exit: 0 written, 2 a user's mistake, 1 a defect with its traceback."""
    forgive_streams()
    try:
        print(run(sys.argv[1:]))
        code = 0
    except UserError as error:
        show_refusal(error, error_console())
        code = 2
    except Exception:
        traceback.print_exc()
        code = 1
    sys.exit(code)


def run(arguments: Sequence[str]) -> Path:
    """Write the page and return where it is.

    Raises UserError where there is nothing to show of what was named, or it has no picture.
    """
    asked = _parser().parse_args(arguments)
    picture = asked.output is not None and asked.output.suffix == ".svg"
    if asked.diff is not None and asked.path is not None:
        raise ConfigError(f"{asked.path}: --diff A B names both plans; either that or one PATH")
    if asked.diff is not None:
        if picture:
            raise ConfigError(f"{asked.output}: only a plan has a picture of its map; e.g. -o report.html")
        old, new = map(plan_of, asked.diff)
        text, beside = diff_page(diff_plans(old, new).to_json(), old.to_json(), new.to_json()), Path()
    elif asked.path is None:
        raise ConfigError("nothing to show: name a plan.json, the directory of a run or of a sweep, or --diff A B")
    elif (sweep := _sweep_file(Path(asked.path))) is not None:
        if picture:
            raise ConfigError(f"{asked.output}: only a plan has a picture of its map; name one of the sweep's jobs")
        text, beside = sweep_page(_jobs(sweep)), sweep.parent
    else:
        plan = plan_of(asked.path).to_json()
        text, beside = map_picture(plan) if picture else plan_page(plan), _directory(Path(asked.path))
    output: Path = asked.output or beside / REPORT_FILE
    if output.is_dir():
        raise ConfigError(f"{output}: a directory; name a file in it, e.g. {output / REPORT_FILE}")
    write_text(output, text)
    return output


def _sweep_file(path: Path) -> Path | None:
    """The rows of a sweep, where that is what ``path`` names: a directory that holds them and no plan, or the file."""
    if (path / SWEEP_JSON).is_file():
        return path / SWEEP_JSON
    return path if path.name == SWEEP_JSON and path.is_file() else None


def _jobs(path: Path) -> list[dict[str, Any]]:
    """Rows in JSON form, each of the right form."""
    try:
        jobs: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["jobs"]
        for job in jobs:
            decode(Row, job, f"job {job['job']}")
            missing = [field.name for field in fields(Row) if field.name not in job]
            if missing:
                raise ConfigError(f"job {job['job']} has no {', '.join(missing)}")
    except (ValueError, KeyError, TypeError, ConfigError) as error:
        raise ConfigError(f"{path}: no sweep ({error}); expected the {SWEEP_JSON} that -m writes") from error
    return jobs


def _directory(path: Path) -> Path:
    """Where the page of a plan goes: beside it; into the current directory for overrides."""
    return path if path.is_dir() else path.parent if path.is_file() else Path()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m gemma4cfg.report",
        description="One self-contained page of a plan, a difference or a sweep. Exit codes: 0 written, 2 trouble.",
    )
    side = "a plan.json, the directory of a run or of a sweep's job, or overrides in quotes: 'model=31b tp=4'"
    parser.add_argument("path", nargs="?", metavar="PATH", help=f"{side}; or the directory of a sweep")
    parser.add_argument("--diff", nargs=2, metavar=("A", "B"), help="the difference of two such plans")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help=f"instead of {REPORT_FILE} beside the input; .svg: the map alone",
    )
    return parser


if __name__ == "__main__":
    main()

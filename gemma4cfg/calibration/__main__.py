"""``python -m gemma4cfg.calibration [--add FILE] [--write DIRECTORY]``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import get_args

from gemma4cfg.calibration.families import family_page
from gemma4cfg.calibration.report import calibration_page
from gemma4cfg.calibration.rows import not_expressible, published, read_rows
from gemma4cfg.calibration.table import compare
from gemma4cfg.config.target import Family
from gemma4cfg.errors import UserError
from gemma4cfg.views.console import forgive_streams


def pages(more: Path | None = None) -> dict[str, str]:
    """File name to contents of every generated page; ``more``: a CSV of further rows."""
    compared = compare((*published(), *(read_rows(more) if more else ())))
    families = {f"{family}.md": family_page(family, compared) for family in get_args(Family)}
    return {"calibration.md": calibration_page(compared, not_expressible()), **families}


def main(arguments: list[str] | None = None) -> int:
    """0; 2 where a row is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m gemma4cfg.calibration",
        description="Published measurements beside what a plan predicts of them.",
    )
    parser.add_argument(
        "--add", type=Path, metavar="FILE", help="CSV of further measurements, in the form of conf/calibration.csv"
    )
    parser.add_argument("--write", type=Path, metavar="DIRECTORY", help="write the pages of the docs there")
    given = parser.parse_args(arguments)
    try:
        if given.write:
            given.write.mkdir(parents=True, exist_ok=True)
            for name, text in pages(given.add).items():
                (given.write / name).write_text(text, encoding="utf-8")
        else:
            rows = (*published(), *(read_rows(given.add) if given.add else ()))
            print(calibration_page(compare(rows), not_expressible()), end="")
    except UserError as error:
        print(f"error {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    forgive_streams()
    sys.exit(main())

"""``python -m tests.diff [--write]``: compare the golden differences, or write them anew."""

from __future__ import annotations

import argparse
import sys
from difflib import unified_diff

from tests.diff import CASES, DIRECTORY, compared, stored, strangers, text_of


def main() -> int:
    """1 where goldens are compared and one differs, is missing or is left over."""
    parser = argparse.ArgumentParser(prog="python -m tests.diff", description="Compare the golden differences.")
    parser.add_argument("--write", action="store_true", help="write them anew")
    write = parser.parse_args().write
    different = 0
    for name in CASES:
        old, new = stored(name) or "", text_of(compared(name))
        if old != new:
            different += 1
            print(name, *unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=0), sep="\n")
            if write:
                (DIRECTORY / f"{name}.txt").write_text(new, encoding="utf-8")
    for path in strangers():
        different += 1
        print(f"{path.name}: the golden of no case")
        if write:
            path.unlink()
    print(f"{len(CASES)} differences, {different} {'written' if write else 'different'}")
    return int(different > 0 and not write)


if __name__ == "__main__":
    sys.exit(main())

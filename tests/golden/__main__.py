"""``python -m tests.golden [--write]``: compare the golden plans, or regenerate them."""

from __future__ import annotations

import argparse
import sys
from textwrap import indent

from tests.golden import CASES, DIRECTORY, difference, made, stored, strangers


def main() -> int:
    """1 where goldens are compared and one differs, is missing or is left over."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description="Compare the golden plans.")
    parser.add_argument("--write", action="store_true", help="regenerate them")
    write = parser.parse_args().write
    different = plans = 0
    for name in CASES:
        old, new = stored(name), made(name)
        plans += new is not None
        if words := difference(old, new):
            different += 1
            print(name, indent(words, "  "), sep="\n")
        if write and old != new:
            path = DIRECTORY / f"{name}.json"
            path.unlink() if new is None else path.write_text(new, encoding="utf-8")
    for path in strangers():
        different += 1
        print(f"{path.name}\n  the golden of no case")
        if write:
            path.unlink()
    print(f"{plans} plans, {different} {'written' if write else 'different'}")
    return int(different > 0 and not write)


if __name__ == "__main__":
    sys.exit(main())

"""``python -m sharding.merge DIR OUT``: the source's tensors back from rank files.

A command only: nothing imports this module, so that ``sharding.merge`` stays the function.
"""

from __future__ import annotations

import argparse
import sys

from sharding.errors import ShardingError
from sharding.merging import merge


def main() -> int:
    """Exit code: 0 done, 2 the files or the arguments are wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m sharding.merge", description="Restore a checkpoint from rank files."
    )
    parser.add_argument("directory", help="rank files with their manifest.json; local or an fsspec URL")
    parser.add_argument("destination", help="where to write the checkpoint")
    arguments = parser.parse_args()
    try:
        result = merge(arguments.directory, arguments.destination)
    except ShardingError as error:
        print(f"error {error}", file=sys.stderr)
        return 2
    print(f"{result.tensors} tensors, {result.bytes_written / 1e9:.2f} GB in {', '.join(result.files)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

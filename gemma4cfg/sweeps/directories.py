"""Where a sweep's jobs leave what its table is made of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from gemma4cfg.errors import ConfigError

RECORDS = ".hydra"
"""Where in a job's directory Hydra records its number and words: its own default."""

_INTERPOLATION = re.compile(r"\$\{([^}]*)\}")


def check_directories(records: str | None, pattern: str, overrides: Sequence[Any]) -> None:
    """``records``: ``hydra.output_subdir``; ``pattern``: ``hydra.sweep.subdir`` as it is written; ``overrides``: parsed.

    Raises ConfigError where jobs would leave no record, or several of them would share a directory.
    """
    if records != RECORDS:
        raise ConfigError(
            f"hydra.output_subdir={'null' if records is None else records}: a sweep's table is made from what Hydra records in "
            f"every job's {RECORDS}; leave hydra.output_subdir out"
        )
    named = _INTERPOLATION.findall(pattern)
    if any(name.startswith("hydra.job.") or ":" in name for name in named):
        return  # a number, the words, the time
    shared = [it.key_or_group for it in overrides if it.is_sweep_override() and it.key_or_group not in named]
    if shared:
        raise ConfigError(
            f"hydra.sweep.subdir={pattern}: jobs that differ in {', '.join(shared)} would share a directory; leave it out, or "
            f"e.g. hydra.sweep.subdir='{'-'.join(f'${{{key}}}' for key in (*named, *shared))}'"
        )

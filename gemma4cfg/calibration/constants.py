"""A stack's fitted constants by their path, and which measurements each of them speaks of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from gemma4cfg.calibration.rows import Row
from gemma4cfg.calibration.table import compare
from gemma4cfg.config.speeds import Estimates

Path = tuple[str, ...]

STEP = 1.2
"""By how much a constant is changed to see what moves."""


def constants(estimates: Estimates) -> dict[Path, float]:
    """Every number of ``estimates``, by the keys that lead to it."""
    return dict(_leaves(estimates, ()))


def _leaves(value: Any, path: Path) -> Iterator[tuple[Path, float]]:
    if is_dataclass(value):
        for field in fields(value):
            yield from _leaves(getattr(value, field.name), (*path, field.name))
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path, value


def changed(estimates: Any, path: Path) -> Any:
    """The same with the constant at ``path`` made larger by ``STEP``; another stack's, which lacks it, as it is."""
    if estimates is None:
        return None
    if not path:
        larger = estimates * STEP
        return type(estimates)(larger)
    key, rest = path[0], path[1:]
    if isinstance(estimates, dict):
        return {name: changed(inner, rest) if name == key else inner for name, inner in estimates.items()}
    return replace(estimates, **{key: changed(getattr(estimates, key), rest)})


def runs(rows: Iterable[Row]) -> set[tuple[str, tuple[str, ...]]]:
    """The runs that rows were taken from: one configuration at one source, however many of its figures are rows."""
    return {(row.source, row.overrides) for row in rows}


def rows_moved(rows: Sequence[Row], path: Path) -> list[Row]:
    """The rows whose prediction is another when the constant at ``path`` is; of a chip's constants only its own rows."""
    speeds = path[1] if path[0] == "speeds" else None
    before = [known for known in compare(rows) if speeds in (None, known.speeds)]
    after = compare([known.row for known in before], lambda estimates: changed(estimates, path))
    return [old.row for old, new in zip(before, after, strict=True) if old.predicted != new.predicted]

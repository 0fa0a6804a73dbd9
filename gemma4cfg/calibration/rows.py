"""Measurements as rows of CSV: what was published, and anybody's own in the same form.

Columns: ``name``; ``overrides``, the words after ``python -m gemma4cfg`` that describe the run; ``quantity``, what was
measured (``quantities.QUANTITIES``); ``low`` and ``high``, its range (equal for one value); ``edges``, where the program
differs from a plan's graphs (``logit_rows=all kv=host dtype=float32``), or what a serving stack was given (``prompt=512
held=640``); ``source``; ``outside``, the likely reason where the
value is known to lie outside the prediction. The last three may be empty.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from gemma4cfg.calibration.quantities import QUANTITIES
from gemma4cfg.config.catalog import conf_directory
from gemma4cfg.decode import decode
from gemma4cfg.errors import ConfigError, did_you_mean
from gemma4cfg.planner.traffic import Edges

COLUMNS = ("name", "overrides", "quantity", "low", "high", "edges", "source", "outside")


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement. ``low`` to ``high`` is what was published, in the quantity's unit; ``where``: file and line."""

    name: str
    overrides: tuple[str, ...]
    quantity: str
    low: float
    high: float
    edges: Edges
    source: str
    outside: str
    where: str

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2


@dataclass(frozen=True, slots=True)
class NotExpressible:
    """Something published that no plan describes."""

    name: str
    published: str
    why: str


def published() -> tuple[Row, ...]:
    """The rows that ship with the program."""
    return read_rows(conf_directory() / "calibration.csv")


def not_expressible() -> tuple[NotExpressible, ...]:
    """What was published and is in no row."""
    path = conf_directory() / "not_expressible.csv"
    with path.open(encoding="utf-8", newline="") as lines:
        return tuple(NotExpressible(**record) for record in csv.DictReader(lines))


def read_rows(path: Path) -> tuple[Row, ...]:
    """Raises ConfigError, naming file and line, for a column, a quantity or a number that is none."""
    columns = list(COLUMNS)
    try:
        text = path.read_text(encoding="utf-8-sig")  # spreadsheets begin their files with a mark
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}; expected CSV with the columns {','.join(columns)}") from error
    reader = csv.DictReader(text.splitlines())
    found = list(reader.fieldnames or ())
    if found != columns:
        raise ConfigError(f"{path}: the columns are {','.join(found)}; expected {','.join(columns)}")
    rows = []
    for record in reader:
        where = f"{path}:{reader.line_num}"
        if None in record or None in record.values():
            raise ConfigError(f"{where}: not {len(columns)} values; expected {','.join(columns)}")
        rows.append(_row(record, where))
    return tuple(rows)


def _row(record: dict[str, str], where: str) -> Row:
    if record["quantity"] not in QUANTITIES:
        hint = did_you_mean(record["quantity"], QUANTITIES)
        raise ConfigError(f"{where}: quantity={record['quantity']}: no such quantity{hint}")
    low, high = (_number(record[key], f"{where}: {key}") for key in ("low", "high"))
    if low > high:
        raise ConfigError(f"{where}: low={low} is more than high={high}")
    words = (word.partition("=") for word in record["edges"].split())
    edges = {key: int(value) if value.isdecimal() else value for key, _, value in words}
    return Row(
        name=record["name"],
        overrides=tuple(record["overrides"].split()),
        quantity=record["quantity"],
        low=low,
        high=high,
        edges=decode(Edges, edges, f"{where}: edges"),
        source=record["source"],
        outside=record["outside"],
        where=where,
    )


def _number(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise ConfigError(f"{where}={text}: expected a number, e.g. 43.8") from error
    if not 0 < value < float("inf"):
        raise ConfigError(f"{where}={text}: expected a number above 0, e.g. 43.8")
    return value

"""Values and edits in words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from gemma4cfg.plan.encode import canonical
from gemma4cfg.plan.reasons import Reason
from gemma4cfg.runs import expand, index_runs, short_runs

JsonEdit = Mapping[str, Any]

_NUMBERS = re.compile(r"\{([0-9,-]*)\}")
"""Numbers that an edit of several places has in the place of one."""

_SHOWN = 44
"""Characters of a value in a cell."""


def of_part(changes: Sequence[JsonEdit], *start: str) -> Iterator[JsonEdit]:
    """The edits whose path begins so."""
    return (edit for edit in changes if tuple(edit["path"][: len(start)]) == start)


def value_words(value: Any, key: str = "") -> str:
    """A value found under ``key``: shapes as ``1x2x2048x256``, heads by rank as runs, thousands apart,
    the numbers of several places sorted and each once."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list) and key.endswith("shape"):
        return "x".join(map(str, value)) or "none"
    if isinstance(value, list) and key.endswith("_of_rank"):
        return " | ".join(map(index_runs, value))
    if isinstance(value, list) and all(isinstance(item, (int, str)) for item in value):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, Mapping):
        return (
            ", ".join(f"{name.replace('_', ' ')} {value_words(item, name)}" for name, item in value.items()) or "none"
        )
    if isinstance(value, str):
        if numbers := _NUMBERS.fullmatch(value):
            return short_runs(sorted(set(expand(numbers[1])))) if numbers[1] else "its own number"
        return value
    return canonical(value)


def both(edit: JsonEdit) -> tuple[str, str]:
    """An edit's old and new value, cut to what a cell takes from where they differ; ``-`` for none. Of lists of words, and of
    flags, only those that the other side lacks."""
    key = edit["path"][-1]
    before, after = _words(edit.get("old")), _words(edit.get("new"))
    if before and after and set(before) != set(after):
        old, new = (" ".join(word for word in a if word not in b) for a, b in ((before, after), (after, before)))
        return cut(old or "-"), cut(new or "-")
    old, new = (value_words(edit[side], key) if side in edit else "-" for side in ("old", "new"))
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))
    return cut(old, same), cut(new, same)


def _words(value: Any) -> list[str]:
    if isinstance(value, str) and "--" in value:
        return value.split()
    return value if isinstance(value, list) and all(isinstance(item, str) for item in value) else []


def cut(text: str, same: int = 0, shown: int = _SHOWN) -> str:
    """As much of a long text as fits, from a little before ``same``, where it begins to differ."""
    if len(text) <= shown:
        return text
    start = min(max(0, same - shown // 4), len(text) - shown // 4)
    return f"{'…' * (start > 0)}{text[start : start + shown]}{'…' * (start + shown < len(text))}"


def because(*reasons: str) -> str:
    """The sentences of reasons, each once; empty for none."""
    return "; ".join(map(Reason.sentence_of, dict.fromkeys(filter(None, reasons))))


def mark(edit: JsonEdit) -> str:
    """``!`` where results may change."""
    return "[bold yellow]![/]" if edit.get("numerics") else ""


def plural(count: int, one: str) -> str:
    """``1 layer``, ``2 layers``."""
    return f"{count:,} {one}" if count == 1 else f"{count:,} {one}s"

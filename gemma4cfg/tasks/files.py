"""Files that are whole or absent."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gemma4cfg.plan.encode import readable

PLAN_FILE, SEARCH_FILE, RESULT_FILE = "plan.json", "search.json", "result.json"
COMPILE_FILE, SCRIPT_FILE = "compile.json", "compile.py"

MADE_OF_A_PLAN = (PLAN_FILE, SEARCH_FILE, COMPILE_FILE, SCRIPT_FILE)
"""None of them is left where a job is refused."""


def write_json(path: Path, plain: Mapping[str, Any]) -> None:
    """Write ``plain`` as JSON under ``path``, as ``write_text`` does."""
    write_text(path, readable(plain))


def write_text(path: Path, text: str) -> None:
    """Write ``text`` under ``path``: beside it first, then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)

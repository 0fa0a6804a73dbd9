"""What a job tells the sweeper, for those that look for the best."""

from __future__ import annotations

import json
from math import inf
from pathlib import Path

from gemma4cfg.tasks.files import SEARCH_FILE

_FIGURES = {"latency": "latency_ms", "cost": "usd_per_million_tokens", "memory": "device_bytes"}


def objective_value(directory: Path, minimise: str) -> float:
    """The figure that the job of ``directory`` made least, infinity where it has no plan."""
    path = directory / SEARCH_FILE
    if not path.is_file():
        return inf
    return float(json.loads(path.read_text(encoding="utf-8"))["best"]["figures"][_FIGURES[minimise]])

"""All drills by name."""

from __future__ import annotations

from gemma4cfg.errors import ConfigError, did_you_mean
from gemma4cfg.verify.drills import graph, host, loader, plan
from gemma4cfg.verify.drills.records import Drill

DRILLS: dict[str, Drill] = {drill.name: drill for room in (loader, plan, graph, host) for drill in room.DRILLS}


def drill_named(name: str) -> Drill:
    """Raises ConfigError for a name that is none."""
    if name not in DRILLS:
        raise ConfigError(
            f"verify.inject={name}: no such drill{did_you_mean(name, DRILLS, most=len(DRILLS))}; all runs every one"
        )
    return DRILLS[name]

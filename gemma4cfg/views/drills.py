"""``docs/drills.md``: every planted fault and what gave it away, from the JSON forms of the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gemma4cfg.views.markdown import markdown

HEAD = """# Drills

Known faults, each planted in a run that was proved without it. Made by

```bash
python -m gemma4cfg -m model=e2b,e4b,12b,26b-a4b,31b tp=4 task=verify verify.inject=all hydra.sweep.dir=outputs/drills
python -m gemma4cfg.verify outputs/drills/*/verify.json > docs/drills.md
```

A cell holds the first check that failed, of those that `task=verify` makes in their order, and its error where it has one,
relative to the largest value; the limit is at most 1e-4. *run*: the loader refused, and nothing ran. A dash: the model cannot
have the fault, at this TP degree. A drill with choices (`key=value`) was run with them in place of the default.

"""


def drills_page(runs: Sequence[Mapping[str, Any]]) -> str:
    """``runs``: ``verify.json`` of ``verify.inject=all``, of each subject."""
    detected, total = (sum(run[key] for run in runs) for key in ("detected", "total"))
    versions = ", ".join(f"{name} {version}" for name, version in runs[0]["versions"].items())
    subjects = markdown(
        ("what", "tp", "layers", "decoded after each prompt", "detected"),
        [
            (run["subject"], str(run["tp"]), str(run["layers"]), str(run["steps"]), f"{run['detected']}/{run['total']}")
            for run in runs
        ],
    )
    found = [{drill["name"]: drill for drill in run["drills"]} for run in runs]
    drills = {drill["name"]: drill for run in runs for drill in run["drills"]}
    table = markdown(
        ("drill", "the fault", "planted in", *(f"{run['subject']}, tp {run['tp']}" for run in runs)),
        [
            (f"`{name}`", drill["what"], _planted(drill), *(_cell(one.get(name)) for one in found))
            for name, drill in drills.items()
        ],
    )
    return f"{HEAD}**{detected} of {total} detected.** With {versions}.\n\n{subjects}\n{table}"


def _planted(drill: Mapping[str, Any]) -> str:
    return ", ".join((drill["room"], *(f"`{choice}`" for choice in drill["choices"])))


def _cell(drill: Mapping[str, Any] | None) -> str:
    if drill is None or not drill["applies"]:
        return "-"
    if not drill["detected"]:
        return "**missed**"
    figure = "" if drill["figure"] is None else f" {drill['figure']:.1e}"
    return f"{drill['found_by'][0]}{figure}"

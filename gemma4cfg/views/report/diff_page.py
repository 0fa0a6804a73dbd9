"""What the page of a difference shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemma4cfg.views.diff.choices import show_choices
from gemma4cfg.views.diff.figures import show_figures
from gemma4cfg.views.diff.graphs import show_calls, show_host, show_rebuild
from gemma4cfg.views.diff.layers import show_layers
from gemma4cfg.views.diff.show import show_rank_tensors, total
from gemma4cfg.views.diff.tensors import show_tensors
from gemma4cfg.views.diff.words import of_part
from gemma4cfg.views.report.bars import device_bars, host_bars
from gemma4cfg.views.report.layer_map import layer_map
from gemma4cfg.views.report.rich_tables import sections

JsonPlan = Mapping[str, Any]


def diff_context(diff: Mapping[str, Any], old: JsonPlan, new: JsonPlan) -> dict[str, Any]:
    """The names that ``diff.html`` reads, of a difference in JSON form and its two plans in theirs."""
    changes = diff["changes"]
    shown = {
        "Choices and decisions": sections(lambda console: show_choices(changes, console)),
        "Layers": sections(lambda console: show_layers(changes, console)),
        "Tensors": sections(lambda console: show_tensors(diff["tensors"], console, every=True)),
        "Rank tensors": sections(lambda console: show_rank_tensors(changes, console)),
        "Host": sections(lambda console: show_host(changes, console)),
        "Calls": sections(lambda console: show_calls(changes, console)),
        "Figures": sections(lambda console: show_figures(changes, console)),
    }
    sides = [("A", old), ("B", new)]
    return {
        "title": f"{old['model']} tp {old['tp']} to {new['model']} tp {new['tp']}",
        "diff": diff,
        "total": total(diff),
        "rebuild": list(sections(lambda console: show_rebuild(diff, console))) if changes else [],
        "sections": {title: tables for title, found in shown.items() if (tables := list(found))},
        "findings": [edit for edit in of_part(changes, "findings") if edit["op"] != "move"],
        "device_bars": device_bars([(f"{side}, each of {plan['tp']}", plan) for side, plan in sides]),
        "host_bars": host_bars(sides),
        "maps": [(side, plan, layer_map(plan)) for side, plan in sides],
    }

"""Pages and pictures from JSON: every template is rendered here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from gemma4cfg.views.report.diff_page import diff_context
from gemma4cfg.views.report.layer_map import layer_map
from gemma4cfg.views.report.plan_page import plan_context
from gemma4cfg.views.report.sweep_page import sweep_context
from gemma4cfg.views.report.words import FILTERS

JsonPlan = Mapping[str, Any]


def plan_page(plan: JsonPlan) -> str:
    """HTML of a plan in JSON form."""
    return _render("plan.html", plan_context(plan))


def diff_page(diff: Mapping[str, Any], old: JsonPlan, new: JsonPlan) -> str:
    """HTML of a difference in JSON form, with its two plans in theirs."""
    return _render("diff.html", diff_context(diff, old, new))


def sweep_page(rows: Sequence[Mapping[str, Any]]) -> str:
    """HTML of a sweep's rows, the ``jobs`` of ``sweep.json``."""
    return _render("sweep.html", sweep_context(rows))


def map_picture(plan: JsonPlan) -> str:
    """SVG of the rank x layer map of a plan in JSON form."""
    return _render("map.svg", {"plan": plan, "map": layer_map(plan)})


def _render(name: str, context: Mapping[str, Any]) -> str:
    return _environment().get_template(name).render(context)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("gemma4cfg.views.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(FILTERS)
    return environment

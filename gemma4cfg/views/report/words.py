"""What templates call to put values in words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from markupsafe import Markup, escape

from gemma4cfg.plan.reasons import Reason
from gemma4cfg.views.sizes import gigabytes
from gemma4cfg.views.tables import argument

_ANCHOR = re.compile(r"@((?:graphs|calls)/[A-Za-z0-9_]+)")


def span(value: Mapping[str, float] | None) -> str:
    """A range in three digits, thousands in full; a dash for none."""
    return "-" if value is None else f"{_figure(value['low'])}–{_figure(value['high'])}"


def _figure(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def shape(value: list[int] | None) -> str:
    return "-" if value is None else "×".join(map(str, value)) or "scalar"


def linked(value: Any) -> Markup:
    """An argument of a call, with references to graphs and calls as links into the page."""
    return Markup(_ANCHOR.sub(r'<a href="#\1">@\1</a>', str(escape(argument(value)))))


FILTERS: dict[str, Callable[..., Any]] = {
    "because": Reason.sentence_of,
    "gigabytes": gigabytes,
    "linked": linked,
    "shape": shape,
    "span": span,
    "spaced": lambda text: str(text).replace("_", " "),
}

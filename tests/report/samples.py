"""Plans and pages that the tests of this room share, each made once."""

from __future__ import annotations

from functools import cache
from html.parser import HTMLParser
from typing import Any

from gemma4cfg import build_plan, diff_plans, load_config, sweep
from gemma4cfg.plan.encode import to_plain
from gemma4cfg.runs import index_runs
from gemma4cfg.views.report.pages import diff_page, plan_page, sweep_page

PLANS = (
    "model=e2b",
    "model=e4b tp=4",
    "model=12b tp=2",
    "model=26b-a4b tp=8",
    "model=26b-a4b tp=8 moe.partition=experts",
    "model=31b tp=32",
    "model=31b tp=8 attention.policy=replicate",
    "model=e2b target=g5g.xlarge",
)
DIFF = ("model=26b-a4b tp=4", "model=26b-a4b tp=8")
SWEEP = ("model=e2b,12b", "tp=1,2,8", "target=inf2.xlarge,inf2.8xlarge,trn2.3xlarge")
TRACE_SWEEP = ("model=e2b", "target=inf2.xlarge", "tp=1,2", "shapes.batch=1,4", "objective=memory")
"""Of which two jobs are of ``trace``, one of them of four streams."""

VOID = {"meta", "link", "br", "circle", "line"}


@cache
def plan(words: str) -> dict[str, Any]:
    return build_plan(load_config(words.split())).to_json()


@cache
def page_of_plan(words: str) -> str:
    return plan_page(plan(words))


@cache
def page_of_diff(old: str, new: str) -> str:
    sides = [build_plan(load_config(words.split())) for words in (old, new)]
    return diff_page(diff_plans(*sides).to_json(), *(side.to_json() for side in sides))


@cache
def rows_of_sweep() -> tuple[dict[str, Any], ...]:
    return tuple(to_plain(row) for row in sweep(list(SWEEP)))


@cache
def page_of_sweep() -> str:
    return sweep_page(rows_of_sweep())


def expected_labels(plan: dict[str, Any]) -> list[list[str]]:
    """What each cell of a map is to begin with: a list for each layer, of each rank."""
    return [
        [
            f"q {index_runs(q) or '-'} kv {index_runs(kv) or '-'}"
            for q, kv in zip(layer["attention"]["q_heads_of_rank"], layer["attention"]["kv_heads_of_rank"], strict=True)
        ]
        for layer in plan["layers"]
    ]


class Page(HTMLParser):
    """Reads a page: every element closed in order, tables by id, attributes, and visible words."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.ids: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.words: list[str] = []
        self.raw: dict[str, str] = {"style": "", "script": ""}
        self._table = ""
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        self.attributes += [(tag, name, value) for name, value in named.items()]
        if "id" in named:
            self.ids.append(named["id"])
        if tag == "table":
            self._table = named.get("id", f"table {len(self.tables)}")
            self.tables[self._table] = []
        elif tag == "tr":
            self.tables[self._table].append([])
        elif tag in ("td", "th"):
            self.tables[self._table][-1].append("")
        elif tag == "br":
            self.handle_data(" ")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, (tag, self.getpos())

    def handle_data(self, data: str) -> None:
        inside = self.open[-1] if self.open else ""
        if inside in self.raw:
            self.raw[inside] += data
            return
        self.words.append(data)
        if "td" in self.open or "th" in self.open:
            self.tables[self._table][-1][-1] += data

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

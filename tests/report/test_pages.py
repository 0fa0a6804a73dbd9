"""Pages as text: what they say, that they are whole and closed in themselves, and that nothing of a plan becomes markup."""

from __future__ import annotations

import json
import re
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from gemma4cfg import build_plan, diff_plans, load_config, sweep
from gemma4cfg.plan.encode import to_plain
from gemma4cfg.plan.reasons import Reason
from gemma4cfg.sweeps.row import row_without_plan
from gemma4cfg.views.diff.show import total
from gemma4cfg.views.report.pages import diff_page, map_picture, plan_page, sweep_page
from gemma4cfg.views.report.words import span
from gemma4cfg.views.sizes import gigabytes
from gemma4cfg.views.sweep import show_sweep
from tests.cli.runs import ROOT
from tests.report.samples import (
    DIFF,
    PLANS,
    TRACE_SWEEP,
    Page,
    expected_labels,
    page_of_diff,
    page_of_plan,
    page_of_sweep,
    plan,
    rows_of_sweep,
)

PAGES = {
    **{words: lambda words=words: page_of_plan(words) for words in PLANS},
    "diff": lambda: page_of_diff(*DIFF),
    "diff of tp 32": lambda: page_of_diff("model=31b tp=32", "model=31b tp=32 shapes.kv_layout=ring"),
    "sweep": page_of_sweep,
}
MOST_BYTES = 1_500_000


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_whole_and_needs_nothing_else(name: str) -> None:
    text = PAGES[name]()
    page = Page(text)
    assert len(text.encode()) < MOST_BYTES
    assert len(page.ids) == len(set(page.ids))
    for tag, attribute, value in page.attributes:
        assert not attribute.startswith("on"), (tag, attribute)
        if attribute in ("href", "src", "xlink:href", "action", "data", "poster"):
            assert value == "data:," or (value.startswith("#") and value[1:] in page.ids), (tag, value)
    assert not re.search(r"url\(|@import", page.raw["style"])
    assert not re.search(r"\b(fetch|XMLHttpRequest|WebSocket|import)\b", page.raw["script"])


@pytest.mark.parametrize("words", PLANS)
def test_the_map_has_every_rank_of_every_layer(words: str) -> None:
    shown, rows = plan(words), Page(page_of_plan(words)).tables["map"]
    assert rows[0] == ["layer", "cache", *(f"rank {rank}" for rank in range(shown["tp"]))]
    for layer, row, labels in zip(shown["layers"], rows[1:], expected_labels(shown), strict=True):
        assert row[0] == f"{layer['index']} {layer['type'].removesuffix('_attention')}"
        slot = shown["layers"][layer["kv"]["owner"]]["kv"]["slot"]
        assert row[1] == f"{'owns' if layer['kv']['writes'] else 'borrows'} {slot}"
        assert [cell.partition(" e ")[0] for cell in row[2:]] == labels


def test_experts_are_named_where_each_rank_has_its_own() -> None:
    rows = Page(page_of_plan("model=26b-a4b tp=8 moe.partition=experts")).tables["map"]
    assert rows[1][2:4] == ["q 0-1 kv 0 e 0-15", "q 2-3 kv 1 e 16-31"]
    assert all(" e " not in cell for row in Page(page_of_plan("model=26b-a4b tp=8")).tables["map"] for cell in row)


@pytest.mark.parametrize("words", PLANS)
def test_a_plan_is_told_whole(words: str) -> None:
    shown, page = plan(words), Page(page_of_plan(words))
    for found in shown["findings"]:
        assert " ".join(found["message"].split()) in page.text
        assert found["code"] in page.text
    decided = {row[0]: row for row in page.tables["decisions"][1:]}
    for decision in shown["decisions"]:
        row = decided[decision["id"]]
        assert row[1] == str(decision["choice"])
        assert Reason.sentence_of(decision["reason"]) in row[2]
        assert all(str(other["choice"]) in row[3] for other in decision["over"])
    for graph in shown["graphs"]:
        assert f"graphs/{graph['name']}" in page.ids
        assert graph["id"] in page.text
        assert all(f"{port['name']} {'×'.join(map(str, port['shape']))}" in page.text for port in graph["inputs"])
    for number, call in enumerate(shown["calls"]):
        assert f"calls/{number}" in page.ids
        assert call["api"] in page.text
    hbm = shown["budget"]["hbm_per_rank"]
    assert f"{gigabytes(hbm['total'])} of {gigabytes(hbm['limit'])}" in page.text


def test_nothing_of_a_plan_becomes_markup() -> None:
    hostile = "</script><img src=http://example.com/x onerror=alert(1)>"
    shown: dict[str, Any] = json.loads(json.dumps(plan("model=e2b")))
    shown["model"] = hostile
    shown["provenance"]["overrides"] = [hostile]
    shown["findings"] = [{"severity": "info", "code": "x", "layer": 0, "message": hostile, "fix": hostile}]
    shown["calls"] = [{"api": hostile, "args": {hostile: [hostile]}}]
    for layer in shown["layers"]:
        layer["mlp"]["intermediate"] = hostile  # goes into the texts of the cells, and those into a script
    page = Page(plan_page(shown))
    assert not [tag for tag, _, _ in page.attributes if tag == "img"]
    assert hostile in page.text
    assert "<img" not in page.raw["script"]


def test_a_difference_says_what_the_terminal_says() -> None:
    old, new = (build_plan(load_config(words.split())) for words in DIFF)
    diff = diff_plans(old, new).to_json()
    page = Page(page_of_diff(*DIFF))
    assert total(diff) in page.text
    for graph in diff["rebuild"]["graphs"]:
        assert f"graph {graph['name']}" in page.text
    for edit in diff["changes"]:
        if edit["path"][0] == "findings" and edit["op"] == "add":
            assert edit["new"]["code"] in page.text
    for side, shown in (("A", old), ("B", new)):
        rows = page.tables[f"map-{side}"]
        assert (len(rows) - 1, len(rows[0]) - 2) == (len(shown.layers), shown.tp)
        hbm = shown.budget.hbm_per_rank
        assert f"{side}, each of {shown.tp} {gigabytes(hbm.total)} of {gigabytes(hbm.limit)}" in page.text
    for heading in ("To rebuild", "Choices and decisions", "Layers", "Tensors", "Calls", "Figures", "Findings"):
        assert heading in page.words


def test_equal_plans_have_nothing_to_rebuild() -> None:
    shown = build_plan(load_config(["model=e2b"]))
    page = Page(diff_page(diff_plans(shown, shown).to_json(), shown.to_json(), shown.to_json()))
    assert "same: nothing to rebuild" in page.text
    assert "To rebuild" not in page.words


def test_a_sweep_has_a_row_for_every_job() -> None:
    rows, page = rows_of_sweep(), Page(page_of_sweep())
    done = [row for row in rows if row["status"] == "done"]
    assert 0 < len(done) < len(rows)
    assert [row[0] for row in page.tables["done"][1:]] == [str(row["job"]) for row in done]
    told = {cells[0]: cells for table in page.tables.values() for cells in table if len(cells) == 5}
    for row in rows:
        if row["status"] != "done":
            assert told[str(row["job"])][3] == row["message"]
            assert row["reason"] in page.text


def test_a_sweep_of_traces_and_batches() -> None:
    """Both cores of a trace count, and speed is of all streams together."""
    rows = sweep(list(TRACE_SWEEP))
    page = Page(sweep_page([to_plain(row) for row in rows]))
    titles, *jobs = page.tables["done"]
    for row, cells in zip(rows, jobs, strict=True):
        told = dict(zip(titles, cells, strict=True))
        plan = build_plan(load_config(row.overrides))
        assert told["all cores"] == gigabytes(2 * plan.budget.hbm_per_rank.total)
        assert told["tokens/s"] == span(to_plain(plan.estimate.decode_tokens_per_s))
    assert page.text.count("tokens/s of all streams together") == 2
    four, one = (row.decode_tokens_per_s for row in (rows[1], rows[0]))
    assert four is not None and one is not None and 3 < four.low / one.low < 4


def test_a_sweep_without_any_plan() -> None:
    page = Page(sweep_page([row for row in rows_of_sweep() if row["status"] != "done"]))
    assert "done" not in page.tables
    assert "0 with a plan" in page.text


def test_a_job_that_is_done_without_a_plan() -> None:
    """As ``task=verify verify.matrix=full`` is."""
    row = to_plain(row_without_plan(7, ["model=31b", "task=verify", "verify.matrix=full"], "done", []))
    page = Page(sweep_page([*rows_of_sweep(), row]))
    assert ["7", "model=31b task=verify verify.matrix=full", "done", "-", "-"] in [
        cells for table in page.tables.values() for cells in table
    ]
    console = Console(record=True, width=200)
    show_sweep([row], console)
    assert "1 jobs: 1 done" in console.export_text()


def test_the_readmes_picture_is_what_comes_out() -> None:
    """``python -m gemma4cfg.report "model=e4b tp=4" -o docs/e4b-tp4.svg`` makes it anew."""
    stored = (ROOT / "docs" / "e4b-tp4.svg").read_text(encoding="utf-8")
    assert stored == map_picture(plan("model=e4b tp=4"))


@pytest.mark.parametrize("words", ["model=e4b tp=4", "model=31b tp=32"])
def test_the_picture_has_every_rank_of_every_layer(words: str) -> None:
    shown = plan(words)
    root = ElementTree.fromstring(map_picture(shown))
    drawn = [element for element in root if element.tag.endswith("rect")]
    key = 3
    assert len(drawn) == shown["tp"] * len(shown["layers"]) + key
    borrowed = sum(not layer["kv"]["writes"] for layer in shown["layers"]) * shown["tp"]
    assert sum("borrowed" in element.attrib["class"] for element in drawn) == borrowed + 1

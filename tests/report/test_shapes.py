"""The data behind the pages: the map, the bars, the front."""

from __future__ import annotations

import copy
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from gemma4cfg import load_config, sweep
from gemma4cfg.plan.encode import to_plain
from gemma4cfg.planner.search import search_plans
from gemma4cfg.views.report.bars import device_bars, host_bars
from gemma4cfg.views.report.layer_map import layer_map
from gemma4cfg.views.report.pareto import LEFT, WIDTH, front, plots
from gemma4cfg.views.report.rich_tables import sections
from gemma4cfg.views.report.words import linked, span
from gemma4cfg.views.sizes import gigabytes
from gemma4cfg.views.tables import plain_table
from tests.report.samples import PLANS, TRACE_SWEEP, plan, rows_of_sweep


def test_a_borrower_names_its_owner_and_the_slot_of_that() -> None:
    rows = layer_map(plan("model=e4b tp=4")).rows
    assert rows[23].text.endswith("owns cache slot 23: 1x1x2048x512 a rank, linear")
    assert (rows[41].owned, rows[41].slot) == (False, 23)
    assert rows[41].text.endswith("borrows the KV of layer 23 (cache slot 23)")


def test_a_cell_says_what_its_rank_holds() -> None:
    shown = layer_map(plan("model=26b-a4b tp=8"))
    assert shown.texts[shown.rows[5].cells[5].text] == (
        "rank 5: query heads 10-11; KV head 1 (4 copies); MLP columns 1320-1583 of 2112; "
        "all 128 experts, columns 440-527 of 704 each"
    )
    assert [cell.joined for cell in shown.rows[5].cells] == [False, True, True, True, False, True, True, True]
    own = layer_map(plan("model=26b-a4b tp=8 moe.partition=experts"))
    assert own.texts[own.rows[5].cells[1].text].endswith("experts 16-31, whole")


def test_heads_that_only_fill_up_are_counted() -> None:
    padded = copy.deepcopy(plan("model=e2b"))
    padded["layers"][0]["attention"]["local_q_heads"] += 2
    shown = layer_map(padded)
    assert "query heads 0-7 and 2 of padding" in shown.texts[shown.rows[0].cells[0].text]


@pytest.mark.parametrize("words", PLANS)
def test_a_bar_is_as_long_as_its_bytes(words: str) -> None:
    shown = plan(words)
    (bar,) = device_bars([("a rank", shown)])
    hbm = shown["budget"]["hbm_per_rank"]
    share = sum(segment.percent for segment in bar.segments) / bar.limit_percent
    assert share == pytest.approx(hbm["total"] / hbm["limit"])
    assert not bar.over


def test_bars_of_one_group_have_one_scale() -> None:
    small, large = plan("model=e2b"), plan("model=31b tp=32")
    bars = host_bars([("A", small), ("B", large)])
    assert max(max(bar.limit_percent, sum(s.percent for s in bar.segments)) for bar in bars) == pytest.approx(100)
    limits = {bar.label: bar.limit_percent for bar in bars}
    ratio = small["budget"]["host"]["limit"] / large["budget"]["host"]["limit"]
    assert limits["load, A"] / limits["load, B"] == pytest.approx(ratio)


def test_more_than_the_limit_is_marked() -> None:
    full = copy.deepcopy(plan("model=e2b"))
    full["budget"]["hbm_per_rank"]["limit"] = 10**9
    (bar,) = device_bars([("a rank", full)])
    assert bar.over
    assert bar.limit_percent < 100


FIGURE = st.integers(1, 6).map(float)


@given(st.lists(st.tuples(FIGURE, FIGURE), max_size=12))
def test_the_front_is_what_none_beats(figures: list[tuple[float, float]]) -> None:
    def beaten(speed: float, cost: float) -> bool:
        return any(s >= speed and c <= cost and (s, c) != (speed, cost) for s, c in figures)

    assert front(figures) == {place for place, figure in enumerate(figures) if not beaten(*figure)}


def test_a_plot_has_every_job_that_has_its_figure() -> None:
    rows = rows_of_sweep()
    done = [row for row in rows if row["status"] == "done"]
    priced = [row["job"] for row in done if row["usd_per_million_tokens"]]
    dollars, memory = plots(rows)
    assert sorted(point.job for point in dollars.points) == priced
    assert sorted(point.job for point in memory.points) == [row["job"] for row in done]
    assert len(priced) < len(done)
    for point in (*dollars.points, *memory.points):
        assert LEFT <= point.x < point.x_high <= WIDTH
    assert any(point.front for point in memory.points)
    assert len(dollars.x_ticks) >= 3
    assert plots([]) == ()


def test_device_bytes_are_those_of_the_search() -> None:
    """``trace`` at tp=1 takes two cores."""
    rows = sweep(list(TRACE_SWEEP))
    assert [row.recipe for row in rows] == ["trace", "trace", "model_builder", "model_builder"]
    for row in rows:
        assert row.device_bytes == search_plans(load_config(row.overrides)).best.figures.device_bytes
        assert row.hbm_per_rank is not None and row.device_bytes == 2 * row.hbm_per_rank.total
    (_, memory) = plots([to_plain(row) for row in rows])
    for point in memory.points:
        assert f"all cores {gigabytes(rows[point.job].device_bytes or 0)}" in point.tip


def test_labels_have_room() -> None:
    """12 px, less than 7 a character, six from the axis."""
    rows = [to_plain(row) for row in sweep(["model=31b", "target=trn2.48xlarge", "tp=16,32"])]
    more = [{**row, "job": 2 + row["job"], "device_bytes": 10 * row["device_bytes"]} for row in rows]
    (memory,) = plots([*rows, *more])
    labels = [tick.label for tick in memory.y_ticks]
    assert "300.00 GB" in labels and "1000.00 GB" in labels
    assert all(7 * len(label) + 6 <= LEFT for label in labels)


def test_tables_of_the_terminal_become_cells() -> None:
    def show(console: Console) -> None:
        table = plain_table(" ", "what")
        table.add_row("[bold yellow]![/]", r"\[1, 2]")
        console.print("a line")
        console.print(table)

    (section,) = sections(show)
    assert section.titles == (" ", "what")
    assert [(cell.text, cell.strong) for cell in section.rows[0]] == [("!", True), ("[1, 2]", False)]
    buffer = io.StringIO()
    show(Console(file=buffer, width=40))
    assert "[1, 2]" in buffer.getvalue()


def test_references_are_links_and_the_rest_is_escaped() -> None:
    assert linked({"ref": "graphs/decode"}) == '<a href="#graphs/decode">@graphs/decode</a>'
    assert linked("<b>") == "&lt;b&gt;"


def test_ranges() -> None:
    assert span({"low": 25.46, "high": 37.4}) == "25.5–37.4"
    assert span({"low": 1430.2, "high": 2861}) == "1,430–2,861"
    assert span(None) == "-"

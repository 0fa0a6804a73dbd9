"""Reports in headless Chromium: what is drawn, tooltips by mouse and by keyboard, both themes, a phone, paper.

Skipped where Playwright (the extra ``browser``) or a Chromium is not to be had; the pages are read as text in any case.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gemma4cfg.views.report.layer_map import layer_map
from gemma4cfg.views.report.pages import map_picture
from tests.report.samples import (
    DIFF,
    expected_labels,
    page_of_diff,
    page_of_plan,
    page_of_sweep,
    plan,
    rows_of_sweep,
)

sync_api = pytest.importorskip("playwright.sync_api", reason="pip install 'gemma4cfg[browser]'")
pytestmark = pytest.mark.xdist_group("browser")

NAMES = ("chromium", "chromium-browser", "google-chrome")
WIDE = "model=31b tp=32"
MOE = "model=26b-a4b tp=8"
BORROWING = "model=e4b tp=4"
REPORTS = ("plan", "wide", "borrowing", "diff", "sweep")
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = next(filter(None, map(shutil.which, NAMES)), None)
    with sync_api.sync_playwright() as playwright:
        path = path or playwright.chromium.executable_path
        if not Path(path).exists():
            pytest.skip("no Chromium: apt install chromium, or playwright install chromium")
        opened = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        )
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("reports")
    pages = {
        "plan.html": page_of_plan(MOE),
        "wide.html": page_of_plan(WIDE),
        "borrowing.html": page_of_plan(BORROWING),
        "diff.html": page_of_diff(*DIFF),
        "sweep.html": page_of_sweep(),
        "plan.svg": map_picture(plan(BORROWING)),
    }
    for name, text in pages.items():
        (directory / name).write_text(text, encoding="utf-8")
    return directory


@pytest.fixture
def visit(browser: Any, files: Path) -> Iterator[Any]:
    """Opens a report; at the end nothing may have been asked of a host or complained of."""
    requests: list[str] = []
    complaints: list[str] = []
    contexts = []

    def open_page(name: str, **options: Any) -> Any:
        context = browser.new_context(**{"viewport": DESK, **options})
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto((files / name).as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not complaints
    assert {url for url in requests if not url.startswith("data:")} <= {path.as_uri() for path in files.iterdir()}


def cells(page: Any, table: str) -> list[list[str]]:
    """Visible words of a map's cells by layer."""
    shown: list[list[str]] = page.locator(f"#{table}").evaluate(
        "table => [...table.tBodies[0].rows].map(row => [...row.querySelectorAll('td')]"
        ".map(cell => cell.innerText.replace(/\\s+/g, ' ')))"
    )
    return shown


@pytest.mark.parametrize(("name", "words"), [("plan", MOE), ("wide", WIDE), ("borrowing", BORROWING)])
def test_the_map(name: str, words: str, visit: Any) -> None:
    page = visit(f"{name}.html")
    assert cells(page, "map") == expected_labels(plan(words))
    filled, borrowed = (
        page.locator(f"#map tr.{row} td").first.evaluate("cell => getComputedStyle(cell).backgroundColor")
        if page.locator(f"#map tr.{row}").count()
        else None
        for row in ("sliding:not(.borrowed)", "sliding.borrowed")
    )
    assert filled != borrowed
    assert (borrowed is None) == (name != "borrowing")


def test_both_maps_of_a_difference(visit: Any) -> None:
    page = visit("diff.html")
    for side, words in zip("AB", DIFF, strict=True):
        assert cells(page, f"map-{side}") == expected_labels(plan(words))


def words_of(shown: dict[str, Any], layer: int, rank: int) -> str:
    map_ = layer_map(shown)
    return f"{map_.rows[layer].text}\n{map_.texts[map_.rows[layer].cells[rank].text]}"


def cell(page: Any, layer: int, rank: int, table: str = "map") -> Any:
    return page.locator(f"#{table} tbody tr").nth(layer).locator("td").nth(rank)


def test_a_cell_speaks_under_the_mouse(visit: Any) -> None:
    page, tip = (page := visit("plan.html")), page.locator("#tip")
    assert tip.is_hidden()
    cell(page, 5, 3).hover()
    assert tip.inner_text() == words_of(plan(MOE), 5, 3)
    box = tip.bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= DESK["width"]
    assert box["y"] >= 0 and box["y"] + box["height"] <= DESK["height"]
    page.locator("h1").hover()
    assert tip.is_hidden()


def test_a_cell_speaks_to_the_keyboard(visit: Any) -> None:
    page, tip = (page := visit("plan.html")), page.locator("#tip")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "theme"
    page.keyboard.press("Tab")
    assert tip.inner_text() == words_of(plan(MOE), 0, 0)
    assert page.evaluate("document.activeElement.getAttribute('aria-describedby')") == "tip"
    for key, layer, rank in (
        ("ArrowRight", 0, 1),
        ("ArrowDown", 1, 1),
        ("End", 1, 7),
        ("ArrowRight", 1, 7),
        ("ArrowLeft", 1, 6),
        ("ArrowUp", 0, 6),
        ("ArrowUp", 0, 6),
        ("Control+End", 29, 7),
        ("ArrowDown", 29, 7),
        ("Home", 29, 0),
        ("Control+Home", 0, 0),
    ):
        page.keyboard.press(key)
        assert tip.inner_text() == words_of(plan(MOE), layer, rank), key
        assert cell(page, layer, rank).evaluate("cell => cell === document.activeElement"), key
    assert page.locator("#map td[tabindex='0']").count() == 1
    page.keyboard.press("Escape")
    assert tip.is_hidden()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('#map')") is None


def test_bars_speak(visit: Any) -> None:
    page, tip = (page := visit("plan.html")), page.locator("#tip")
    weights = page.locator(".track .p-weights").first
    weights.hover()
    assert tip.inner_text().startswith("each of 8 ranks: weights 6.34 GB")
    weights.focus()
    page.keyboard.press("ArrowRight")
    assert tip.inner_text().startswith("each of 8 ranks: kv 73.4 MB")


def test_a_bar_is_drawn_to_scale(visit: Any) -> None:
    page = visit("plan.html")
    hbm = plan(MOE)["budget"]["hbm_per_rank"]
    track = page.locator(".track").first
    width = track.bounding_box()["width"]
    weights = track.locator(".p-weights").bounding_box()["width"]
    assert weights / width == pytest.approx(hbm["weights"] / hbm["limit"], abs=0.01)


def test_points_of_a_sweep_speak(visit: Any) -> None:
    page, tip = (page := visit("sweep.html")), page.locator("#tip")
    points = page.locator("svg.plot").last.locator(".point")
    assert points.count() == sum(row["status"] == "done" for row in rows_of_sweep())
    points.first.focus()
    first = tip.inner_text()
    page.keyboard.press("ArrowRight")
    assert first != tip.inner_text() == points.nth(1).get_attribute("data-tip")
    points.nth(2).locator("circle").hover()
    assert tip.inner_text() == points.nth(2).get_attribute("data-tip")


def test_the_table_of_a_sweep_sorts(visit: Any) -> None:
    page = visit("sweep.html")
    column = page.locator("#done thead th").all_inner_texts().index("$/M tokens")

    def shown() -> list[float | None]:
        values = page.locator(f"#done tbody td:nth-child({column + 1})").evaluate_all(
            "cells => cells.map(cell => cell.dataset.value)"
        )
        return [float(value) if value else None for value in values]

    known = sorted(value for value in shown() if value is not None)
    unknown = [None] * shown().count(None)
    assert known and unknown
    heading = page.get_by_role("button", name="$/M tokens")
    heading.click()
    assert shown() == [*known, *unknown]
    heading.focus()
    page.keyboard.press("Enter")
    assert shown() == [*reversed(known), *unknown]


def brightness(page: Any) -> float:
    """Of the page's background, 0 to 1."""
    numbers: list[int] = page.evaluate(
        "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)"
    )
    return sum(numbers) / 3 / 255


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", REPORTS)
def test_both_themes(name: str, scheme: str, visit: Any, tmp_path: Path) -> None:
    page = visit(f"{name}.html", color_scheme=scheme)
    assert (brightness(page) > 0.5) == (scheme == "light")
    page.screenshot(path=tmp_path / f"{name}-{scheme}.png")
    assert (tmp_path / f"{name}-{scheme}.png").stat().st_size > 10_000
    button = page.locator("#theme")
    for theme in ("light", "dark", "auto"):
        button.click()
        assert button.inner_text() == f"theme: {theme}"
        assert (brightness(page) > 0.5) == ((scheme if theme == "auto" else theme) == "light")


def test_a_theme_is_kept(visit: Any) -> None:
    page = visit("plan.html", color_scheme="light")
    page.locator("#theme").click(click_count=2)
    page.reload()
    assert page.locator("#theme").inner_text() == "theme: dark"
    assert brightness(page) < 0.5


@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["desk", "phone"])
def test_bars_can_be_compared(viewport: dict[str, int], visit: Any) -> None:
    """All begin at one place and are of one width, however long the words beside them are."""
    page = visit("diff.html", viewport=viewport)
    places = page.locator(".track").evaluate_all(
        "tracks => tracks.map(track => { const box = track.getBoundingClientRect(); return [box.left, box.width]; })"
    )
    assert len(places) == 2 + 8
    assert all(place == pytest.approx(places[0], abs=0.5) for place in places)


@pytest.mark.parametrize("name", REPORTS)
def test_a_phone_scrolls_in_one_direction(name: str, visit: Any) -> None:
    page = visit(f"{name}.html", viewport=PHONE, has_touch=True, is_mobile=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert page.locator("#map, #map-A, svg.plot").first.is_visible()


def test_a_cell_speaks_to_a_finger(visit: Any) -> None:
    page = visit("wide.html", viewport=PHONE, has_touch=True, is_mobile=True)
    cell(page, 7, 1).tap()
    assert page.locator("#tip").inner_text() == words_of(plan(WIDE), 7, 1)
    row = page.locator("#map tbody tr").nth(7).locator("th").first
    before = row.bounding_box()["x"]
    cell(page, 7, 31).scroll_into_view_if_needed()
    assert row.bounding_box()["x"] == pytest.approx(before, abs=1), "the layer's name stays in sight"


@pytest.mark.parametrize("name", REPORTS)
def test_paper_shows_everything(name: str, visit: Any) -> None:
    """On A4 in landscape, without what only a screen has."""
    page = visit(f"{name}.html", viewport={"width": 1032, "height": 703}, color_scheme="dark")
    page.emulate_media(media="print")
    assert brightness(page) == 1
    assert page.locator("#theme").is_hidden()
    assert page.evaluate("document.documentElement.scrollWidth") <= 1032
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0


def test_the_picture_is_drawn(visit: Any) -> None:
    page = visit("plan.svg")
    shown = plan(BORROWING)
    assert page.locator("rect").count() == shown["tp"] * len(shown["layers"]) + 3
    assert page.locator("rect").first.evaluate("rect => getComputedStyle(rect).fill") == "rgb(207, 227, 247)"

"""The README's outputs are real, and so are its commands, keys and rooms."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gemma4cfg.config.catalog import choices
from gemma4cfg.config.schema import Settings
from gemma4cfg.decode import _names
from tests.readme import README, block, shown

TEXT = README.read_text(encoding="utf-8")
BLOCKS = list(shown(TEXT))


@pytest.mark.parametrize("match", BLOCKS, ids=[match["arguments"] for match in BLOCKS])
def test_shown_output_is_what_comes_out(match: re.Match[str]) -> None:
    assert match["body"] == block(match), "python -m tests.readme writes it anew"


def test_the_readme_shows_runs() -> None:
    assert len(BLOCKS) >= 4
    assert "@@" not in TEXT


@pytest.mark.parametrize("group", ["model", "sdk", "recipe", "shapes", "offload", "objective"])
def test_every_choice_is_named(group: str) -> None:
    for choice in choices(group):
        assert re.search(rf"`[^`]*\b{re.escape(choice)}\b[^`]*`", TEXT), f"{group}={choice}"


def test_every_plain_key_is_named() -> None:
    for key in _names(Settings):
        assert f"`{key}" in TEXT, key


def test_every_room_exists() -> None:
    for place in re.findall(r"^\| `([a-z0-9_/]+)`", TEXT, re.MULTILINE):
        if "/" in place:
            assert (README.parent / Path(place)).exists(), place

"""Prefill buckets for a distribution of prompt lengths."""

from __future__ import annotations

import itertools

import pytest

from gemma4cfg import build_plan, load_config
from gemma4cfg.errors import ConfigError
from gemma4cfg.ladder import MOST_BUCKETS, ladders, main, parse_lengths

CONFIG = load_config(["model=31b", "tp=4", "target=trn2.3xlarge"])


def test_a_ladder_more_is_no_slower_and_costs_more() -> None:
    found, refused = ladders(CONFIG, {40: 3, 200: 5, 900: 1})
    assert refused is None
    assert [len(ladder.buckets) for ladder in found] == list(range(1, MOST_BUCKETS + 1))
    assert all(ladder.buckets[-1] == 1024 for ladder in found)
    for fewer, more in itertools.pairwise(found):
        assert more.prefill_ms.high <= fewer.prefill_ms.high
        assert fewer.compile_s and more.compile_s and more.compile_s.high > fewer.compile_s.high
        assert more.bytes_per_rank > fewer.bytes_per_rank
        assert more.context <= fewer.context


def test_padding_is_counted() -> None:
    """One bucket of 256 for prompts of 64 and 256: 320 of 512 rows hold a token; with two buckets all do."""
    (one, two, *_), _ = ladders(CONFIG, {64: 1, 256: 1})
    assert one.buckets == (256,) and one.padding == pytest.approx(1 - 320 / 512)
    assert two.buckets == (64, 256) and two.padding == 0


@pytest.mark.parametrize(
    ("text", "lengths"),
    [("900", {900: 1.0}), ("40:3,200:.5", {40: 3.0, 200: 0.5}), ("8,8:2", {8: 3.0}), ("40:", {40: 1.0})],
)
def test_lengths(text: str, lengths: dict[int, float]) -> None:
    assert parse_lengths(text) == lengths


@pytest.mark.parametrize("text", ["", "x", "0", "-3", "40:0", "40:nan", "40:inf", "4.5"])
def test_lengths_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match=r"e\.g\. --lengths 40:3,200:5,900"):
        parse_lengths(text)


def test_ladders_end_where_one_more_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    """31B over four cores of inf2 has room for few graphs; every bucket by itself fits."""
    words = ["model=31b", "tp=4", "target=inf2.24xlarge"]
    found, refused = ladders(load_config(words), {40: 3, 200: 5, 900: 1})
    assert 1 <= len(found) < MOST_BUCKETS
    assert "31b at tp=4 does not fit inf2.24xlarge" in str(refused)
    assert main(["--lengths", "40:3,200:5,900", *words]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("one bucket more: 31b at tp=4 does not fit")


def test_ladders_are_of_one_machine() -> None:
    """Each plan by itself would take the smallest machine; with more graphs that is a larger one."""
    words = ["model=31b", "tp=4", "shapes.kv_length=4096"]
    machine = build_plan(load_config([*words, "shapes.prefill_buckets=[1024]"])).target
    open_ended = ladders(load_config(words), {40: 1, 900: 1})
    named = ladders(load_config([*words, f"target={machine}"]), {40: 1, 900: 1})
    assert open_ended[0] == named[0]


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--lengths", "40:3,900", "model=31b", "tp=4", "target=trn2.3xlarge"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == MOST_BUCKETS and lines[0].startswith("shapes.prefill_buckets=[1024]: prefill ")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["--lengths", "4000", "model=31b", "tp=4"],
            "4000 tokens do not fit shapes.kv_length=2048; e.g. shapes.kv_length=4096",
        ),
        (["--lengths", "40", "model=31b", "tp=2"], "31b at tp=2 fits no known machine"),
        (["--lengths", "40", "modle=31b"], "unknown key modle"),
        (
            ["--lengths", "40,900", "model=e2b", "target=g5g.2xlarge"],
            "e2b by vllm on g5g.2xlarge has no prefill graphs",
        ),
        (
            ["--lengths", "40,900", "model=e4b", "tp=2", "recipe=tp_alias", "recipe.prefill=host"],
            "e.g. recipe.prefill=device",
        ),
    ],
)
def test_a_mistake_is_a_sentence(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert says in capsys.readouterr().err

"""What a person reads. After a change that is meant: ``python -m tests.diff --write``, and read the difference."""

from __future__ import annotations

import pytest

from tests.diff import CASES, compared, planned, stored, strangers, text_of


@pytest.mark.parametrize("name", CASES)
def test_text_is_as_its_golden(name: str) -> None:
    assert text_of(compared(name)) == stored(name)


def test_there_are_goldens_and_no_others() -> None:
    assert strangers() == []


@pytest.mark.parametrize("name", CASES)
def test_it_can_be_read(name: str) -> None:
    """No line is wider than a pipe's, and two models are told in under 200 lines."""
    lines = text_of(compared(name)).splitlines()
    assert len(lines) < 200
    assert max(map(len, lines)) <= 160


def told(name: str) -> list[str]:
    """Its lines with single spaces."""
    return [" ".join(line.split()) for line in text_of(compared(name)).splitlines()]


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        pytest.param(
            "linear-ring",
            [
                "shapes.kv_layout linear ring the configuration asks for it",
                "40 sliding (0-4,6-10,…,42-46) kv.shape 1x4x2048x256 1x4x1024x256",
                "rank files keep - -",
            ],
            id="ring",
        ),
        pytest.param(
            "one-more-bucket",
            ["graph prefill_128 keep - -", "graph decode keep - -", "rank files keep - -"],
            id="bucket",
        ),
        pytest.param(
            "31b-replicate-group",
            ["decision attention.full_attention replicate group the configuration asks for it"],
            id="policy",
        ),
        pytest.param(
            "neuron-2.28-neuron-2.31",
            [
                "! 50 sliding, 10 full (0-59) attention.implementation eager sdpa the usual choice where nothing speaks "
                "against it",
                "rank files keep - -",
            ],
            id="sdk",
        ),
        pytest.param("neuron-vllm", ["graph decode drop 2ca4bff48617 -", "rank files unused - -"], id="stack"),
        pytest.param("same", ["same: nothing to rebuild"], id="same"),
    ],
)
def test_what_to_rebuild_is_said(name: str, lines: list[str]) -> None:
    found = told(name)
    for line in lines:
        assert line in found


def test_rank_tensors_are_counted() -> None:
    """One for each of the 30 layers."""
    diff = compared("experts")
    edits = [edit for edit in diff.changes if edit.path[0] == "rank_tensors"]
    assert [edit.count for edit in edits] == [len(planned(CASES["experts"][1]).rank_tensors)] == [30]
    assert f"{edits[0].path[1]} {edits[0].count} add" in told("experts")


def test_every_tensor() -> None:
    """By role, or each group of tensors that changed alike."""
    diff = compared("e4b-12b")
    by_role, every = text_of(diff), text_of(diff, every_tensor=True)
    assert "and 13 roles with fewer bytes: --tensors" in by_role
    names = {change.name for change in diff.tensors}
    for name in names:
        assert name.removeprefix("model.language_model.").removeprefix("layers.{}.") in every
    assert "5,11,17,23" in every and "5,11,17,23 " not in by_role.partition(" tensors ")[2]

"""What a person reads. After a change that is meant: ``python -m tests.diff --write``, and read the difference."""

from __future__ import annotations

import pytest
from rich.console import Console

from gemma4cfg import diff_plans
from gemma4cfg.views.console import PIPE_WIDTH
from gemma4cfg.views.diff.figures import show_figures
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
    assert len(lines) < 220
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
                "40 sliding (0-4,6-10,…,42-46) kv.shape 1x4x2048x256 1x4x1024x256 the configuration asks for it",
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


def test_roles_of_two_layer_types_are_told_by_type() -> None:
    """Both shapes and both reasons; of the full layers only the ranges changed."""
    found = "\n".join(told("26b-a4b-tp4-tp8"))
    assert (
        "self_attn.k_proj.weight 30 sliding 512x2816, sliding 256x2816, 86.5 MB 50.5 MB nothing else is possible here; "
        "fewest device bytes per rank\nfull old ranges full new ranges\n"
    ) in found
    assert "attention.local_q_heads 4 2 nothing else is possible here;\nfewest device bytes per rank\n" in found


def test_rank_tensors_are_counted() -> None:
    """One for each of the 30 layers."""
    diff = compared("experts")
    edits = [edit for edit in diff.changes if edit.path[0] == "rank_tensors"]
    assert [edit.count for edit in edits] == [len(planned(CASES["experts"][1]).rank_tensors)] == [30]
    assert f"{edits[0].path[1]} {edits[0].count} add" in told("experts")


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        pytest.param(
            "26b-a4b-tp4-tp8",
            ["compile s (estimate) 212.1-424.1 715.4-1430 +237.24%", "longest context tokens 177,152"],
            id="up",
        ),
        pytest.param("26b-a4b-tp4-tp8", ["compile on trn2.3xlarge inf2.8xlarge"], id="machine"),
        pytest.param(
            "linear-ring",
            ["512 79.93-159.8 77.8-155.5", "$/M tokens (estimate) on demand 10.46-15.47 10.32-15.26 -1.31%, -1.33%"],
            id="ring",
        ),
        pytest.param("one-more-bucket", ["prefill ms, bucket (estimate) 512 - 48.62-97.22"], id="bucket"),
        pytest.param(
            "neuron-vllm",
            ["can load no yes", "on demand 3.812-5.707 -", "compile s (estimate) 834.6-1669 -"],
            id="stack",
        ),
    ],
)
def test_figures_that_changed(name: str, rows: list[str]) -> None:
    found = told(name)
    for row in rows:
        assert any(row in line for line in found), row


@pytest.mark.parametrize("name", CASES)
def test_every_figure_that_changed_is_told(name: str) -> None:
    """Of the budget and the estimate: what is not among them is a list, words or a bound."""
    untold = {"lines", "graphs", "on_chip", "basis", "alternatives", "floors", "prefill_ms"}
    diff = compared(name)
    console = Console(record=True, width=PIPE_WIDTH)
    for edit in diff.changes:
        if edit.path[0] in ("budget", "estimate") and edit.path[1] not in untold:
            show_figures([edit.to_json()], console)
            assert console.export_text().strip(), edit.path


def test_compiling_is_told_in_seconds() -> None:
    """Where a graph is to be compiled, and not otherwise."""
    seconds = planned(CASES["linear-ring"][1]).estimate.compile_s
    assert seconds is not None and compared("linear-ring").rebuild.compile_s == seconds
    assert f"compile 2 of 2 graphs (all: {seconds.low:,.0f}-{seconds.high:,.0f} s)" in told("linear-ring")[-1]
    assert compared("same").rebuild.compile_s is None
    assert compared("neuron-vllm").rebuild.compile_s is None


def test_totals_are_those_of_the_tables() -> None:
    """Another dtype changes no tensor's entry, but what a rank holds of it."""
    diff = diff_plans(planned("model=31b tp=8"), planned("model=31b tp=8 dtype=float32"))
    named = {change.name for change in diff.tensors}
    assert not any(edit.path[0] == "tensors" for edit in diff.changes)
    assert len(named) == 16 and diff.totals.tensors == sum(change.count for change in diff.tensors) > 800
    assert {change.reason for change in diff.tensors} == {"requested"}
    assert f"{diff.totals.tensors} tensors" in " ".join(text_of(diff).split())


def test_every_tensor() -> None:
    """By role, or each group of tensors that changed alike."""
    diff = compared("e4b-12b")
    by_role, every = text_of(diff), text_of(diff, every_tensor=True)
    assert "and 13 roles with fewer bytes: --tensors" in by_role
    names = {change.name for change in diff.tensors}
    for name in names:
        assert name.removeprefix("model.language_model.").removeprefix("layers.{}.") in every
    assert "5,11,17,23" in every and "5,11,17,23 " not in by_role.partition(" tensors ")[2]

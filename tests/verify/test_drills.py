"""Planted faults: every one that a model can have is found, by the checks that are there for it and by no other, and with
those broken it goes undetected."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemma4cfg import load_config
from gemma4cfg.errors import ConfigError, PlanError
from gemma4cfg.runtime import local_model, ranks
from gemma4cfg.verify.drills.catalogue import DRILLS, drill_named
from gemma4cfg.verify.drills.run import Drilled, DrillResult, result_of, run_drill, run_drills, with_choices
from gemma4cfg.verify.place import Here
from gemma4cfg.verify.subject import subject_of
from tests.verify.breaking import broken
from tests.verify.shortened import short_config

REFERENCE = frozenset({"prefill_logits", "decode_logits", "tokens", "layers"})
"""Checks that compare with the reference."""

STRUCTURE = {
    "last_layer_scalar_dropped": {"weights", "layers"},
    "ple_combine_scale": {"constants", *REFERENCE},
    "ple_projection_scale": {"constants"},
    "top_k_not_renormalised": {"constants"},
    "replicated_layer_summed": {"collectives"},
    "weight_baked_in": {"placements"},
    "expert_ids_of_rank_0": {*REFERENCE},
}
"""Faults that show in no logits, or hardly: what finds them instead."""

MODELS = {"e2b": 2, "e4b": 4, "12b": 4, "26b-a4b": 4, "31b": 8}
"""Model to TP degree: one at which it groups or splits KV heads in the way that is its own."""

APPLIES = {
    "e2b": {
        "wrong_kv_owner",
        "second_writer",
        "optional_tensors_loaded",
        "ple_scale",
        "ple_wiring",
        "ple_combine_scale",
    },
    "e4b": {
        "wrong_kv_owner",
        "second_writer",
        "optional_tensors_loaded",
        "interleaved_replicas",
        "ple_projection_scale",
    },
    "12b": {"value_after_k_norm", "groups_interleaved", "half_a_head", "replicated_layer_summed"},
    "26b-a4b": {"packed_cut_as_one", "expert_slice_of_rank_0", "expert_ids_of_rank_0", "experts_wrong_norm"},
    "31b": {"interleaved_replicas", "value_after_k_norm", "groups_interleaved", "vocabulary_rows_lost"},
}
"""Some of what each must be drilled in."""


EDGES = {"window_plus_one", "window_minus_one", "ring_off_by_one", "pad_rows_visible", "prefill_chunk_positions"}
"""Faults where a window or a bucket ends."""


REFUSED = {name for name, drill in DRILLS.items() if drill.refused}
"""Faults that no run survives: the loader refuses them."""


of_each_model = pytest.mark.parametrize(
    "model", [pytest.param(model, marks=pytest.mark.xdist_group(model)) for model in MODELS], scope="module"
)
"""One worker runs all drills of a model, once."""


@pytest.fixture(scope="module")
def work() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


@pytest.fixture(scope="module")
def drilled(model: str, work: Path) -> list[Drilled]:
    """Every drill's run; what the checks say of it is asked of each test anew."""
    config = short_config(model, f"tp={MODELS[model]}")
    return list(run_drills(config, list(DRILLS.values()), subject_of, 6, 0, work, Here()))


@pytest.fixture
def results(model: str, drilled: list[Drilled]) -> tuple[str, dict[str, DrillResult]]:
    return model, {one.drill.name: result_of(one) for one in drilled}


@of_each_model
def test_every_drill_is_detected(results: tuple[str, dict[str, DrillResult]]) -> None:
    model, found = results
    missed = {name: result.evidence for name, result in found.items() if result.applies and not result.detected}
    assert not missed
    applied = {name for name, result in found.items() if result.applies}
    assert applied >= APPLIES[model]
    assert len(applied) >= 16
    assert found["ring_off_by_one"].choices == ("shapes.kv_layout=ring",)


@of_each_model
def test_found_by_what_is_there_for_it(results: tuple[str, dict[str, DrillResult]]) -> None:
    for name, result in results[1].items():
        if result.applies and name in STRUCTURE:
            assert set(result.found_by) <= STRUCTURE[name], (name, result.found_by)
            assert set(result.found_by) - REFERENCE or name == "expert_ids_of_rank_0", (name, result.found_by)
        elif result.applies and name in REFUSED:
            assert result.found_by == ("run",), result.found_by
        elif result.applies:
            assert set(result.found_by) & REFERENCE, (name, result.found_by)


@of_each_model
def test_with_its_checks_broken_it_goes_undetected(drilled: list[Drilled]) -> None:
    """No drill passes by accident. Each of the checks is enough by itself."""
    ran = {one.drill.name: one for one in drilled if one.run is not None}
    assert len(ran) >= 16
    for name, one in ran.items():
        found_by = result_of(one).found_by
        with broken(*found_by):
            assert not result_of(one).detected, name
        for check in found_by:
            with broken(*(other for other in found_by if other != check)):
                assert result_of(one).found_by == (check,), name


@of_each_model
def test_without_its_refusals_a_loader_is_found_by_nothing(
    drilled: list[Drilled], work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is loaded too much is read by nothing, so that only the loader can tell."""
    refused = [one for one in drilled if one.prepared is not None and one.run is None]
    applied = {one.drill.name for one in drilled if one.prepared is not None}
    assert {one.drill.name for one in refused} == applied & REFUSED
    monkeypatch.setattr(local_model, "_place", _unless(LookupError, local_model._place))
    monkeypatch.setattr(ranks, "load_rank", _unless(PlanError, ranks.load_rank))
    for one in refused:
        assert one.prepared is not None
        again = run_drill(one.drill, one.prepared, work, Here())
        assert not result_of(again).detected, again.ended


def _unless(error: type[Exception], function: Callable[..., None]) -> Callable[..., None]:
    """The function without its refusal, which comes after everything else that it does."""

    def tolerant(*given: Any) -> None:
        with suppress(error):
            function(*given)

    return tolerant


def test_every_drill_is_run_on_some_model() -> None:
    """So that each is broken above."""
    assert {name for name in DRILLS if not any(_applies(name, model) for model in MODELS)} == set()


def _applies(name: str, model: str) -> bool:
    drill = DRILLS[name]
    try:
        subject = subject_of(with_choices(short_config(model, f"tp={MODELS[model]}"), drill.choices))
    except ConfigError:
        return False
    return drill.needs.met(subject)


@of_each_model
def test_a_softcap_that_is_dropped_changes_no_token(results: tuple[str, dict[str, DrillResult]]) -> None:
    result = results[1]["softcap_dropped"]
    assert result.applies
    assert "tokens" not in result.found_by
    assert {"prefill_logits", "decode_logits", "constants"} <= set(result.found_by)


def test_names_are_unique_and_every_room_has_some() -> None:
    assert {drill.room for drill in DRILLS.values()} == {"loader", "plan", "graph", "host"}
    assert all(name == drill.name for name, drill in DRILLS.items())


def test_an_unknown_drill_is_named_with_a_near_one() -> None:
    with pytest.raises(
        ConfigError, match=r"verify.inject=softcap_droped: no such drill; did you mean 'softcap_dropped'"
    ):
        drill_named("softcap_droped")


def test_without_a_near_name_all_are_listed() -> None:
    with pytest.raises(ConfigError, match=f"; known: {', '.join(sorted(DRILLS))}; all runs every one"):
        drill_named("foo")


@pytest.mark.parametrize(
    "lengths,missing",
    [
        ((1, 8), EDGES),
        ((1, 9), {"prefill_chunk_positions"}),
        ((1, 13), set()),
    ],
)
def test_prompts_that_reach_no_edge_cannot_have_its_faults(lengths: tuple[int, ...], missing: set[str]) -> None:
    """A window of 8 keys, a bucket of 12 rows."""
    subject = replace(subject_of(short_config("e2b")), lengths=lengths)
    assert {name for name in EDGES if not DRILLS[name].needs.met(subject)} == missing


def test_choices_are_applied_to_the_settings() -> None:
    changed = with_choices(load_config(["model=e2b"]), (("shapes.kv_layout", "ring"), ("moe.partition", "experts")))
    assert changed.settings.shapes.kv_layout == "ring"
    assert changed.settings.moe.partition == "experts"

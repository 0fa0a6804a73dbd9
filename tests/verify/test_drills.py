"""Planted faults: every one that a model can have is found, by the checks that are there for it and by no other."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from gemma4cfg import load_config
from gemma4cfg.errors import ConfigError
from gemma4cfg.verify.drills.catalogue import DRILLS, drill_named
from gemma4cfg.verify.drills.run import DrillResult, run_drills, with_choices
from gemma4cfg.verify.place import Here
from gemma4cfg.verify.subject import subject_of
from tests.verify.shortened import short_config

REFERENCE = frozenset({"prefill_logits", "decode_logits", "tokens", "layers"})
"""Checks that compare with the reference."""

STRUCTURE = {
    "last_layer_scalar_dropped": {"weights", "layers"},
    "ple_combine_scale": {"constants", *REFERENCE},
    "ple_projection_scale": {"constants"},
    "top_k_not_renormalised": {"constants"},
    "replicated_layer_summed": {"collectives"},
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


@pytest.fixture(scope="module", params=[pytest.param(m, marks=pytest.mark.xdist_group(m)) for m in MODELS])
def results(request: pytest.FixtureRequest) -> tuple[str, dict[str, DrillResult]]:
    config = short_config(request.param, f"tp={MODELS[request.param]}")
    with tempfile.TemporaryDirectory() as work:
        found = run_drills(config, list(DRILLS.values()), subject_of, 6, 0, Path(work), Here())
        return request.param, {result.name: result for result in found}


def test_every_drill_is_detected(results: tuple[str, dict[str, DrillResult]]) -> None:
    model, found = results
    missed = {name: result.evidence for name, result in found.items() if result.applies and not result.detected}
    assert not missed
    applied = {name for name, result in found.items() if result.applies}
    assert applied >= APPLIES[model]
    assert len(applied) >= 16


def test_found_by_what_is_there_for_it(results: tuple[str, dict[str, DrillResult]]) -> None:
    """With those checks broken, it would go undetected: no drill passes by accident."""
    for name, result in results[1].items():
        if result.applies and name in STRUCTURE:
            assert set(result.found_by) <= STRUCTURE[name], (name, result.found_by)
            assert set(result.found_by) - REFERENCE or name == "expert_ids_of_rank_0", (name, result.found_by)
        elif result.applies and result.found_by != ("run",):
            assert set(result.found_by) & REFERENCE, (name, result.found_by)


def test_a_softcap_that_is_dropped_changes_no_token(results: tuple[str, dict[str, DrillResult]]) -> None:
    result = results[1]["softcap_dropped"]
    assert result.applies
    assert "tokens" not in result.found_by
    assert {"prefill_logits", "decode_logits"} <= set(result.found_by)


def test_names_are_unique_and_every_room_has_some() -> None:
    assert {drill.room for drill in DRILLS.values()} == {"loader", "plan", "graph", "host"}
    assert all(name == drill.name for name, drill in DRILLS.items())


def test_an_unknown_drill_is_named_with_a_near_one() -> None:
    with pytest.raises(
        ConfigError, match=r"verify.inject=softcap_droped: no such drill; did you mean 'softcap_dropped'"
    ):
        drill_named("softcap_droped")


def test_choices_are_applied_to_the_settings() -> None:
    changed = with_choices(load_config(["model=e2b"]), (("shapes.kv_layout", "ring"), ("moe.partition", "experts")))
    assert changed.settings.shapes.kv_layout == "ring"
    assert changed.settings.moe.partition == "experts"

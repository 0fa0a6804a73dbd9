"""Plans of every kind run on CPU ranks and equal the reference; a run that did not meet a part of its plan says so."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gemma4cfg.config.compose import load_config
from gemma4cfg.verify.checks import graphs_exercised, placements_exercised, slots_written
from gemma4cfg.verify.matrix import MODELS, Case, cases, covering, every_case
from gemma4cfg.verify.place import Here
from gemma4cfg.verify.proof import Preparations, Prepared, prepare, prove
from gemma4cfg.verify.records import Proof
from gemma4cfg.verify.reference_process import ReferenceJob, run_reference
from gemma4cfg.verify.subject import subject_of
from tests.verify.shortened import SHORT, short_config

STEPS = 64
"""Decoded after each prompt: eight windows."""

NEAR_TIE = (67, 47, 60, 70, 118, 84, 31, 54, 43)
"""After some tokens of its answer, 26B-A4B's twin takes its eighth expert by a lead of 1.8e-7."""

CASES = cases(MODELS, "covering")


def model_of(case: Case) -> str:
    return case.overrides[0].removeprefix("model=")


@pytest.fixture(scope="session")
def work() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


@pytest.fixture(scope="session")
def preparations(work: Path) -> Preparations:
    return Preparations(STEPS, 0, work, Here())


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case, id=" ".join(value for _, value in case.features), marks=pytest.mark.xdist_group(model_of(case))
        )
        for case in CASES
    ],
)
def test_equals_the_reference(case: Case, preparations: Preparations, work: Path) -> None:
    model = model_of(case)
    overrides = [override for override in case.overrides if "layers" not in override]
    subject = subject_of(load_config([*overrides, *SHORT[model], "task=verify", f"verify.steps={STEPS}"]))
    proof = prove(preparations.of(subject), work, Here())
    assert proof.holds, [(check.name, check.detail) for check in proof.failed]
    assert {stream.prompt_tokens for stream in proof.streams} >= {1, 7, 8, 9, 16, 20 if "one_shot" in str(case) else 12}
    assert all(stream.undecided_tokens == 0 for stream in proof.streams)
    assert all(stream.decode_relative <= 1e-4 for stream in proof.streams)
    assert sum(stream.steps for stream in proof.streams) == STEPS * len(proof.streams)


@pytest.mark.xdist_group("26b-a4b")
def test_nothing_is_compared_after_a_choice_of_experts_that_rounding_could_change(work: Path) -> None:
    choices = ("moe.partition=experts", "tp=8", "shapes.prompt_chunking=false", "shapes.kv_layout=linear")
    subject = subject_of(short_config("26b-a4b", *choices, f"verify.steps={STEPS}"))
    checkpoint = subject.weights(0, work)
    reference = run_reference(ReferenceJob(str(checkpoint), STEPS, prompts=(NEAR_TIE, NEAR_TIE[:7])))
    near = reference.runs[0]
    assert len(near.prompt) < near.routed_positions < len(near.prompt) + STEPS
    assert not near.decided
    proof = prove(Prepared(subject, checkpoint, reference, {}), work, Here())
    assert proof.holds, proof.failed
    left_out = len(near.prompt) + STEPS - near.routed_positions
    assert [stream.left_out for stream in proof.streams] == [left_out, 0]
    assert [stream.steps for stream in proof.streams] == [STEPS - left_out, STEPS]
    assert f"{left_out} left out" in next(check.detail for check in proof.checks if check.name == "tokens")


def test_the_cases_cover_every_pair() -> None:
    every = every_case(MODELS)
    wanted = {pair for case in every for pair in case.pairs}
    assert {pair for case in CASES for pair in case.pairs} == wanted
    assert len(CASES) < len(every) / 4
    axes = {
        axis: {value for case in every for name, value in case.features if name == axis}
        for axis, _ in every[0].features
    }
    assert axes["tp"] == {"1", "2", "4", "8", "12"}
    assert axes["attention"] == {"split", "group", "replicate", "pad"}
    assert axes["kv_layout"] == {"linear", "ring"}
    assert axes["prefill"] == {"chunked", "one_shot"}
    assert {("moe", "experts"), ("moe", "intermediate")} <= {pair for case in every for pair in case.features}


def test_a_covering_array_without_one_case_covers_less() -> None:
    every = every_case(MODELS)
    for case in CASES:
        rest = {pair for other in CASES if other is not case for pair in other.pairs}
        assert rest != {pair for one in every for pair in one.pairs}
    assert covering(every) == CASES


@pytest.fixture(scope="module")
def proof(work: Path) -> Proof:
    subject = subject_of(short_config("e2b", "tp=2"))
    return prove(prepare(subject, 4, 0, Path(tempfile.mkdtemp(dir=work)), Here()), work, Here())


def test_what_a_proof_says(proof: Proof) -> None:
    assert proof.holds
    assert set(proof.exercised["graphs"]) == {"prefill_12", "decode"}
    assert set(proof.exercised["placements"]) == {"whole", "cut_dim_0", "cut_dim_1", "grouped", "buffer", "tied"}
    assert len(proof.exercised["slots"]) == 5
    assert len(proof.layers) == 10
    assert proof.reference["versions"]["transformers"].startswith("5.")
    assert set(proof.seconds) == {"weights", "reference", "reshard", "ranks"}
    from gemma4cfg.plan.encode import to_plain

    assert json.loads(json.dumps(to_plain(proof)))["checks"][0]["name"] == "reference"


@pytest.fixture(scope="module")
def ran(work: Path) -> tuple[object, list[object]]:
    """A plan and what its ranks did."""
    from gemma4cfg.verify.proof import rank_files, run_plan

    subject = subject_of(short_config("12b", "tp=2"))
    ready = prepare(subject, 2, 0, Path(tempfile.mkdtemp(dir=work)), Here())
    ranks = rank_files(subject.plan, ready.checkpoint, work)
    from gemma4cfg.verify.faults import NO_FAULT

    with Here().ranks(subject.plan, ranks, NO_FAULT) as group:
        run_plan(subject.plan, NO_FAULT, group, ranks, ready.reference.runs)
        return subject.plan, group.observed()


def test_a_part_that_was_never_run_fails_the_proof(ran: tuple[object, list[object]]) -> None:
    plan, observed = ran
    assert graphs_exercised(plan, observed).passed
    less = [replace(one, graph_calls={"decode": 2}) for one in observed]
    check = graphs_exercised(plan, less)
    assert not check.passed
    assert "prefill_12" in check.detail

    assert slots_written(plan, observed).passed
    for writes in ({**observed[0].slot_writes, 3: 0}, {**observed[0].slot_writes, 99: 1}):
        assert not slots_written(plan, [replace(observed[0], slot_writes=writes), observed[1]]).passed

    kinds = {"grouped": ("model.layers.5.self_attn.k_proj.weight",)}
    assert placements_exercised(kinds, observed).passed
    check = placements_exercised(kinds, [observed[0], replace(observed[1], unread=kinds["grouped"])])
    assert not check.passed
    assert "grouped" in check.detail

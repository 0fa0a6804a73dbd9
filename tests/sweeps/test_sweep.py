"""``gemma4cfg.sweep``: the rows that ``-m`` gives, in one process."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gemma4cfg import UserError, build_plan, load_config, sweep
from gemma4cfg.config.catalog import choices, every_choice
from gemma4cfg.config.compose import FAMILY_ORDER, config_from_plain, hydra_initialised
from gemma4cfg.config.target import Target
from gemma4cfg.errors import ConfigError
from gemma4cfg.plan.encode import to_plain
from gemma4cfg.sweeps.composer import Composer
from gemma4cfg.sweeps.files import write_sweep
from gemma4cfg.sweeps.jobs import Parser
from tests.cli.runs import run

MACHINES = [target.name for target in every_choice(Target, "target") if target.family in FAMILY_ORDER]


def test_the_rows_of_hydras_multirun(tmp_path: Path) -> None:
    """Every cell of every row, refusals included."""
    words = ["model=e2b,31b", "tp=2,four", "target=inf2.8xlarge,auto", "swap_gib=8"]
    done = run("-m", *words, cwd=tmp_path)
    assert done.exit_code == 0, done.err
    assert done.directory is not None
    table = json.loads((done.directory / "sweep.json").read_text())["jobs"]
    rows = sweep(words)
    assert table == [to_plain(row) for row in rows]
    assert [(row.status, row.reason) for row in rows] == [
        ("done", None),
        ("done", None),
        ("refused", "config"),
        ("refused", "config"),
        ("refused", "does_not_fit"),
        ("refused", "does_not_fit"),
        ("refused", "config"),
        ("refused", "config"),
    ]


def test_a_thousand_jobs() -> None:
    """Five models, eight TP degrees, three policies, nine machines: each a row, and each refusal names its reason."""
    assert len(MACHINES) == 9
    rows = sweep(
        [
            f"model={','.join(choices('model'))}",
            "tp=1,2,4,8,12,16,24,32",
            "attention.policy=auto,replicate,group",
            f"target={','.join(MACHINES)}",
        ]
    )
    assert [row.job for row in rows] == list(range(1080))
    assert len({row.overrides for row in rows}) == 1080
    refused = [row for row in rows if row.status == "refused"]
    assert 0 < len(refused) < 1080
    assert {row.reason for row in refused} == {"config", "does_not_fit"}
    assert all(row.message for row in refused)
    for row in rows[:: len(rows) // 12]:
        try:
            plan = build_plan(load_config(row.overrides))
        except UserError as error:
            assert (row.status, row.message) == (
                "refused",
                next(it for it in error.recorded if it.severity == "error").message,
            )
        else:
            assert (row.plan_id, row.hbm_per_rank, row.prefill_ms) == (
                plan.plan_id,
                plan.budget.hbm_per_rank,
                plan.estimate.prefill_ms,
            )


def test_lists_of_words_are_jobs() -> None:
    rows = sweep([["model=e2b"], ["model=31b", "tp=8"]])
    assert [(row.model, row.tp) for row in rows] == [("e2b", 1), ("31b", 8)]
    assert rows[1].overrides == ("model=31b", "tp=8")


def test_recompiles_and_rank_files() -> None:
    """A longer cache is another graph over the same rank files; a flag of the host neither."""
    rows = sweep(["model=12b", "tp=4", "shapes.kv_length=1024,2048", "swap_gib=0,64"])
    assert [row.recompiles for row in rows] == [0, 0, 2, 2]
    assert [row.rank_files_of for row in rows] == [0, 0, 0, 0]
    other = sweep([["model=31b", "tp=1"], ["model=12b", "tp=4"], ["model=12b", "tp=8"], ["model=12b", "tp=4"]])
    assert [row.recompiles for row in other] == [None, 0, 2, 0], "against the first that has a plan"
    assert [row.rank_files_of for row in other] == [None, 1, 2, 1]


def test_cost_where_a_price_is_known() -> None:
    known, unknown = sweep([["model=e2b", "target=inf2.xlarge"], ["model=e2b", "target=inf2.48xlarge"]])
    assert (
        known.usd_per_hour == 0.7582
        and known.usd_per_million_tokens is not None
        and known.decode_tokens_per_s is not None
    )
    low, high = known.usd_per_million_tokens.low, known.usd_per_million_tokens.high
    assert low == pytest.approx(0.7582e6 / 3600 / known.decode_tokens_per_s.high, rel=1e-5)
    assert high == pytest.approx(0.7582e6 / 3600 / known.decode_tokens_per_s.low, rel=1e-5)
    estimate = build_plan(load_config(known.overrides)).estimate
    assert known.usd_per_million_tokens == estimate.usd_per_million_tokens.on_demand
    assert (unknown.usd_per_hour, unknown.usd_per_million_tokens) == (None, None)
    (told,) = sweep([["model=e2b", "target=inf2.xlarge", "target.price.on_demand.usd_per_hour=2"]])
    assert told.usd_per_hour == 2


def test_a_search_is_a_job() -> None:
    (row,) = sweep(["model=e2b", "tp=auto", "objective=cost"])
    assert (row.target, row.tp) == ("inf2.xlarge", 2)


def test_an_objective_without_an_answer_is_a_row() -> None:
    rows = sweep(["model=e2b,31b", "tp=auto", "objective=cost"])
    assert [(row.status, row.reason) for row in rows] == [("done", None), ("refused", "nothing_left")]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        pytest.param(["tp=2", "tp=4"], "tp is given twice, tp=2 and tp=4", id="twice"),
        pytest.param(["tp=1,2", "tp=4,8"], "together: tp=1,2,4,8", id="swept-twice"),
        pytest.param(["tp=1,2", "++tp=4"], "tp is given twice", id="forced"),
        pytest.param(
            ["attention.layers={0:pad},{1:pad}", "attention.layers={0:group},{1:group}"],
            "together: attention.layers={0:pad},{1:pad},{0:group},{1:group}",
            id="mappings-twice",
        ),
        pytest.param(["model=glob(zz*)"], "a sweep over nothing; choices: 12b", id="glob"),
        pytest.param(["tp=range(5,5)"], "tp=range(5,5): a sweep over nothing", id="range"),
        pytest.param(["tp=interval(1,4)"], "does not support sweep type", id="interval"),
        pytest.param(["model=e2c"], "model=e2c: no such choice", id="choice"),
        pytest.param(["model=e2b", "tpp=1,2"], "unknown key tpp; did you mean 'tp'?", id="key"),
        pytest.param(["tp=1,{"], "not an override", id="grammar"),
        pytest.param([["tp=1,2"]], "tp=1,2 has several values", id="values-in-a-job"),
        pytest.param(["tp=1", ["tp=2"]], "tp=1 stands among lists", id="mixed"),
        pytest.param("tp=1,2", "expected a list of words", id="text"),
        pytest.param(["model=e2b", "task=generate"], "task=generate: sweep() makes plans and runs no task", id="task"),
        pytest.param(["model=e2b", "task=plan,verify"], "task=verify: sweep() makes plans", id="one-task"),
    ],
)
def test_words_that_are_no_sweep(words: list[str], told: str) -> None:
    """Cases 87 and 92, and what else would be lost without a word."""
    with pytest.raises(ConfigError) as raised:
        sweep(words)
    assert told in str(raised.value)


def test_a_key_that_was_added_is_a_row() -> None:
    """Case 92: ``+`` opens Hydra's structs, not ours."""
    rows = sweep(["model=e2b", "+tpp=4,8"])
    assert {row.message for row in rows} == {"unknown key tpp; did you mean 'tp'?"}


WORDS: dict[str, list[str]] = {
    "model": ["e2b", "26b-a4b", "auto"],
    "target": ["inf2.24xlarge", "auto"],
    "shapes": ["kv128", "kv32k"],
    "offload": ["lean", "device"],
    "objective": ["memory"],
    "experiment": ["e4b-tp2-alias-512-128", "e2b-g5g-2xlarge"],
    "tp": ["4", "eight", "auto", "null", "'8'"],
    "shapes.prefill_buckets": ["[64,128]", "[]"],
    "shapes.kv_length": ["1024", "${swap_gib}"],
    "model.attention.full_attention.kv_heads": ["8"],
    "target.price.on_demand": ["null", "{usd_per_hour: 1.5, region: null, date: null, source: x}"],
    "attention": ["{policy: pad}"],
    "attention.layers": ["{full_attention: replicate}"],
    "+attention.layers": ["{0: pad}"],
    "++swap_gib": ["4"],
    "~ple": [],
    "output": ["/a/b", "'a b'"],
}


@given(
    st.lists(st.sampled_from(sorted(WORDS)), unique=True, max_size=5).flatmap(
        lambda keys: st.tuples(*(st.sampled_from([f"{key}={value}" for value in WORDS[key]] or [key]) for key in keys))
    )
)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_composing_is_hydras(words: tuple[str, ...]) -> None:
    """Whatever the words: the configuration that Hydra composes, or its refusal."""
    composed_alike(words)


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("model=e2b", "experiment=e4b-tp2-alias-512-128"), id="choices-of-one-node"),
        pytest.param(("model=auto", "experiment=e4b-tp2-alias-512-128"), id="default-against-experiment"),
        pytest.param(("tp=8", "experiment=e2b-trace-512-128", "shapes=kv32k"), id="value-over-experiment"),
        pytest.param(("model=e2b", "shapes.kv_length=${swap_gib}", "swap_gib=1024"), id="interpolation"),
        pytest.param(("model=e2b", "model.moe.top_k=4"), id="below-null"),
        pytest.param(("model=e2b", "tp.ranks=4"), id="below-a-number"),
        pytest.param(("model=e2b", "tpp=4"), id="unknown"),
        pytest.param(("model=e2b", "model=e4b"), id="twice"),
        pytest.param(("model=e2b", "attention={policy: pad}"), id="merged"),
        pytest.param(("model=e2b", "moe=null"), id="node-to-null"),
        pytest.param(("model=e2b", "shapes.prefill_buckets=[64,128]", "output='a b'"), id="list-and-text"),
        pytest.param(("model=e2b", "+attention.layers={0: pad}", "~ple"), id="added-and-deleted"),
    ],
)
def test_composing_is_hydras_where_it_is_hard(words: tuple[str, ...]) -> None:
    composed_alike(words)


def composed_alike(words: tuple[str, ...]) -> None:
    with hydra_initialised():
        composer = Composer(Parser())
        try:
            expected = to_plain(load_config(words))
        except UserError as error:
            with pytest.raises(UserError) as raised:
                config_from_plain(composer(words), words)
            assert str(raised.value) == str(error)
        else:
            assert to_plain(config_from_plain(composer(words), words)) == expected


def test_files(tmp_path: Path) -> None:
    rows = sweep(["model=e2b,31b", "tp=2"])
    write_sweep(tmp_path, rows)
    told = json.loads((tmp_path / "sweep.json").read_text())["jobs"]
    lines = list(csv.DictReader((tmp_path / "sweep.csv").open()))
    assert [line["overrides"] for line in lines] == ["model=e2b tp=2", "model=31b tp=2"]
    assert [line["status"] for line in lines] == [row["status"] for row in told] == ["done", "refused"]
    assert lines[0]["hbm_per_rank.weights"] == str(told[0]["hbm_per_rank"]["weights"])
    assert lines[0]["decode_tokens_per_s.low"] == str(told[0]["decode_tokens_per_s"]["low"])
    assert (lines[1]["hbm_per_rank.weights"], lines[1]["reason"]) == ("", "does_not_fit")
    assert lines[1]["message"] == told[1]["message"] == rows[1].message

"""Folding loses nothing and writes equal entries once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4cfg import build_plan, load_config
from gemma4cfg.plan.encode import canonical
from gemma4cfg.plan.fold import fold, unfold
from gemma4cfg.runs import expand, index_runs

PARTS = st.sampled_from(["layers", "0", "1", "2", "10", "007", "{}", "{0-1}", "{", "", "{{", "norm", "-1", "a\n0", "٣"])
NAMES = st.one_of(st.lists(PARTS, min_size=1, max_size=4).map(".".join), st.lists(PARTS, max_size=3).map("_".join))
KEYS = st.one_of(NAMES, st.sampled_from(["name", "local_name", "index", "slot", "owner"]))
VALUES = st.one_of(
    NAMES, st.integers(-2, 4), st.booleans(), st.none(), st.sampled_from([0.0, 1.0]), st.text(max_size=3)
)
PLAIN = st.recursive(
    VALUES,
    lambda inner: st.one_of(st.lists(inner, max_size=6), st.dictionaries(KEYS, inner, max_size=6)),
    max_leaves=30,
)
RECORDS = st.fixed_dictionaries(
    {"index": st.integers(0, 4), "name": NAMES, "local_name": NAMES, "kv": st.fixed_dictionaries({"slot": VALUES})}
)


@given(st.one_of(PLAIN, st.lists(RECORDS, max_size=8), st.dictionaries(NAMES, RECORDS, max_size=8)))
def test_unfold_gives_back_what_was_folded(plain: Any) -> None:
    assert canonical(unfold(fold(plain))) == canonical(plain)


@given(st.lists(st.integers(0, 30)))
def test_runs_keep_any_sequence(numbers: list[int]) -> None:
    assert expand(index_runs(numbers)) == numbers


@pytest.mark.parametrize(
    ("plain", "folded"),
    [
        pytest.param(
            {f"layers.{n}.norm": {"shape": [8], "local_name": f"{n}.norm"} for n in (0, 1, 2, 4)},
            {"layers.{0-2,4}.norm": {"shape": [8], "local_name": "{}.norm"}},
            id="mapping",
        ),
        pytest.param(
            [{"index": 0, "slot": 3}, {"index": 1, "slot": 7}, {"index": 2, "slot": 8}, {"index": 3, "slot": None}],
            {"{0-2}": {"index": "{}", "slot": "{3,7-8}"}, "{3}": {"index": 3, "slot": None}},
            id="list",
        ),
        pytest.param(
            [{"name": f"{part}_{n}"} for n in range(3) for part in ("key", "value")],
            {"{0,2,4}": {"name": "key_{0-2}"}, "{1,3,5}": {"name": "value_{0-2}"}},
            id="interleaved",
        ),
        pytest.param({"a.0": 1, "a.1": 1.0, "a.2": True}, {"a.0": 1, "a.1": 1.0, "a.2": True}, id="types_stay_apart"),
        pytest.param({"a.0": {"index": 7}, "a.1": {"index": 7}}, {"a.{0-1}": {"index": 7}}, id="a_constant_number"),
        pytest.param({"0": 1, "1": 1}, {"0": 1, "1": 1}, id="bare_numbers_are_no_names"),
        pytest.param({"a.0.n_1": 1, "a.1.n_1": 1}, {"a.{0-1}.n_1": 1}, id="between_dots_first"),
        pytest.param({"a.0.0": 1, "a.1.1": 1}, {"a.0.0": 1, "a.1.1": 1}, id="two_numbers"),
        pytest.param({"a.{}": "{0-1}"}, {"a.{{}": "{{0-1}"}, id="braces_of_ones_own"),
    ],
)
def test_form(plain: Any, folded: Any) -> None:
    assert fold(plain) == folded
    assert canonical(unfold(folded)) == canonical(plain)


@pytest.mark.parametrize(
    "overrides",
    [
        ["model=e2b", "tp=2"],
        ["model=26b-a4b", "tp=8", "moe.partition=experts", "attention.policy=replicate"],
        ["model=31b", "tp=12", "attention.policy=pad"],
        ["model=12b", "tp=2", "shapes.kv_layout=ring", "shapes.prefill_buckets=[128,512]"],
    ],
    ids=lambda overrides: ",".join(overrides),
)
def test_plans(overrides: list[str]) -> None:
    plain = build_plan(load_config(overrides)).to_json()
    folded = fold(plain)
    assert canonical(unfold(folded)) == canonical(plain)
    assert len(canonical(folded)) < len(canonical(plain)) / 5

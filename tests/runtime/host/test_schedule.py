"""Calls for prompts: every token once and in order, one graph a call, as few as there can be; what does not fit is refused."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gemma4cfg.errors import ConfigError
from gemma4cfg.plan.records import Plan
from gemma4cfg.runtime.host.schedule import Step, check_prompt, decode_step, graph_rows, prompt_steps
from tests.twins import twin_plan

SETTINGS = settings(max_examples=80, deadline=None, derandomize=True, database=None)
BATCH, KV_LENGTH = 3, 64


@functools.cache
def plan_of(*choices: str) -> Plan:
    shapes = (f"shapes.batch={BATCH}", f"shapes.kv_length={KV_LENGTH}", "shapes.prefill_buckets=[4]")
    return Plan.from_json(twin_plan("31b", 2, *shapes, *choices))


def bucketed(buckets: Sequence[int], chunking: bool = True) -> Plan:
    return plan_of(f"shapes.prefill_buckets=[{','.join(map(str, buckets))}]", f"shapes.prompt_chunking={chunking}")


BUCKETS = [(2,), (5,), (4, 8), (3, 4, 16), (2, 6, 7, 9)]
PROMPTS = st.dictionaries(st.integers(0, BATCH - 1), st.integers(1, 40), min_size=1)
HELD = st.lists(st.integers(0, 24), min_size=BATCH, max_size=BATCH)


def smallest_holding(tokens: int, buckets: Sequence[int]) -> int:
    return min((size for size in buckets if size >= tokens), default=max(buckets))


def fewest_calls(prompts: Mapping[int, int], buckets: Sequence[int]) -> int:
    """By exhaustion: at every turn each bucket that any stream wants next may run, for all of them or only for some; to run
    it for all is never worse."""

    @functools.cache
    def search(left: tuple[int, ...]) -> int:
        if not any(left):
            return 0
        wants = [smallest_holding(tokens, buckets) if tokens else 0 for tokens in left]
        return 1 + min(
            search(tuple(max(0, t - size) if want == size else t for t, want in zip(left, wants, strict=True)))
            for size in set(wants) - {0}
        )

    return search(tuple(sorted(prompts.values())))


@SETTINGS
@given(buckets=st.sampled_from(BUCKETS), prompts=PROMPTS, held=HELD)
def test_every_token_once_in_order_in_the_fewest_calls(
    buckets: tuple[int, ...], prompts: dict[int, int], held: list[int]
) -> None:
    plan = bucketed(buckets)
    rows_of = {graph.name: graph_rows(graph) for graph in plan.graphs if graph.kind == "prefill"}
    steps = prompt_steps(plan, held, prompts)
    left = dict(prompts)
    for step in steps:
        assert len(step.rows) == BATCH
        assert any(step.rows)
        for stream, rows in enumerate(step.rows):
            if rows:
                # A call takes what comes next: all of it in the smallest bucket that holds it, or the largest, full.
                assert rows_of[step.graph] == smallest_holding(left[stream], buckets)
                assert rows == min(left[stream], max(buckets))
                left[stream] -= rows
    assert not any(left.values())
    assert len(steps) == fewest_calls(prompts, buckets)


@SETTINGS
@given(prompts=PROMPTS, held=HELD)
def test_without_prefill_graphs_a_token_a_call(prompts: dict[int, int], held: list[int]) -> None:
    steps = prompt_steps(plan_of("recipe=tp_alias", "recipe.prefill=host"), held, prompts)
    expected = [
        tuple(int(prompts.get(stream, 0) > turn) for stream in range(BATCH)) for turn in range(max(prompts.values()))
    ]
    assert steps == tuple(Step("decode", rows) for rows in expected)


@SETTINGS
@given(tokens=st.integers(1, 70), new=st.integers(0, 40), held=st.integers(0, 64), chunking=st.booleans())
@example(tokens=8, new=56, held=0, chunking=False)
@example(tokens=9, new=0, held=55, chunking=True)
@example(tokens=9, new=1, held=55, chunking=True)
def test_refused_exactly_where_it_does_not_fit(tokens: int, new: int, held: int, chunking: bool) -> None:
    fits = held + tokens + new <= KV_LENGTH and (chunking or (held == 0 and tokens <= 8))
    plan = bucketed((4, 8), chunking)
    if fits:
        (step, *_) = prompt_steps(plan, [0, held, 0], {1: tokens}, new)
        assert step.rows == (0, min(tokens, 8), 0)
    else:
        with pytest.raises(ConfigError):
            prompt_steps(plan, [0, held, 0], {1: tokens}, new)


def test_streams_that_want_other_buckets_sit_out() -> None:
    steps = prompt_steps(bucketed((4, 8)), [0, 3, 0], {0: 19, 1: 8, 2: 10})
    assert steps == (
        Step("prefill_8", (8, 8, 8)),
        Step("prefill_8", (8, 0, 0)),
        Step("prefill_4", (3, 0, 2)),
    )


def test_decode_takes_a_row_of_each_stream() -> None:
    assert decode_step(bucketed((4,)), [3, 63, 0], [0, 1]) == Step("decode", (1, 1, 0))


REFUSED = {
    "bucket": (
        lambda: prompt_steps(bucketed((4, 8), False), [0, 0, 0], {2: 9}),
        "stream 2: a prompt of 9 tokens, the largest prefill bucket is 8 and shapes.prompt_chunking=false: refused, not "
        "clipped; set shapes.prompt_chunking=true, or shapes.prefill_buckets=[4,8,9]",
    ),
    "position": (
        lambda: prompt_steps(bucketed((4, 8), False), [0, 5, 0], {1: 2}),
        "stream 1: it holds 5 tokens, and with shapes.prompt_chunking=false a prompt starts at position 0; reset the "
        "stream and give the whole prompt, or set shapes.prompt_chunking=true",
    ),
    "prompt-and-new": (
        lambda: prompt_steps(bucketed((4, 8)), [10, 0, 0], {0: 20}, 40),
        "stream 0: 10 held + 20 of the prompt + 40 new = 70 tokens, shapes.kv_length=64: refused, not clipped; set "
        "generate.max_new_tokens=34, or shapes.kv_length=70",
    ),
    "prompt-alone": (
        lambda: prompt_steps(bucketed((4, 8)), [0, 0, 0], {0: 65}),
        "stream 0: 65 of the prompt = 65 tokens, shapes.kv_length=64: refused, not clipped; set shapes.kv_length=65",
    ),
    "no-room-for-new": (
        lambda: check_prompt(bucketed((4, 8)), 0, 64, 5, "prompt 3"),
        "prompt 3: 64 of the prompt + 5 new = 69 tokens, shapes.kv_length=64: refused, not clipped; set shapes.kv_length=69",
    ),
    "empty": (
        lambda: prompt_steps(bucketed((4,)), [0, 0, 0], {1: 0}),
        "stream 1: an empty prompt; a prompt is at least one token, e.g. <bos>",
    ),
    "batch": (
        lambda: prompt_steps(bucketed((4,)), [0, 0, 0], {0: 2, 3: 2}),
        "stream 3: shapes.batch=3 has streams 0 to 2",
    ),
    "batch-of-decode": (
        lambda: decode_step(bucketed((4,)), [0, 0, 0], [-1]),
        "stream -1: shapes.batch=3 has streams 0 to 2",
    ),
    "full": (
        lambda: decode_step(bucketed((4,)), [0, 64, 0], [0, 1]),
        "stream 1 is full: it holds 64 tokens, shapes.kv_length=64; e.g. shapes.kv_length=128",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_messages(name: str) -> None:
    call, message = REFUSED[name]
    with pytest.raises(ConfigError) as caught:
        call()
    assert str(caught.value) == message


def test_imports_no_torch() -> None:
    code = "import sys, gemma4cfg.runtime.host.schedule; assert not {'torch', 'numpy', 'transformers'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)

"""Which heads a rank gets: a table of layers, degrees and policies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from gemma4cfg import build_plan
from gemma4cfg.architecture.model import AttentionTypes
from gemma4cfg.config.schema import AttentionChoice
from gemma4cfg.errors import ConfigError
from gemma4cfg.plan.records import LayerAttention
from gemma4cfg.planner.heads import layouts
from tests.architectures import FULL, SLIDING, SMALL, small


def attention_of(q_heads: int, kv_heads: int, tp: int, policy: str) -> LayerAttention:
    """The full layer of a small model with these heads."""
    facts = replace(SMALL.attention.full_attention, q_heads=q_heads, kv_heads=kv_heads)
    model = replace(SMALL, layer_pattern=(FULL,), attention=AttentionTypes(SMALL.attention.sliding_attention, facts))
    plan = build_plan(small(model, tp, policy))
    return plan.layers[0].attention


def row(q: int, kv: int, tp: int, policy: str, *expected: Any) -> Any:
    return pytest.param(q, kv, tp, policy, *expected, id=f"{q}q-{kv}kv-tp{tp}-{policy}")


LAYOUTS = [
    # q, kv, tp, policy, mode, local q, local kv, replication, reduce, q heads of ranks, kv heads of ranks
    row(4, 2, 1, "auto", "split", 4, 2, 1, False, [[0, 1, 2, 3]], [[0, 1]]),
    row(4, 2, 2, "auto", "split", 2, 1, 1, True, [[0, 1], [2, 3]], [[0], [1]]),
    row(4, 2, 2, "split", "split", 2, 1, 1, True, [[0, 1], [2, 3]], [[0], [1]]),
    # TP divides the KV heads: every policy is about the layers where it does not
    row(4, 2, 2, "group", "split", 2, 1, 1, True, [[0, 1], [2, 3]], [[0], [1]]),
    row(4, 2, 2, "pad", "split", 2, 1, 1, True, [[0, 1], [2, 3]], [[0], [1]]),
    row(4, 2, 2, "replicate", "split", 2, 1, 1, True, [[0, 1], [2, 3]], [[0], [1]]),
    row(8, 2, 4, "auto", "group", 2, 1, 2, True, [[0, 1], [2, 3], [4, 5], [6, 7]], [[0], [0], [1], [1]]),
    row(8, 2, 4, "group", "group", 2, 1, 2, True, [[0, 1], [2, 3], [4, 5], [6, 7]], [[0], [0], [1], [1]]),
    row(8, 2, 4, "pad", "group", 2, 1, 2, True, [[0, 1], [2, 3], [4, 5], [6, 7]], [[0], [0], [1], [1]]),
    row(3, 1, 3, "auto", "group", 1, 1, 3, True, [[0], [1], [2]], [[0], [0], [0]]),
    row(4, 2, 3, "replicate", "replicate", 4, 2, 3, False, [[0, 1, 2, 3]] * 3, [[0, 1]] * 3),
    row(4, 2, 4, "replicate", "replicate", 4, 2, 4, False, [[0, 1, 2, 3]] * 4, [[0, 1]] * 4),
    # a KV head a rank, the third rank idle
    row(4, 2, 3, "pad", "pad", 2, 1, 1, True, [[0, 1], [2, 3], []], [[0], [1], []]),
    row(4, 2, 3, "auto", "pad", 2, 1, 1, True, [[0, 1], [2, 3], []], [[0], [1], []]),
    # 3 queries of a KV head over 2 ranks: one zero head
    row(3, 1, 2, "auto", "pad", 2, 1, 2, True, [[0, 1], [2]], [[0], [0]]),
    row(6, 2, 4, "auto", "pad", 2, 1, 2, True, [[0, 1], [2], [3, 4], [5]], [[0], [0], [1], [1]]),
    # more KV heads than ranks: the last rank's second KV head is zero, and so are its queries
    row(6, 3, 2, "auto", "pad", 4, 2, 1, True, [[0, 1, 2, 3], [4, 5]], [[0, 1], [2]]),
    # as many heads as ranks would need, and no more
    row(2, 2, 4, "auto", "pad", 1, 1, 1, True, [[0], [1], [], []], [[0], [1], [], []]),
]


@pytest.mark.parametrize(
    ("q", "kv", "tp", "policy", "mode", "local_q", "local_kv", "replication", "reduce", "q_of_rank", "kv_of_rank"),
    LAYOUTS,
)
def test_layout(
    q: int,
    kv: int,
    tp: int,
    policy: str,
    mode: str,
    local_q: int,
    local_kv: int,
    replication: int,
    reduce: bool,
    q_of_rank: list[list[int]],
    kv_of_rank: list[list[int]],
) -> None:
    attention = attention_of(q, kv, tp, policy)
    assert (attention.mode, attention.local_q_heads, attention.local_kv_heads) == (mode, local_q, local_kv)
    assert (attention.replication, attention.reduce) == (replication, reduce)
    assert [list(heads) for heads in attention.q_heads_of_rank] == q_of_rank
    assert [list(heads) for heads in attention.kv_heads_of_rank] == kv_of_rank


@pytest.mark.parametrize(
    ("q", "kv", "tp", "policy", "says"),
    [
        row(4, 2, 3, "split", "its 2 KV heads do not divide over 3 ranks"),
        row(8, 2, 4, "split", "possible there: group, replicate"),
        row(4, 2, 3, "group", "tp=3 is not a multiple of its 2 KV heads that divides its 4 query heads"),
        row(6, 2, 4, "group", "possible there: replicate, pad"),
    ],
)
def test_impossible(q: int, kv: int, tp: int, policy: str, says: str) -> None:
    with pytest.raises(ConfigError, match=rf"^attention\.policy={policy}: layer 0 \(full_attention\): .*") as refused:
        attention_of(q, kv, tp, policy)
    assert says in str(refused.value)


def test_exceptions_by_layer() -> None:
    choice = AttentionChoice("auto", {FULL: "replicate"}, "auto")
    layers = build_plan(small(SMALL, 4, attention=choice)).layers
    assert {layer.type: layer.attention.mode for layer in layers} == {SLIDING: "split", FULL: "replicate"}
    first_only = AttentionChoice("auto", {"1": "replicate"}, "auto")
    layers = build_plan(small(SMALL, 4, attention=first_only)).layers
    assert [layer.attention.mode for layer in layers] == ["split", "replicate", "split", "group"]


def test_a_borrower_takes_its_owners_layout() -> None:
    model = replace(SMALL, kv_shared_layers=2)
    layers = build_plan(small(model, 4, "replicate")).layers
    assert layers[3].attention == layers[1].attention
    with pytest.raises(
        ConfigError, match=r"attention\.layers: layer 3 \(auto\) reads the K/V of layer 1 \(replicate\)"
    ):
        build_plan(small(model, 4, attention=AttentionChoice("auto", {"1": "replicate"}, "auto")))


@pytest.mark.parametrize(
    ("selector", "says"),
    [
        ("9", "attention.layers.9 matches none of the layers 0-3"),
        ("7-9", "attention.layers.7-9 matches none of the layers 0-3"),
        (
            "full_atention",
            "attention.layers.full_atention: not a layer type, an index or a run; did you mean 'full_attention'",
        ),
    ],
)
def test_selector_that_matches_nothing(selector: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        build_plan(small(SMALL, 4, attention=AttentionChoice("auto", {selector: "pad"}, "auto")))
    assert says in str(refused.value)


# --- NxD Inference's own rule, as published, for the heads of the family ---

TP_OF_TABLE = (1, 2, 4, 8, 16, 32)
NXDI: dict[str, tuple[int, int, str]] = {
    "31b-sliding": (32, 16, "32,16 16,8 8,4 4,2 2,1 1,1"),
    "31b-full": (32, 4, "32,4 16,2 8,1 4,1 2,1 1,1"),
    "26b-a4b-12b-sliding": (16, 8, "16,8 8,4 4,2 2,1 1,1 1,1"),
    "26b-a4b-full": (16, 2, "16,2 8,1 4,1 2,1 1,1 1,1"),
    "12b-full": (16, 1, "16,1 8,1 4,1 2,1 1,1 1,1"),
    "e4b": (8, 2, "8,2 4,1 2,1 1,1 1,1 1,1"),
    "e2b": (8, 1, "8,1 4,1 2,1 1,1 1,1 1,1"),
}
"""Query and KV heads, then a rank's at each degree: ``get_shardable_head_counts`` of the 2.28 and 2.31 packages."""


def nxdi_rows() -> Iterator[Any]:
    for name, (q, kv, counts) in NXDI.items():
        for tp, pair in zip(TP_OF_TABLE, counts.split(), strict=True):
            local_q, local_kv = map(int, pair.split(","))
            yield pytest.param(q, kv, tp, local_q, local_kv, id=f"{name}-tp{tp}")


@pytest.mark.parametrize(("q", "kv", "tp", "local_q", "local_kv"), list(nxdi_rows()))
def test_local_counts_equal_nxdis(q: int, kv: int, tp: int, local_q: int, local_kv: int) -> None:
    """Equal counts everywhere. With more ranks than query heads both pad: NxDI repeats KV heads for the padding queries,
    ours leaves those ranks to zeros, which ``kv_heads_of_rank`` shows."""
    attention = attention_of(q, kv, tp, "auto")
    assert (attention.local_q_heads, attention.local_kv_heads) == (local_q, local_kv)
    assert attention.mode == ("pad" if tp > q else "split" if kv % tp == 0 else "group")
    idle = [rank for rank, heads in enumerate(attention.q_heads_of_rank) if not heads]
    assert len(idle) == max(0, tp - q)
    assert all(bool(heads) == (rank not in idle) for rank, heads in enumerate(attention.kv_heads_of_rank))


@pytest.mark.parametrize(
    ("q", "kv", "tp", "local_q", "local_kv", "idle"),
    [
        pytest.param(32, 16, 12, 4, 2, 4, id="31b-sliding-tp12"),
        pytest.param(32, 4, 12, 3, 1, 0, id="31b-full-tp12"),
        pytest.param(16, 8, 12, 2, 1, 4, id="26b-a4b-sliding-tp12"),
        pytest.param(16, 2, 12, 2, 1, 4, id="26b-a4b-full-tp12"),
        pytest.param(16, 1, 12, 2, 1, 4, id="12b-full-tp12"),
        pytest.param(8, 2, 12, 1, 1, 4, id="e4b-tp12"),
        pytest.param(8, 1, 12, 1, 1, 4, id="e2b-tp12"),
        pytest.param(32, 16, 24, 2, 1, 8, id="31b-sliding-tp24"),
        pytest.param(32, 4, 24, 2, 1, 8, id="31b-full-tp24"),
        pytest.param(16, 8, 24, 1, 1, 8, id="26b-a4b-sliding-tp24"),
    ],
)
def test_degrees_that_divide_nothing(q: int, kv: int, tp: int, local_q: int, local_kv: int, idle: int) -> None:
    """NxDI over-pads here (56 query over 8 KV heads at TP 12 become 420, and then fail); ours adds the zero heads of one
    KV group at a time, and says how many ranks are left over."""
    attention = attention_of(q, kv, tp, "auto")
    assert (attention.mode, attention.local_q_heads, attention.local_kv_heads) == ("pad", local_q, local_kv)
    assert sum(not heads for heads in attention.q_heads_of_rank) == idle


@pytest.mark.parametrize("tp", [3, 4, 5, *TP_OF_TABLE, 12, 24])
@pytest.mark.parametrize(("q", "kv"), [*{(q, kv) for q, kv, _ in NXDI.values()}, (48, 3), (32, 4), (40, 5), (18, 6)])
def test_no_cut_in_runs_of_kv_heads_takes_fewer(q: int, kv: int, tp: int) -> None:
    """Every way to give a rank a run of KV heads and a run of each one's queries: none takes fewer bytes of q, k, v and o
    and of the cache."""
    groups = q // kv
    possible = [
        (local_kv * local_groups, local_kv)
        for local_kv in range(1, kv + 1)
        for local_groups in range(1, groups + 1)
        if -(-kv // local_kv) * -(-groups // local_groups) <= tp
    ]
    shapes = build_plan(small(SMALL, 1)).shapes

    def elements(heads: tuple[int, int]) -> int:
        local_q, local_kv = heads
        return 2 * (local_q + local_kv) * SMALL.hidden_size + 2 * local_kv * shapes.batch * shapes.kv_length

    attention = attention_of(q, kv, tp, "auto")
    assert elements((attention.local_q_heads, attention.local_kv_heads)) == min(map(elements, possible))


@pytest.mark.parametrize("tp", range(1, 33))
def test_modes_offered(tp: int) -> None:
    """Exactly one of split, group and pad, and replicate where TP does not divide the KV heads."""
    for q, kv in [(heads * groups, heads) for heads in range(1, 9) for groups in range(1, 9)]:
        even, grouped = kv % tp == 0, tp % kv == 0 and q % tp == 0
        first = "split" if even else "group" if grouped else "pad"
        assert {layout.mode for layout in layouts(q, kv, tp)} == ({first} if even else {first, "replicate"})

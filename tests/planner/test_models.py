"""The five published models over every TP degree: legal and sound, or refused with what would work."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from math import prod
from typing import Any

import pytest

from gemma4cfg import Plan, build_plan, load_config
from gemma4cfg.config.schema import Config
from gemma4cfg.errors import UserError
from tests.interpret import faults

MODELS = ("e2b", "e4b", "12b", "26b-a4b", "31b")
TP_DEGREES = (1, 2, 4, 8, 12, 16, 24, 32)

TOO_LARGE = {("26b-a4b", 1), ("26b-a4b", 2), ("31b", 1), ("31b", 2)}
"""On every known machine, whatever the policy: more bytes a core than 24 GiB."""


@functools.cache
def composed(*overrides: str) -> Config:
    return load_config(overrides)


@functools.cache
def plan_of(*overrides: str) -> Plan:
    return build_plan(load_config(overrides))


@functools.cache
def unlimited(model: str) -> Plan:
    """The plan at tp=1 on a machine that could hold it: inf2.xlarge with 200 GB a chip."""
    config = load_config([f"model={model}", "target=inf2.xlarge"])
    (target,) = config.targets
    return build_plan(replace(config, targets=(replace(target, chip=replace(target.chip, hbm_bytes=200 * 10**9)),)))


@pytest.mark.parametrize("policy", ["auto", "replicate"])
@pytest.mark.parametrize("tp", TP_DEGREES)
@pytest.mark.parametrize("model", MODELS)
def test_every_degree_is_sound_or_refused(model: str, tp: int, policy: str) -> None:
    config = composed(f"model={model}", f"attention.policy={policy}")
    config = replace(config, settings=replace(config.settings, tp=tp))
    if (model, tp) in TOO_LARGE:
        with pytest.raises(UserError) as refused:
            build_plan(config)
        message = str(refused.value)
        assert re.match(
            rf"{model} at tp={tp} fits no known machine; on trn2\.3xlarge: .*\d GiB a core, 24\.0 avail", message
        )
        assert message.endswith("Would fit: tp=4 target=trn2.3xlarge")
        return
    plan = build_plan(config).to_json()
    assert (plan["model"], plan["tp"], plan["dtype"]) == (model, tp, "bfloat16")
    assert faults(plan) == []


def test_what_would_fit_does() -> None:
    with pytest.raises(UserError) as refused:
        plan_of("model=31b", "tp=2")
    suggestion = str(refused.value).partition("Would fit: ")[2].split("; ")[0].split()
    assert plan_of("model=31b", *suggestion).tp == 4


def test_more_ranks_than_any_machine_has_cores() -> None:
    with pytest.raises(UserError, match=r"tp=128: no known machine has so many cores \(at most 64\)"):
        plan_of("model=31b", "tp=128")


def test_more_ranks_than_the_machine_asked_for_has_cores() -> None:
    says = "tp=24: inf2.24xlarge has 12 cores, one a rank; for tp=24: target=inf2.48xlarge; here: tp=12 or less"
    with pytest.raises(UserError, match=re.escape(says)):
        plan_of("model=31b", "tp=24", "target=inf2.24xlarge")


# --- bytes ---


@pytest.mark.parametrize(
    ("model", "more", "most"),
    [
        pytest.param("31b", (), 7.75e9, id="31b"),
        pytest.param("26b-a4b", (), 6.4e9, id="26b-a4b"),
        pytest.param("12b", (), 3.05e9, id="12b"),
        pytest.param("e4b", (), 1.37e9, id="e4b"),
        pytest.param("e2b", (), 0.67e9, id="e2b"),
        pytest.param("e4b", ("offload=lean", "ple.partition=split"), 1.25e9, id="e4b-lean"),
        pytest.param("e2b", ("offload=lean", "ple.partition=split"), 0.62e9, id="e2b-lean"),
    ],
)
def test_bytes_a_rank_at_tp8(model: str, more: tuple[str, ...], most: float) -> None:
    plan = plan_of(f"model={model}", "tp=8", *more)
    elements = sum(
        prod(entry["shape"])
        for entry in plan.tensors.values()
        if entry["home"] == "device" and entry["status"] != "optional"
    )
    weights = plan.budget.hbm_per_rank.weights
    assert elements * 2 / 8 <= weights <= most, "no rank can hold less than an eighth"


PUBLISHED_PORT = ("tp=8", "attention.policy=replicate", "lm_head.partition=replicate")


def test_published_31b_port() -> None:
    weights = plan_of("model=31b", *PUBLISHED_PORT).budget.hbm_per_rank.weights
    assert weights == pytest.approx(13.4e9, rel=0.01)


@pytest.mark.parametrize(("model", "all_ranks"), [("31b", 108e9), ("26b-a4b", 64.6e9)])
def test_published_ports_over_all_ranks(model: str, all_ranks: float) -> None:
    weights = plan_of(f"model={model}", *PUBLISHED_PORT).budget.hbm_per_rank.weights
    assert 8 * weights == pytest.approx(all_ranks, rel=0.02)


KV_BYTES = {"e2b": 18_432, "e4b": 57_344, "12b": 344_064, "26b-a4b": 225_280, "31b": 901_120}
"""A token's K and V in bfloat16 at tp=1."""


@pytest.mark.parametrize("model", MODELS)
def test_kv_bytes_a_token(model: str) -> None:
    plan = unlimited(model)
    assert faults(plan.to_json()) == []
    owning = [layer for layer in plan.layers if layer.kv.writes]
    assert sum(2 * layer.kv_heads * layer.head_dim * 2 for layer in owning) == KV_BYTES[model]
    assert plan.estimate.bytes_per_token_per_rank.kv == KV_BYTES[model]
    assert plan.budget.hbm_per_rank.kv == KV_BYTES[model] * 2048


ELEMENTS = {
    "e2b": 4_628_569_379,
    "e4b": 7_463_013_418,
    "12b": 11_907_350_320,
    "26b-a4b": 25_233_141_790,
    "31b": 30_697_345_340,
}


@pytest.mark.parametrize("model", MODELS)
def test_elements_of_required_tensors(model: str) -> None:
    tensors = plan_of(f"model={model}", "tp=8").tensors.values()
    assert sum(prod(entry["shape"]) for entry in tensors if entry["status"] == "required") == ELEMENTS[model]


# --- KV slots and sharing ---

SLOTS = {"e2b": 15, "e4b": 24, "12b": 48, "26b-a4b": 30, "31b": 60}


@pytest.mark.parametrize("model", MODELS)
def test_slots(model: str) -> None:
    plan = plan_of(f"model={model}", "tp=8")
    assert [layer.kv.slot for layer in plan.layers if layer.kv.writes] == list(range(SLOTS[model]))
    assert {len(graph.state) for graph in plan.graphs} == {2 * SLOTS[model]}


OWNERS = {"e2b": (15, 13, 14), "e4b": (24, 22, 23)}
"""First borrowing layer; who owns what the sliding and the full ones read."""


@pytest.mark.parametrize("model", MODELS)
def test_owners(model: str) -> None:
    """Every layer has an owner (case 23): itself, or the last owning one of its type."""
    first, sliding, full = OWNERS.get(model, (SLOTS[model], None, None))
    for layer in plan_of(f"model={model}", "tp=8").layers:
        borrowed = full if layer.type == "full_attention" else sliding
        assert layer.kv.owner == (layer.index if layer.index < first else borrowed)


# --- numerics ---


def numerics(embedding: float, ple: dict[str, float] | None = None) -> dict[str, Any]:
    return {
        "rms_norm_eps": 1e-6,
        "activation": "gelu_pytorch_tanh",
        "attention_scale": 1.0,
        "final_logit_softcap": 30.0,
        "embedding_scale": embedding,
        "ple": ple,
    }


def ple_numerics(hidden: int) -> dict[str, float]:
    return {"embedding_scale": 16.0, "projection_scale": hidden**-0.5, "combine_scale": 2**-0.5}


NUMERICS = {
    "e2b": numerics(39.25, ple_numerics(1536)),  # sqrt(1536) = 39.19
    "e4b": numerics(50.5, ple_numerics(2560)),  # 50.60
    "12b": numerics(62.0),  # sqrt(3840) = 61.97
    "26b-a4b": numerics(53.0),  # sqrt(2816) = 53.07
    "31b": numerics(73.5),  # sqrt(5376) = 73.32
}
"""The embedding scale as the reference rounds it, to bfloat16."""


@pytest.mark.parametrize("model", MODELS)
def test_numerics(model: str) -> None:
    assert plan_of(f"model={model}", "tp=8").to_json()["numerics"] == NUMERICS[model]


@pytest.mark.parametrize("model", MODELS)
def test_rope(model: str) -> None:
    """Of 512 channels a quarter turns, and the table still pairs channel i with i + 256."""
    expected = {
        "full_attention": (512, 1e6, "proportional", 64, 256),
        "sliding_attention": (256, 1e4, "default", 128, 128),
    }
    layers = plan_of(f"model={model}", "tp=8").layers
    assert {layer.type for layer in layers} == set(expected)
    for layer in layers:
        rope = layer.rope
        found = (layer.head_dim, rope.theta, rope.type, rope.rotary_pairs, rope.inv_freq_length)
        assert found == expected[layer.type]


WINDOWS = {"e2b": 512, "e4b": 512, "12b": 1024, "26b-a4b": 1024, "31b": 1024}
DOUBLE_WIDE = {"e2b": (6144, 12288)}


@pytest.mark.parametrize("model", MODELS)
def test_windows_and_widths(model: str) -> None:
    layers = plan_of(f"model={model}", "tp=8").layers
    for layer in layers:
        assert layer.window == (WINDOWS[model] if layer.type == "sliding_attention" else None)
        if model in DOUBLE_WIDE:
            assert layer.mlp.intermediate == DOUBLE_WIDE[model][not layer.kv.writes]
    k_eq_v = {layer.type for layer in layers if layer.value_source == "k_proj"}
    assert k_eq_v == (set() if model in ("e2b", "e4b") else {"full_attention"})


@pytest.mark.parametrize("model", MODELS)
def test_rings_hold_a_window(model: str) -> None:
    plan = plan_of(f"model={model}", "tp=8", "shapes=kv8k")
    assert faults(plan.to_json()) == []
    rows = {layer.type: layer.kv.shape[2] for layer in plan.layers if layer.kv.shape}
    assert rows == {"sliding_attention": WINDOWS[model], "full_attention": 8192}

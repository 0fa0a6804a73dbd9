"""A twin decides nothing by itself: its plan has the structure of the plan it stands for."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, reject, settings

from gemma4cfg import build_plan, load_config
from gemma4cfg.architecture.model import AttentionFacts, MoeFacts, Rope
from gemma4cfg.config.catalog import choices, decode_choice, read_choice
from gemma4cfg.config.schema import AttentionChoice, Config, LmHeadChoice, MoeChoice, OffloadChoice, PleChoice, Recipe
from gemma4cfg.errors import ConfigError, UserError
from gemma4cfg.plan.records import Collectives, Plan
from gemma4cfg.verify.twin import TwinError, check_twin, twin_config
from gemma4cfg.verify.twin_sizes import same_cut, small_expert_count, small_head_dim
from sharding.placement import cut_evenly
from tests.architecture.test_huggingface_writer import said
from tests.architectures import RECIPES, Choices, configurations
from tests.checkpoints import MODELS

TP_DEGREES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
POLICIES = ("auto", "split", "group", "replicate", "pad")
LAYERS = (None, {"full_attention": "replicate"}, {"full_attention": "pad"}, {"0": "group"})
PROMPTS = 7


@functools.cache
def base(model: str, shapes: str = "kv512") -> Config:
    return load_config([f"model={model}", f"shapes={shapes}", "swap_gib=2000"])


@functools.cache
def offload(name: str) -> OffloadChoice:
    return decode_choice(OffloadChoice, "offload", read_choice("offload", name))


def changed(config: Config, recipe: Recipe | None = None, **settings: Any) -> Config:
    recipes = config.recipes if recipe is None else (recipe,)
    return replace(config, recipes=recipes, settings=replace(config.settings, **settings))


def twin_of(config: Config, plan: Plan) -> Config:
    buckets = [8 * 2**i for i in range(len(plan.shapes.prefill_buckets))]
    return twin_config(config, plan, batch=PROMPTS, prefill_buckets=buckets, kv_length=100)


@functools.cache
def pair(*overrides: str) -> tuple[Config, Plan, Config, Plan]:
    config = load_config(list(overrides))
    plan = build_plan(config)
    twin = twin_of(config, plan)
    return config, plan, twin, build_plan(twin)


# --- twins of everything that can be planned ---


OTHERS = list(
    itertools.product(
        ("host", "device", "lean"), ("intermediate", "experts"), ("split", "replicate"), ("split", "replicate"), LAYERS
    )
)


def cases(model: str) -> list[Config]:
    """Every degree with every policy, and with each the next of the other choices and of the recipes that there are."""
    found = []
    for number, (tp, policy) in enumerate(itertools.product(TP_DEGREES, POLICIES)):
        home, moe, head, ple, layers = OTHERS[number * 7 % len(OTHERS)]
        recipes = [recipe for recipe in RECIPES if recipe is None or (recipe.name == "trace") <= (tp == 1)]
        others = {
            "attention": AttentionChoice(policy, layers, "auto"),  # type: ignore[arg-type]
            "moe": MoeChoice(moe),  # type: ignore[arg-type]
            "lm_head": LmHeadChoice(head),  # type: ignore[arg-type]
            "ple": PleChoice(ple),  # type: ignore[arg-type]
            "offload": offload(home),
        }
        found.append(changed(base(model), recipes[number % len(recipes)], tp=tp, **others))
    return found


@pytest.mark.parametrize("model", MODELS)
def test_twins_agree_at_every_degree_and_policy(model: str) -> None:
    planned = []
    for config in cases(model):
        try:
            plan = build_plan(config)
        except UserError:
            continue
        twin = twin_of(config, plan)
        check_twin(plan, build_plan(twin))
        assert twin.model.hidden_size == 32 or plan.tp in (3, 6)
        planned.append(plan)
    too_large = {"trace"} if model in ("26b-a4b", "31b") else set()
    assert {plan.recipe for plan in planned} == {"trace", "tp_alias", "model_builder"} - too_large
    assert {plan.tp for plan in planned} >= {4, 8, 12, 16, 24, 32}
    modes = {layer.attention.mode for plan in planned for layer in plan.layers}
    assert modes == {"split", "group", "replicate", "pad"}


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(("model=31b", "tp=8", "attention.layers={5: replicate, 11-20: group}"), id="selectors"),
        pytest.param(("model=e2b", "tp=2", "shapes.prefill_buckets=[64,128,512]"), id="several-buckets"),
        pytest.param(("model=e4b", "tp=4", "shapes.kv_layout=ring", "shapes.prompt_chunking=false"), id="ring"),
        pytest.param(("model=12b", "tp=4", "offload=device", "attention.implementation=eager"), id="on-device"),
        pytest.param(("model=26b-a4b", "tp=32", "moe.partition=experts", "target=trn1.32xlarge"), id="experts-32"),
        pytest.param(("model=e2b", "tp=12", "ple.partition=split", "target=trn1.32xlarge"), id="ple-12"),
        pytest.param(("model=31b", "tp=6", "target=trn1.32xlarge"), id="wide-hidden"),
        pytest.param(("model=e2b", "model.tied_embeddings=false", "tp=24", "target=trn1.32xlarge"), id="untied-24"),
        pytest.param(("model=31b", "tp=8", "dtype=float32", "target=trn2.48xlarge"), id="float32"),
        *(pytest.param((f"experiment={name}",), id=name) for name in choices("experiment") if "g5g" not in name),
    ],
)
def test_twins_agree_as_asked(overrides: tuple[str, ...]) -> None:
    config, plan, twin, small = pair(*overrides)
    check_twin(plan, small)
    assert small.dtype == "float32"
    assert small.shapes.batch == PROMPTS
    assert twin.model.layers == config.model.layers
    assert sum(entry["home"] == "device" for entry in small.tensors.values()) == sum(
        entry["home"] == "device" for entry in plan.tensors.values()
    )


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(configurations())
def test_twins_agree_of_random_models(drawn: Choices) -> None:
    """Also of models that are small themselves."""
    config = Choices(said(drawn.model, "Gemma4ForCausalLM"), drawn.recipe, drawn.settings).config()
    try:
        plan = build_plan(config)
    except UserError:
        reject()
    try:
        twin = twin_of(config, plan)
    except ConfigError as error:
        assert "no tiny twin pads the heads" in str(error)
        assert {"pad"} <= {layer.attention.mode for layer in plan.layers}
        reject()
    check_twin(plan, build_plan(twin))


@pytest.mark.parametrize("model", MODELS)
def test_twins_are_tiny(model: str) -> None:
    _, _, twin, small = pair(f"model={model}", "tp=8")
    elements = sum(functools.reduce(int.__mul__, entry["shape"], 1) for entry in small.tensors.values())
    assert elements < 2_000_000
    assert twin.model.hidden_size == 32
    assert {layer.window for layer in small.layers} == {8, None}
    assert {layer.head_dim for layer in small.layers} == {8, 16}
    assert small.numerics.embedding_scale == pytest.approx(32**0.5, rel=1e-7)


def test_vllm_has_no_twin() -> None:
    config = load_config(["model=e2b", "target=g5g.2xlarge"])
    with pytest.raises(ConfigError, match="recipe=vllm: task=verify needs a recipe with graphs"):
        twin_of(config, build_plan(config))


def test_a_model_that_the_reference_cannot_run_has_no_twin() -> None:
    config = load_config(["model=e2b", "model.attention_scale=0.5"])
    with pytest.raises(ConfigError, match=r"model\.attention_scale=0\.5"):
        twin_of(config, build_plan(config))


# --- what is no twin is named ---


def with_layer(plan: Plan, index: int, **fields: Any) -> Plan:
    layers = list(plan.layers)
    layers[index] = replace(layers[index], **fields)
    return replace(plan, layers=tuple(layers))


def with_attention(plan: Plan, index: int, **fields: Any) -> Plan:
    return with_layer(plan, index, attention=replace(plan.layers[index].attention, **fields))


def with_kv(plan: Plan, index: int, **fields: Any) -> Plan:
    return with_layer(plan, index, kv=replace(plan.layers[index].kv, **fields))


def with_tensor(plan: Plan, name: str, **fields: Any) -> Plan:
    name = f"model.language_model.{name}"
    return replace(plan, tensors={**plan.tensors, name: {**plan.tensors[name], **fields}})


def with_graph(plan: Plan, **fields: Any) -> Plan:
    return replace(plan, graphs=(*plan.graphs[:-1], replace(plan.graphs[-1], **fields)))


E2B = ("model=e2b", "tp=2")
MOE = ("model=26b-a4b", "tp=8", "moe.partition=experts")
TAMPERED = {
    "mode": (E2B, lambda p: with_attention(p, 4, mode="pad"), "layer 4 (full_attention): attention"),
    "reduce": (E2B, lambda p: with_attention(p, 3, reduce=False), "layer 3 (sliding_attention): attention"),
    "local-heads": (E2B, lambda p: with_attention(p, 0, local_q_heads=5), "layer 0 (sliding_attention): attention"),
    "heads-of-rank": (
        E2B,
        lambda p: with_attention(p, 0, q_heads_of_rank=((4, 5, 6, 7), (0, 1, 2, 3))),
        "layer 0 (sliding_attention): attention",
    ),
    "heads": (E2B, lambda p: with_layer(p, 0, q_heads=4), "layer 0 (sliding_attention): q_heads, kv_heads"),
    "type": (E2B, lambda p: with_layer(p, 0, type="full_attention"), "layer 0 (full_attention)"),
    "owner": (E2B, lambda p: with_kv(p, 20, owner=12), "layer 20 (sliding_attention): kv"),
    "slot": (E2B, lambda p: with_kv(p, 3, slot=2), "layer 3 (sliding_attention): kv"),
    "layout": (E2B, lambda p: with_kv(p, 3, layout="ring"), "layer 3 (sliding_attention): kv"),
    "value-source": (
        E2B,
        lambda p: with_layer(p, 3, value_source="k_proj"),
        "layer 3 (sliding_attention): value_source",
    ),
    "window": (E2B, lambda p: with_layer(p, 3, window=None), "layer 3 (sliding_attention): window"),
    "rope": (
        E2B,
        lambda p: with_layer(p, 3, rope=replace(p.layers[3].rope, theta=1.0)),
        "layer 3 (sliding_attention): rope",
    ),
    "mlp": (
        E2B,
        lambda p: with_layer(p, 3, mlp=replace(p.layers[3].mlp, reduce=False)),
        "layer 3 (sliding_attention): mlp.reduce",
    ),
    "ple": (E2B, lambda p: with_layer(p, 3, ple=None), "layer 3 (sliding_attention): ple"),
    "moe": (
        MOE,
        lambda p: with_layer(p, 5, moe=replace(p.layers[5].moe, partition="intermediate")),
        "layer 5 (full_attention): moe",
    ),
    "rank-tensors": (MOE, lambda p: replace(p, rank_tensors={}), "rank_tensors"),
    "home": (E2B, lambda p: with_tensor(p, "embed_tokens.weight", home="device"), "embed_tokens.weight.home"),
    "status": (E2B, lambda p: with_tensor(p, "norm.weight", status="optional"), "norm.weight.status"),
    "placement": (
        E2B,
        lambda p: with_tensor(p, "layers.3.mlp.down_proj.weight", placement={"dim": None}),
        "layers.3.mlp.down_proj.weight.placement",
    ),
    "padding": (
        E2B,
        lambda p: with_tensor(
            p, "layers.3.mlp.down_proj.weight", placement={"dim": 1, "ranges": [[[0, 16]], [[16, 31], {"zeros": 1}]]}
        ),
        "layers.3.mlp.down_proj.weight.placement",
    ),
    "host": (E2B, lambda p: replace(p, host=p.host[1:]), "host"),
    "graphs": (E2B, lambda p: replace(p, graphs=p.graphs[:-1]), "graphs"),
    "inputs": (E2B, lambda p: with_graph(p, inputs=p.graphs[-1].inputs[1:]), "graphs.1 (decode).inputs"),
    "state": (E2B, lambda p: with_graph(p, state=p.graphs[-1].state[2:]), "graphs.1 (decode).state"),
    "collectives": (E2B, lambda p: with_graph(p, collectives=Collectives(1, 1)), "graphs.1 (decode).collectives"),
    "weight-copies": (E2B, lambda p: replace(p, weight_copies=9), "weight_copies"),
    "softcap": (
        E2B,
        lambda p: replace(p, numerics=replace(p.numerics, final_logit_softcap=None)),
        "numerics.final_logit_softcap",
    ),
}


@pytest.mark.parametrize(("overrides", "tamper", "named"), TAMPERED.values(), ids=TAMPERED)
def test_a_difference_of_structure_is_named(overrides: tuple[str, ...], tamper: Any, named: str) -> None:
    _, plan, _, small = pair(*overrides)
    check_twin(plan, small)
    with pytest.raises(TwinError) as error:
        check_twin(plan, tamper(small))
    assert f"{named}: " in str(error.value)
    assert not isinstance(error.value, UserError)


# --- sizes ---


@pytest.mark.parametrize("tp", [1, 2, 3, 5, 8, 12, 24, 32])
@pytest.mark.parametrize("real", [1, 3, 28, 100, 704, 2112, 21504, 262144])
def test_small_sizes_are_padded_where_the_real_ones_are(real: int, tp: int) -> None:
    def pieces(length: int) -> list[list[str]]:
        return [[type(piece).__name__ for piece in rank] for rank in cut_evenly(0, length, tp).ranks]

    small = same_cut(real, tp, 32)
    assert small < 32 + 2 * tp
    assert pieces(small) == pieces(real)


@pytest.mark.parametrize(
    ("experts", "top_k", "tp", "whole", "count"),
    [
        pytest.param(128, 8, 1, False, 16, id="tp1"),
        pytest.param(128, 8, 8, True, 16, id="tp8"),
        pytest.param(128, 8, 32, True, 64, id="two-a-rank"),
        pytest.param(128, 8, 32, False, 16, id="intermediate"),
        pytest.param(32, 8, 32, True, 32, id="one-a-rank"),
        pytest.param(60, 4, 12, True, 24, id="tp12"),
        pytest.param(128, 12, 4, True, 24, id="more-taken"),
        pytest.param(8, 8, 4, True, 8, id="few"),
    ],
)
def test_expert_counts(experts: int, top_k: int, tp: int, whole: bool, count: int) -> None:
    assert small_expert_count(MoeFacts(experts, top_k, 704), tp, whole, 16) == count


@pytest.mark.parametrize(
    ("rope", "real", "floor", "small"),
    [
        pytest.param(Rope(1e4, "default", 1.0), 256, 8, 8, id="sliding"),
        pytest.param(Rope(1e6, "proportional", 0.25), 512, 16, 16, id="full"),
        pytest.param(Rope(1e6, "proportional", 0.25), 512, 8, 16, id="one-pair-would-hide-theta"),
        pytest.param(Rope(1e6, "proportional", 0.1), 512, 16, 40, id="few-pairs"),
        pytest.param(Rope(1e4, "default", 1.0), 4, 8, 4, id="small-already"),
    ],
)
def test_head_sizes_keep_rotary_embedding_visible(rope: Rope, real: int, floor: int, small: int) -> None:
    window = None if rope.type == "proportional" else 512
    assert small_head_dim(AttentionFacts(8, 1, real, window, False, rope), floor) == small

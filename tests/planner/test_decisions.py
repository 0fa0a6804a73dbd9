"""Every decision: what was taken, what was turned down, and for which reasons of the closed list."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from gemma4cfg import Plan, build_plan, load_config
from gemma4cfg.architecture.model import AttentionTypes
from gemma4cfg.config.catalog import choices, decode_choice, read_choice
from gemma4cfg.config.schema import Config, Recipe
from gemma4cfg.config.sdk import Failure, Sdk, VersionRange
from gemma4cfg.config.target import Target
from gemma4cfg.errors import ConfigError, PlanError, UserError
from gemma4cfg.plan.reasons import Reason
from gemma4cfg.plan.records import Decision
from gemma4cfg.planner.failures import failure_findings, published
from tests.architectures import FULL, SMALL, shapes, small

MODELS = ("e2b", "e4b", "12b", "26b-a4b", "31b")
REASONS = {reason.value for reason in Reason}


@functools.cache
def composed(*overrides: str) -> Config:
    return load_config(overrides)


@functools.cache
def plan_of(*overrides: str) -> Plan:
    return build_plan(composed(*overrides))


def decision(plan: Plan, name: str) -> Decision:
    (found,) = [item for item in plan.decisions if item.id == name]
    return found


def taken(plan: Plan, name: str) -> tuple[Any, str]:
    """Choice and reason."""
    found = decision(plan, name)
    return found.choice, Reason(found.reason).value


def turned_down(plan: Plan, name: str) -> dict[Any, str]:
    return {option.choice: Reason(option.reason).value for option in decision(plan, name).over}


@functools.cache
def sdk_of(name: str) -> Sdk:
    return decode_choice(Sdk, "sdk", read_choice("sdk", name))


@functools.cache
def target_of(name: str) -> Target:
    return decode_choice(Target, "target", read_choice("target", name))


# --- all of them ---

PLANS = {
    **{f"{model}-tp8": (f"model={model}", "tp=8") for model in MODELS},
    "e2b-tp1": ("model=e2b",),
    "12b-tp12": ("model=12b", "tp=12"),
    "experts": ("model=26b-a4b", "tp=8", "moe.partition=experts"),
    "replicate": ("model=31b", "tp=8", "attention.policy=replicate", "lm_head.partition=replicate"),
    "ple-split": ("model=e4b", "tp=8", "ple.partition=split", "offload=lean"),
    "all-on-device": ("model=e2b", "offload=device"),
    "tp-alias": ("model=e4b", "tp=2", "recipe=tp_alias"),
    "ring": ("model=31b", "tp=8", "shapes=kv8k"),
    "vllm": ("model=e2b", "target=g5g.2xlarge"),
}


@pytest.mark.parametrize("name", PLANS)
def test_reasons_are_of_the_closed_list(name: str) -> None:
    plan = plan_of(*PLANS[name])
    names = [item.id for item in plan.decisions]
    assert len(set(names)) == len(names)
    for item in plan.to_json()["decisions"]:
        assert item["reason"] in REASONS
        assert item["detail"]
        options = [option["choice"] for option in item["over"]]
        assert len(set(map(str, [item["choice"], *options]))) == 1 + len(options), item["id"]
        assert all(option["reason"] in REASONS for option in item["over"])


@pytest.mark.parametrize("name", PLANS)
def test_a_sentence_for_every_reason(name: str) -> None:
    for item in plan_of(*PLANS[name]).decisions:
        for reason in (item.reason, *(option.reason for option in item.over)):
            assert len(Reason.sentence_of(reason)) > 10


ALWAYS = {"target", "sdk", "recipe", "dtype", "attention.implementation", "kv.sharing", "kv.layout", "mlp"} | {
    "lm_head.partition",
    "offload.token_embedding",
    "offload.softcap",
    "offload.sampling",
}
OF_MODEL = {
    "e2b": {"ple.partition", "offload.per_layer_embedding", "offload.per_layer_projection"},
    "e4b": {"ple.partition", "offload.per_layer_embedding", "offload.per_layer_projection"},
    "12b": {"kv.value_source"},
    "26b-a4b": {"kv.value_source", "experts", "router"},
    "31b": {"kv.value_source"},
}


@pytest.mark.parametrize("model", MODELS)
def test_what_is_decided(model: str) -> None:
    names = {item.id for item in plan_of(f"model={model}", "tp=8").decisions}
    attention = {"attention.sliding_attention", "attention.full_attention"}
    assert names == ALWAYS | OF_MODEL[model] | attention | {"prompt_chunking"}


# --- attention ---


def grid() -> Iterator[Any]:
    for q, kv in ((4, 4), (8, 2), (8, 8), (6, 3), (12, 4), (5, 1), (16, 8)):
        for tp in (1, 2, 3, 4, 6, 8, 12, 16):
            yield pytest.param(q, kv, tp, id=f"{q}q-{kv}kv-tp{tp}")


@pytest.mark.parametrize(("q", "kv", "tp"), list(grid()))
def test_auto_takes_the_fewest_bytes(q: int, kv: int, tp: int) -> None:
    """Against every mode by its definition: fewest bytes of weights and KV, then fewest collectives, then order.
    ``replicate`` is for policies that ask for it."""
    groups, head_dim, hidden, rows = q // kv, 4, 8, 32
    possible: dict[str, tuple[int, int]] = {}
    if kv % tp == 0:
        possible["split"] = (q // tp, kv // tp)
    if tp % kv == 0 and q % tp == 0:
        possible["group"] = (q // tp, 1)
    local_kv = -(-kv // tp)
    enough = [
        local_groups
        for local_groups in range(1, groups + 1)
        if (local_kv == 1 or local_groups == groups) and -(-kv // local_kv) * -(-groups // local_groups) <= tp
    ]
    possible["pad"] = (local_kv * min(enough), local_kv)

    def cost(mode: str) -> tuple[int, int, int]:
        local_q, kv_heads = possible[mode]
        weights = (2 * local_q + kv_heads) * head_dim * hidden * 2  # no v_proj in this model's full layers
        cached = 2 * kv_heads * rows * head_dim * 2
        return weights + cached, int(tp > 1), ["split", "group", "replicate", "pad"].index(mode)

    facts = replace(SMALL.attention.full_attention, q_heads=q, kv_heads=kv)
    model = replace(SMALL, layer_pattern=(FULL,), attention=AttentionTypes(SMALL.attention.sliding_attention, facts))
    plan = build_plan(small(model, tp, shapes=shapes(kv_length=rows)))
    attention = plan.layers[0].attention
    best = min(possible, key=cost)
    assert attention.mode == best
    assert (attention.local_q_heads, attention.local_kv_heads) == possible[best]
    assert f"{cost(best)[0]:,} bytes an owning layer" in decision(plan, "attention.full_attention").detail
    assert turned_down(plan, "attention.full_attention").keys() == {"split", "group", "replicate", "pad"} - {best}


@pytest.mark.parametrize(
    ("overrides", "kind", "choice", "reason", "over"),
    [
        pytest.param(
            ("model=26b-a4b", "tp=8"),
            "full_attention",
            "group",
            "fewest_bytes",
            {"split": "heads_not_divisible", "replicate": "not_requested", "pad": "not_needed"},
            id="group",
        ),
        pytest.param(
            ("model=26b-a4b", "tp=8"),
            "sliding_attention",
            "split",
            "only_option",
            {"group": "not_needed", "replicate": "not_needed", "pad": "not_needed"},
            id="split",
        ),
        pytest.param(
            ("model=31b", "tp=8", "attention.policy=replicate"),
            "full_attention.replicate",
            "replicate",
            "requested",
            {"split": "heads_not_divisible", "group": "not_requested", "pad": "not_needed"},
            id="replicate",
        ),
        pytest.param(
            ("model=12b", "tp=12"),
            "full_attention",
            "pad",
            "fewest_bytes",
            {"split": "heads_not_divisible", "group": "heads_not_divisible", "replicate": "not_requested"},
            id="pad",
        ),
    ],
)
def test_attention_options(
    overrides: tuple[str, ...], kind: str, choice: str, reason: str, over: dict[str, str]
) -> None:
    plan = plan_of(*overrides)
    assert taken(plan, f"attention.{kind}") == (choice, reason)
    assert turned_down(plan, f"attention.{kind}") == over


def test_an_option_turned_down_states_its_bytes() -> None:
    """31B's full layers at tp=8, in bytes: q and o, k alone (keys double as values), and KV of 2,048 rows."""
    over = {
        item.choice: item.detail for item in decision(plan_of("model=31b", "tp=8"), "attention.full_attention").over
    }
    row, kv = 512 * 5376 * 2, 2 * 2048 * 512 * 2
    whole, group = (2 * 32 + 4) * row + 4 * kv, (2 * 4 + 1) * row + kv
    assert over["replicate"] == f"{whole:,} bytes, 0 all-reduce; taken: {group:,} bytes, 1"


# --- attention implementation ---


@pytest.mark.parametrize(
    ("model", "release", "implementation", "reason"),
    [
        ("e2b", "neuron-2.28", "sdpa", "default"),
        ("e4b", "neuron-2.28", "sdpa", "default"),
        ("12b", "neuron-2.28", "eager", "published_failure"),
        ("26b-a4b", "neuron-2.28", "eager", "published_failure"),
        ("31b", "neuron-2.28", "eager", "published_failure"),
        ("e2b", "neuron-2.31", "sdpa", "default"),
        ("12b", "neuron-2.31", "sdpa", "default"),
        ("31b", "neuron-2.31", "sdpa", "default"),
    ],
)
def test_eager_where_fused_attention_failed(model: str, release: str, implementation: str, reason: str) -> None:
    """Published of a window of 1,024 on one compiler; the arithmetic stands beside it and may disagree."""
    plan = plan_of(f"model={model}", "tp=8", f"sdk={release}")
    assert taken(plan, "attention.implementation") == (implementation, reason)
    assert {layer.attention.implementation for layer in plan.layers} == {implementation}
    found = decision(plan, "attention.implementation")
    assert "bytes a partition by arithmetic" in found.detail
    if reason == "published_failure":
        assert "NCC_INLA001" in found.detail
        assert "xbill9/gemma4-tips-aws" in found.detail
        assert turned_down(plan, "attention.implementation") == {"sdpa": "published_failure"}
        assert "fused_attention_window_1024_disagrees" in {item.code for item in plan.findings}


def test_fused_attention_asked_for_against_the_failure_is_a_warning() -> None:
    plan = plan_of("model=12b", "tp=8", "attention.implementation=sdpa")
    assert taken(plan, "attention.implementation") == ("sdpa", "requested")
    warned = [item.severity for item in plan.findings if item.code == "fused_attention_window_1024"]
    assert warned == ["warning"]


# --- recipe ---


def test_one_core_is_traced() -> None:
    plan = plan_of("model=e2b", "target=inf2.xlarge")
    assert taken(plan, "recipe") == ("trace", "one_core")
    assert turned_down(plan, "recipe") == {"vllm": "other_stack"}
    assert plan.weight_copies == 1, "a graph on each core"


def test_two_copies_that_do_not_fit_go_to_model_builder() -> None:
    """Two prefill graphs on one of the two cores own two copies of the weights: 12B's are too many."""
    fits = build_plan(load_config(["model=e2b", "target=inf2.xlarge", "shapes.prefill_buckets=[256,512]"]))
    assert (fits.recipe, fits.weight_copies) == ("trace", 2)
    plan = plan_of("model=12b", "target=trn2.3xlarge", "shapes.prefill_buckets=[256,512]", "shapes.kv_length=512")
    assert taken(plan, "recipe") == ("model_builder", "one_rank_compiled")
    assert turned_down(plan, "recipe")["trace"] == "does_not_fit"
    detail = {option.choice: option.detail for option in decision(plan, "recipe").over}["trace"]
    assert detail.startswith("2 graphs on a core own 2 copies: ")
    assert plan.weight_copies == 1


@pytest.mark.parametrize("tp", [2, 8])
def test_more_ranks_go_to_model_builder(tp: int) -> None:
    """parallel_model_trace is there and no longer supported, so nothing but a request takes it."""
    plan = plan_of("model=e4b", f"tp={tp}")
    assert taken(plan, "recipe") == ("model_builder", "one_rank_compiled")
    assert turned_down(plan, "recipe") == {
        "vllm": "other_stack",
        "trace": "too_few_cores",
        "tp_alias": "not_supported",
    }
    detail = {option.choice: option.detail for option in decision(plan, "recipe").over}["tp_alias"]
    assert detail.startswith("parallel_model_trace on inf2: unsupported. ")


def test_an_unsupported_recipe_asked_for_is_a_warning() -> None:
    plan = plan_of("model=e4b", "tp=2", "recipe=tp_alias")
    assert taken(plan, "recipe") == ("tp_alias", "requested")
    assert [item.severity for item in plan.findings if item.code == "api_unsupported"] == ["warning"]


def supporting(config: Config, api: str, support: str | None) -> Config:
    """The same on releases that support ``api`` so far on every family (null: lack it)."""
    sdks = []
    for sdk in config.sdks:
        apis = dict(sdk.stack.apis)
        if api in apis:
            families = {} if support is None else dict.fromkeys(apis[api].support, support)
            apis[api] = replace(apis[api], support=families)
        sdks.append(replace(sdk, stack=replace(sdk.stack, apis=apis)))
    return replace(config, sdks=tuple(sdks))


@pytest.mark.parametrize(
    ("target", "recipe", "reason"),
    [
        # E4B at tp=2: 9.5 GB of weights in all, 2.8 times that to compile all ranks
        pytest.param("inf2.8xlarge", "tp_alias", "all_ranks_compiled_fit", id="128-gib-host"),
        pytest.param("inf2.xlarge", "model_builder", "one_rank_compiled", id="16-gib-host"),
    ],
)
def test_all_ranks_are_compiled_where_supported_and_the_host_holds_them(target: str, recipe: str, reason: str) -> None:
    config = supporting(load_config(["model=e4b", "tp=2", f"target={target}"]), "parallel_model_trace", "supported")
    plan = build_plan(config)
    assert taken(plan, "recipe") == (recipe, reason)
    assert turned_down(plan, "recipe").get("tp_alias") == (None if recipe == "tp_alias" else "does_not_fit")


def test_swap_counts_as_host_memory() -> None:
    config = supporting(load_config(["model=e4b", "tp=2", "target=inf2.xlarge"]), "parallel_model_trace", "supported")
    assert build_plan(config).recipe == "model_builder"
    swapping = replace(config, settings=replace(config.settings, swap_gib=32))
    assert build_plan(swapping).recipe == "tp_alias"


@pytest.mark.parametrize("swap_gib", range(16, 24))
def test_a_recipe_chosen_to_compile_all_ranks_can(swap_gib: int) -> None:
    """The choice and the budget judge by the same bytes, what the system keeps among them."""
    config = supporting(load_config(["model=e4b", "tp=2", "target=inf2.xlarge"]), "parallel_model_trace", "supported")
    plan = build_plan(replace(config, settings=replace(config.settings, swap_gib=swap_gib)))
    assert (plan.recipe, plan.budget.host.can.compile) in {("tp_alias", True), ("model_builder", True)}
    alias = build_plan(
        load_config(["model=e4b", "tp=2", "target=inf2.xlarge", "recipe=tp_alias", f"swap_gib={swap_gib}"])
    )
    assert alias.budget.host.can.compile == (plan.recipe == "tp_alias")


def test_no_recipe_left() -> None:
    config = supporting(load_config(["model=e4b", "tp=2", "target=inf2.8xlarge"]), "model_builder_v2", None)
    with pytest.raises(PlanError) as refused:
        build_plan(config)
    message = str(refused.value)
    assert message.startswith("no recipe does tp=2 on inf2.8xlarge with neuron-2.28: ")
    for option in ("vllm", "trace", "tp_alias", "model_builder"):
        assert f"{option}: " in message


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        pytest.param(
            ("recipe=trace", "tp=2"), "recipe=trace makes single-core graphs, tp=2 needs recipe=model_builder"
        ),
        pytest.param(("recipe=vllm", "target=inf2.xlarge"), "recipe=vllm does not go with sdk=neuron-2.28"),
        pytest.param(("recipe=trace", "target=g5g.2xlarge"), "recipe=trace does not go with sdk=vllm-0.27.2rc0"),
        pytest.param(
            ("sdk=neuron-2.28", "target=g5g.2xlarge"),
            "sdk=neuron-2.28 serves inf2, trn1, trn2, not g5g (target=g5g.2xlarge)",
        ),
        pytest.param(("sdk=vllm-0.27.2rc0", "target=inf2.xlarge"), "sdk=vllm-0.27.2rc0 serves g5g, not inf2"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_combinations_that_do_not_exist(overrides: tuple[str, ...], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        build_plan(load_config(["model=e2b", *overrides]))
    assert str(refused.value).startswith(says)


def test_a_recipe_absent_on_the_family() -> None:
    config = supporting(load_config(["model=e2b", "recipe=trace", "target=inf2.xlarge"]), "trace", None)
    says = "recipe=trace: neuron-2.28 has no trace on inf2; there: parallel_model_trace, model_builder_v1, model_builder_v2"
    with pytest.raises(ConfigError, match=says):
        build_plan(config)


# --- softcap, sampling, tables ---


@pytest.mark.parametrize("release", ["neuron-2.28", "neuron-2.31"])
@pytest.mark.parametrize("model", MODELS)
def test_softcap_is_on_the_host_because_it_keeps_the_order(model: str, release: str) -> None:
    """The failure was published of 12B's prefill on one compiler: cited there, and stretched to nothing else."""
    plan = plan_of(f"model={model}", "tp=8", f"sdk={release}")
    cited = model == "12b" and release == "neuron-2.28"
    assert taken(plan, "offload.softcap") == ("host", "published_failure" if cited else "monotonic")
    detail = decision(plan, "offload.softcap").detail
    assert ("NCC_INLA001" in detail) == cited
    assert (detail == "30.0 * tanh(x / 30.0)") != cited
    (part,) = [part for part in plan.host if part.what == "softcap"]
    assert (part.tensor, part.bytes) == (None, 0)
    assert part.reason == ("published_failure" if cited else "monotonic")


def test_tables_are_gathers() -> None:
    plan = plan_of("model=e4b", "tp=8")
    for table in ("token_embedding", "per_layer_embedding"):
        assert taken(plan, f"offload.{table}") == ("host", "gather_table")
        assert turned_down(plan, f"offload.{table}") == {"device": "device_work"}
    assert taken(plan, "offload.per_layer_projection")[0] == "device"
    lean = plan_of("model=e4b", "tp=8", "offload=lean")
    assert taken(lean, "offload.per_layer_projection") == ("host", "requested")


@pytest.mark.parametrize(
    "choices,on_device",
    [
        pytest.param(("offload.token_embedding=device",), ("token_embedding",), id="embedding"),
        pytest.param(("offload.per_layer_embedding=device",), ("per_layer_embedding",), id="table"),
        pytest.param(("offload=device",), ("token_embedding", "per_layer_embedding"), id="both"),
    ],
)
def test_a_projection_on_the_host_needs_both_tables_there(choices: tuple[str, ...], on_device: tuple[str, ...]) -> None:
    """And with them there, it is planned."""
    asked = ("offload=lean", *choices, "offload.per_layer_projection=host")
    with pytest.raises(ConfigError) as refused:
        plan_of("model=e2b", *asked)
    found, wanted = (" and ".join(f"offload.{table}={home}" for table in on_device) for home in ("device", "host"))
    assert str(refused.value) == (
        f"offload.per_layer_projection=host with {found}: the host projects token embeddings and adds them to the table's "
        f"rows; set {wanted} too, or offload.per_layer_projection=device"
    )
    mended = plan_of("model=e2b", *asked, *(f"offload.{table}=host" for table in on_device))
    assert taken(mended, "offload.per_layer_projection") == ("host", "requested")


# --- experts, PLE, head ---


def test_experts_are_cut_through_by_default() -> None:
    plan = plan_of("model=26b-a4b", "tp=8")
    assert taken(plan, "experts") == ("intermediate", "no_rank_dependence")
    assert turned_down(plan, "experts") == {"experts": "rank_dependent"}
    assert plan.rank_tensors == {}
    asked = plan_of("model=26b-a4b", "tp=8", "moe.partition=experts")
    assert taken(asked, "experts") == ("experts", "requested")
    assert len(asked.rank_tensors) == 30
    assert taken(asked, "router") == ("replicate", "small_and_shared")


def test_ple_gates_state_bytes_and_collectives_of_both() -> None:
    """E4B: 42 layers of two matrices of 2560 × 256."""
    plan = plan_of("model=e4b", "tp=8")
    whole = 2 * 42 * 2560 * 256 * 2
    assert taken(plan, "ple.partition") == ("replicate", "fewest_collectives")
    detail = decision(plan, "ple.partition").detail
    assert f"replicate: {whole:,} bytes a rank, no collective; split: {whole // 8:,} bytes, 42 all-reduces" in detail
    split = plan_of("model=e4b", "tp=8", "ple.partition=split")
    assert taken(split, "ple.partition") == ("split", "requested")
    reduces = [graph.collectives.all_reduce for graph in split.graphs]
    assert reduces == [graph.collectives.all_reduce + 42 for graph in plan.graphs]
    weights = [item.budget.hbm_per_rank.weights for item in (plan, split)]
    assert weights[0] - weights[1] == whole * 7 // 8 - 32 * 4, "but for 32 column ids of 4 bytes"


@pytest.mark.parametrize(
    ("overrides", "choice", "reason", "over"),
    [
        pytest.param(("tp=8",), "split", "fewest_bytes", {"replicate": "more_bytes"}, id="auto"),
        pytest.param(
            ("tp=8", "lm_head.partition=split"), "split", "requested", {"replicate": "more_bytes"}, id="split"
        ),
        pytest.param(
            ("tp=8", "lm_head.partition=replicate"),
            "replicate",
            "requested",
            {"split": "not_requested"},
            id="replicate",
        ),
        pytest.param((), "split", "only_option", {"replicate": "not_needed"}, id="one-rank"),
    ],
)
def test_head(overrides: tuple[str, ...], choice: str, reason: str, over: dict[str, str]) -> None:
    plan = plan_of("model=e2b", *overrides)
    assert taken(plan, "lm_head.partition") == (choice, reason)
    assert turned_down(plan, "lm_head.partition") == over


# --- types ---


@pytest.mark.parametrize(
    ("target", "asked", "dtype", "reason"),
    [
        ("inf2.xlarge", "auto", "bfloat16", "dtype_of_target"),
        ("inf2.xlarge", "bfloat16", "bfloat16", "requested"),
        ("inf2.xlarge", "float32", "float32", "requested"),
        ("inf2.xlarge", "float16", None, "Gemma's activations pass 65504"),
        ("trn2.3xlarge", "float16", None, "Gemma's activations pass 65504"),
        ("g5g.2xlarge", "auto", "float16", "dtype_of_target"),
        ("g5g.2xlarge", "bfloat16", "bfloat16", "requested"),
    ],
)
def test_dtype(target: str, asked: str, dtype: str | None, reason: str) -> None:
    overrides = ("model=e2b", f"target={target}", f"dtype={asked}", "shapes=kv512")
    if dtype is None:
        with pytest.raises(ConfigError, match=f"^dtype={asked} is refused with neuron-.*{reason}.* Instead: "):
            plan_of(*overrides)
        return
    plan = plan_of(*overrides)
    assert plan.dtype == dtype
    assert taken(plan, "dtype") == (dtype, reason)
    assert set(turned_down(plan, "dtype")) == {"bfloat16", "float16", "float32"} - {dtype}
    warned = {item.code for item in plan.findings if item.code.startswith("dtype_")}
    assert warned == ({f"dtype_{dtype}"} if target.startswith("g5g") else set())


@pytest.mark.parametrize(
    ("kv_dtype", "says"),
    [
        ("float8_e4m3fn", r"NCC_EVRF051 .*Instead: int8"),
        ("int8", r"scales are not planned.*Instead: bfloat16"),
        ("float64", r"expected auto, bfloat16, float16, float32"),
    ],
)
def test_kv_types_that_are_refused(kv_dtype: str, says: str) -> None:
    with pytest.raises(ConfigError, match=rf"^shapes\.kv_dtype={kv_dtype}.*{says}"):
        plan_of("model=e2b", f"shapes.kv_dtype={kv_dtype}")


# --- target and release ---

AUTO_ORDER = [
    "inf2.xlarge",  # 32 GiB of device memory, 16 of host
    "trn1.2xlarge",  # 32, 32
    "inf2.8xlarge",  # 32, 128
    "trn2.3xlarge",  # 96, 128
    "inf2.24xlarge",  # 192
    "inf2.48xlarge",  # 384
    "trn1.32xlarge",  # 512
    "trn1n.32xlarge",  # 512
    "trn2.48xlarge",  # 1,536
]


def test_order_of_machines() -> None:
    """Fewest device GiB, then host GiB, then inf2, trn1, trn2. A GPU is only taken where it is asked for."""
    assert [target.name for target in load_config(["model=e2b"]).targets] == AUTO_ORDER
    assert set(choices("target")) - set(AUTO_ORDER) == {name for name in choices("target") if name.startswith("g5g")}


@pytest.mark.parametrize(
    ("overrides", "target"),
    [
        pytest.param(("model=e2b",), "inf2.xlarge", id="e2b"),
        pytest.param(("model=12b",), "trn2.3xlarge", id="12b-one-core-of-24-gib"),
        pytest.param(("model=12b", "tp=2"), "inf2.xlarge", id="12b-tp2"),
        pytest.param(("model=e2b", "tp=3"), "trn2.3xlarge", id="three-cores"),
        pytest.param(("model=31b", "tp=8"), "inf2.24xlarge", id="31b-tp8"),
        pytest.param(("model=31b", "tp=24"), "inf2.48xlarge", id="31b-tp24"),
        pytest.param(("model=31b", "tp=32"), "trn1.32xlarge", id="31b-tp32"),
        pytest.param(("model=31b", "tp=64"), "trn2.48xlarge", id="31b-tp64"),
    ],
)
def test_the_smallest_machine_that_fits(overrides: tuple[str, ...], target: str) -> None:
    plan = plan_of(*overrides)
    assert taken(plan, "target") == (target, "smallest_target")
    at = AUTO_ORDER.index(target)
    over = turned_down(plan, "target")
    assert set(over) == set(AUTO_ORDER) - {target}
    for name in AUTO_ORDER[:at]:
        few = target_of(name).cores < plan.tp
        assert over[name] == ("too_few_cores" if few else "does_not_fit")
    assert {over[name] for name in AUTO_ORDER[at + 1 :]} <= {"larger_target"}


@pytest.mark.parametrize(
    ("target", "release", "over"),
    [
        ("inf2.8xlarge", "neuron-2.28", {"neuron-2.31": "not_requested", "vllm-0.27.2rc0": "not_supported"}),
        ("trn1.2xlarge", "neuron-2.28", {"neuron-2.31": "not_requested", "vllm-0.27.2rc0": "not_supported"}),
        ("trn2.3xlarge", "neuron-2.31", {"neuron-2.28": "not_requested", "vllm-0.27.2rc0": "not_supported"}),
        ("g5g.2xlarge", "vllm-0.27.2rc0", {"neuron-2.28": "not_supported", "neuron-2.31": "not_supported"}),
    ],
)
def test_release_of_the_family(target: str, release: str, over: dict[str, str]) -> None:
    plan = plan_of("model=e2b", f"target={target}", "shapes=kv512")
    assert (plan.sdk, taken(plan, "sdk")) == (release, (release, "sdk_of_target"))
    assert turned_down(plan, "sdk") == over


def test_release_asked_for() -> None:
    plan = plan_of("model=e2b", "target=inf2.8xlarge", "sdk=neuron-2.31")
    assert taken(plan, "sdk") == ("neuron-2.31", "requested")
    assert "decode_gap_inf2" in {item.code for item in plan.findings}


# --- published failures ---


def failing(when: dict[str, Any], versions: VersionRange | None = None, effect: str = "warning") -> Sdk:
    """2.28 with one failure of neuronx-cc 2.23.6484, its pin."""
    failure = Failure("it fails", "neuronx-cc", versions or VersionRange(None, None), when, effect, "", "a report")  # type: ignore[arg-type]
    sdk = sdk_of("neuron-2.28")
    return replace(sdk, stack=replace(sdk.stack, failures={"made_up": failure}))


@pytest.mark.parametrize(
    ("minimum", "below", "fires"),
    [
        (None, None, True),
        ("2.23", None, True),
        ("2.23.6484", "2.23.6485", True),
        ("2.23.6484", None, True),
        (None, "2.24", True),
        ("2.24", None, False),
        ("2.23.6485", None, False),
        (None, "2.23.6484", False),
        (None, "2.23", False),
    ],
)
def test_a_failure_fires_inside_its_versions(minimum: str | None, below: str | None, fires: bool) -> None:
    config = composed("model=12b", "tp=8", "target=inf2.24xlarge")
    for effect, observe in (
        ("warning", lambda plan: any(item.code == "made_up" for item in plan.findings)),
        ("eager_attention", lambda plan: plan.layers[0].attention.implementation == "eager"),
        ("softcap_on_host", lambda plan: taken(plan, "offload.softcap")[1] == "published_failure"),
    ):
        sdk = failing({"model": "12b"}, VersionRange(minimum, below), effect)
        assert observe(build_plan(replace(config, sdks=(sdk,)))) == fires, effect


def test_a_failure_of_a_package_that_is_not_pinned_does_not_fire() -> None:
    sdk = failing({"model": "12b"})
    bare = replace(sdk, pins={name: version for name, version in sdk.pins.items() if name != "neuronx-cc"})
    plan = {"model": "12b"}
    assert [item.code for item in failure_findings(sdk, plan, [])] == ["made_up"]
    assert failure_findings(bare, plan, []) == ()


PLAN_FACTS = {"model": "12b", "tp": 8, "kv_length": 2048, "api": None}
LAYER_FACTS = [{"window": 1024, "head_dim": 256}, {"window": None, "head_dim": 512}]


@pytest.mark.parametrize(
    ("when", "fires"),
    [
        ({"model": "12b"}, True),
        ({"model": "31b"}, False),
        ({"model": ["31b", "12b"]}, True),
        ({"tp": {"minimum": 8}}, True),
        ({"tp": {"minimum": 9}}, False),
        ({"tp": {"minimum": 2, "maximum": 8}}, True),
        ({"tp": {"maximum": 7}}, False),
        ({"window": 1024}, True),
        ({"window": 512}, False),
        ({"head_dim": {"minimum": 300}}, True),
        ({"window": 1024, "head_dim": 256}, True),
        ({"window": 1024, "head_dim": 512}, False),  # of one layer together
        ({"window": {"minimum": 1}, "head_dim": 512}, False),  # null is in no range
        ({"model": "12b", "window": 1024}, True),
        ({"model": "31b", "window": 1024}, False),
        ({"api": {"minimum": 1}}, False),
        ({"api": None}, True),
        ({"recipe": "trace"}, False),  # not decided yet: no condition on it holds
    ],
    ids=str,
)
def test_a_failure_holds_when_its_facts_do(when: dict[str, Any], fires: bool) -> None:
    assert bool(published(failing(when), "warning", PLAN_FACTS, LAYER_FACTS)) == fires


def test_a_failure_of_one_layer_names_it() -> None:
    (finding,) = failure_findings(failing({"head_dim": 512}), PLAN_FACTS, LAYER_FACTS)
    assert finding.layer == 1
    (finding,) = failure_findings(failing({"head_dim": {"minimum": 1}}), PLAN_FACTS, LAYER_FACTS)
    assert finding.layer is None


@pytest.mark.parametrize(("key", "near"), [("windw", "did you mean 'window'"), ("colour", "known: ")])
def test_a_condition_on_an_unknown_fact_is_an_error(key: str, near: str) -> None:
    """Else it would never hold, and nobody would know."""
    config = replace(load_config(["model=12b", "tp=8", "target=inf2.24xlarge"]), sdks=(failing({key: 1}),))
    with pytest.raises(UserError, match=rf"failures\.made_up\.when\.{key}: no such fact; {near}"):
        build_plan(config)


@pytest.mark.parametrize("placement", ["one_core", "core_each"])
def test_second_graph_on_a_core(placement: str) -> None:
    """The warning is for graphs that share a core, and the copies are in the budget."""
    config = load_config(["model=e2b", "target=inf2.xlarge"])
    plan = build_plan(replace(config, recipes=(Recipe("trace", placement=placement),)))  # type: ignore[arg-type]
    warned = "two_graphs_one_core" in {item.code for item in plan.findings}
    assert warned == (placement == "one_core")
    assert plan.weight_copies == (2 if warned else 1)

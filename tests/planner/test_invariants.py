"""The plan's invariants over random architectures, degrees and choices, by an interpreter of the JSON alone."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings

from gemma4cfg import Plan, build_plan
from gemma4cfg.architecture.model import MlpFacts, MoeFacts, PleFacts
from gemma4cfg.config.schema import Config, LmHeadChoice, MoeChoice, OffloadChoice, PleChoice, Recipe
from gemma4cfg.errors import UserError
from tests.architectures import FULL, POLICIES, SMALL, TP_DEGREES, Choices, configurations, shapes, small
from tests.interpret import cut, device_tensors, faults, forward, gather, identities_of, join

KEYS = re.compile(r"(attention|moe|ple|lm_head|shapes|offload|recipe|model|target|sdk)(\.\w+)*[=:]|tp=|dtype=")
"""How a refusal begins: with the key that it is about."""

PLE = PleFacts(6, 40, 2.0, 0.5, 0.75)
EXPERTS = MoeFacts(8, 2, 10)
EVERYTHING = replace(SMALL, mlp=MlpFacts(13, True), ple=PLE, moe=EXPERTS, kv_shared_layers=2)


def legal(config: Config) -> bool:
    """Whether the contract has a plan for it: every other policy is for any number of heads, and padding for any size."""
    tp, model = config.settings.tp, config.model
    for kind in model.layer_pattern:
        heads = getattr(model.attention, kind)
        policy = (config.settings.attention.layers or {}).get(kind, config.settings.attention.policy)
        even = heads.kv_heads % tp == 0
        grouped = tp % heads.kv_heads == 0 and heads.q_heads % tp == 0
        if (policy == "split" and not even) or (policy == "group" and not (even or grouped)):
            return False
    return not (model.moe and config.settings.moe.partition == "experts" and model.moe.experts % tp)


def copies_of(plan: dict[str, Any], recipe: Recipe) -> int:
    """Graphs that hold weights of their own on the fullest core."""
    prefills = len(plan["shapes"]["prefill_buckets"])
    return {
        "trace": prefills if recipe.placement == "core_each" else prefills + 1,
        "tp_alias": 1 if recipe.prefill == "host" else prefills + 1,
        "model_builder": 1,
    }[recipe.name]


def check_arrays(plan: dict[str, Any]) -> None:
    """Cut every tensor, join it again, and run the ranks' parts of a stand-in forward pass against the whole."""
    tp, random = plan["tp"], np.random.default_rng(0)
    whole = {**plan, "tp": 1, "rank_tensors": {}, "layers": [unsharded(layer) for layer in plan["layers"]]}
    sources: dict[str, np.ndarray] = {}
    held: list[dict[str, np.ndarray]] = [{} for _ in range(tp)]
    for name, entry in plan["tensors"].items():
        sources[name] = random.integers(-3, 4, entry["shape"])
    for name, entry in plan["tensors"].items():
        if entry["status"] == "tied":
            sources[name] = sources[entry["source"]]
    for name, entry in device_tensors(plan):
        distinct = np.arange(1, sources[name].size + 1, dtype=np.float64).reshape(entry["shape"])
        joined = join([cut(distinct, entry, rank) for rank in range(tp)], entry)
        assert joined.tobytes() == distinct.tobytes(), name
        for rank in range(tp):
            held[rank][name] = cut(sources[name], entry, rank)
    x = random.integers(-3, 4, plan["tensors"]["lm_head.weight"]["shape"][1])
    expected = forward(whole, sources, sources, 0, x)
    found = gather(plan, [forward(plan, sources, held[rank], rank, x) for rank in range(tp)])
    for key, value in expected.items():
        assert np.array_equal(found[key], value), key


def unsharded(layer: dict[str, Any]) -> dict[str, Any]:
    """The layer as one rank would hold it whole."""
    attention = {**layer["attention"], "local_q_heads": layer["q_heads"], "local_kv_heads": layer["kv_heads"]}
    moe = layer["moe"] and {**layer["moe"], "local_intermediate": layer["moe"]["intermediate"]}
    ple = layer["ple"] and {**layer["ple"], "local_width": layer["ple"]["width"], "reduce": False}
    return {**layer, "attention": attention, "moe": moe, "ple": ple}


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(configurations())
def test_every_invariant(choices: Choices) -> None:
    config = choices.config()
    try:
        plan = build_plan(config)
    except UserError as error:
        event("refused")
        assert not legal(config), error
        assert KEYS.match(str(error)), error
        return
    event(f"planned, {sorted({layer.attention.mode for layer in plan.layers})}")
    assert legal(config)
    encoded = json.dumps(plan.to_json())
    data = json.loads(encoded)
    assert faults(data) == []
    assert Plan.from_json(data) == plan
    assert identities_of(data) == (plan.placement_id, plan.plan_id)
    recipe = next(r for r in config.recipes if r.name == plan.recipe)
    assert plan.weight_copies == copies_of(data, recipe)
    check_arrays(data)


# --- the property test cannot pass by refusing, nor by looking away ---


def grid() -> Iterator[Any]:
    for tp in TP_DEGREES:
        for policy in POLICIES:
            for partition in ("intermediate", "experts"):
                yield pytest.param(tp, policy, partition, id=f"tp{tp}-{policy}-{partition}")


@pytest.mark.parametrize(("tp", "policy", "partition"), list(grid()))
def test_known_combinations_plan(tp: int, policy: str, partition: str) -> None:
    """8 query heads over 4 and 2 KV heads, 8 experts: what divides, planned or refused."""
    even_for_all = tp in (1, 2)
    grouped = tp in (1, 2, 4, 8)  # 8: group on both; 4: split on one, group on the other
    expected = {"split": even_for_all, "group": grouped}.get(policy, True)
    expected = expected and (partition == "intermediate" or tp in (1, 2, 4, 8))
    config = small(EVERYTHING, tp, policy, moe=MoeChoice(partition))
    if not expected:
        with pytest.raises(UserError, match=KEYS):
            build_plan(config)
        return
    plan = build_plan(config).to_json()
    assert faults(plan) == []
    check_arrays(plan)


Break = Callable[[dict[str, Any]], None]


def name_of(layer: int, role: str) -> str:
    return f"model.language_model.layers.{layer}.{role}"


def own_copy(plan: dict[str, Any], name: str) -> dict[str, Any]:
    """A tensor's placement, no longer shared with other tensors."""
    entry = plan["tensors"][name]
    entry["placement"] = copy.deepcopy(entry["placement"])
    return entry["placement"]


def swap_ranks(role: str) -> Break:
    def edit(plan: dict[str, Any]) -> None:
        ranges = own_copy(plan, name_of(0, role))["ranges"]
        ranges[0], ranges[1] = ranges[1], ranges[0]

    return edit


def set_in(path: str, value: Any) -> Break:
    def edit(plan: dict[str, Any]) -> None:
        *parents, last = path.split("/")
        node: Any = plan
        for key in parents:
            node = node[int(key) if isinstance(node, list) else key]
        node[int(last) if isinstance(node, list) else last] = value

    return edit


def first_rank_everywhere(plan: dict[str, Any]) -> None:
    ranges = own_copy(plan, name_of(0, "mlp.gate_proj.weight"))["ranges"]
    ranges[1:] = [ranges[0]] * (len(ranges) - 1)


def half_a_head(plan: dict[str, Any]) -> None:
    ranges = own_copy(plan, name_of(0, "self_attn.q_proj.weight"))["ranges"]
    ranges[0][0][1] -= 1
    ranges[1][0][0] -= 1


def pad_in_the_middle(plan: dict[str, Any]) -> None:
    ranges = own_copy(plan, "lm_head.weight")["ranges"]
    ranges[0], ranges[-1] = ranges[-1], ranges[0]


def contiguous_packed_cut(plan: dict[str, Any]) -> None:
    entry = own_copy(plan, name_of(0, "experts.gate_up_proj"))
    entry["ranges"] = [[[rank * 5, rank * 5 + 5]] for rank in range(4)]


BREAKS: dict[str, tuple[Break, str]] = {
    "first-rank-everywhere": (first_rank_everywhere, "layers.0.mlp.gate_proj.weight: 0-4 held by 4 ranks, not 1"),
    "o-proj-of-other-heads": (
        swap_ranks("self_attn.o_proj.weight"),
        "columns of o_proj are not the heads of its q_proj",
    ),
    "kv-heads-of-other-ranks": (swap_ranks("self_attn.k_proj.weight"), "attends to KV head 0, it has 1"),
    "v-of-other-heads": (swap_ranks("self_attn.v_proj.weight"), "holds other heads of K than of V"),
    "half-a-head": (half_a_head, "cut of q_proj divides a head"),
    "packed-contiguous": (contiguous_packed_cut, "gate, up and down of the experts are cut differently"),
    "padding-first": (pad_in_the_middle, "lm_head rows"),
    "two-writers": (set_in("layers/2/kv/slot", 0), "slot 0 has 2 writers: 0, 2"),
    "borrower-with-slot": (set_in("layers/2/kv/slot", 2), "layer 2 borrows, and has a slot"),
    "borrower-writes": (set_in("layers/2/kv/writes", True), "layer 2: who writes its K/V is not its owner"),
    "owner-of-other-type": (set_in("layers/2/kv/owner", 1), "layer 2 reads layer 1"),
    "window-on-full": (set_in("layers/1/window", 16), "layer 1 (full_attention): window 16"),
    "one-plane-of-kv": (set_in("layers/1/value_source", "v_proj"), "layer 1: V is of v_proj"),
    "replicated-and-summed": (set_in("layers/0/attention/mode", "replicate"), "reduce True of a replicate layer"),
    "replication-forgotten": (set_in("layers/1/attention/replication", 1), "4 KV heads over all ranks, 2 x 1 said"),
    "collective-forgotten": (set_in("graphs/0/collectives/all_reduce", 15), "layers need 16"),
    "weights-of-global-heads": (set_in("budget/hbm_per_rank/weights", 1), "budget weights 1, counted"),
    "expert-ids-of-rank-0": (set_in("layers/0/moe/partition", "experts"), "its ids say otherwise"),
    "ple-columns": (set_in("rank_tensors/model.ple_columns/values/1", [0, 1]), "rank 1 reads columns [0, 1]"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_interpreter_sees(name: str) -> None:
    """A plan broken in one place has a fault there, so the invariants above are really looked at."""
    config = small(EVERYTHING, 4, ple=PleChoice("split"))
    plan = json.loads(json.dumps(build_plan(config).to_json()))
    assert faults(plan) == []
    edit, says = BREAKS[name]
    edit(plan)
    assert any(says in fault for fault in faults(plan)), faults(plan)


@pytest.mark.parametrize("role", ["self_attn.k_proj.weight", "self_attn.o_proj.weight", "mlp.down_proj.weight"])
def test_arrays_see_what_lies_on_the_wrong_rank(role: str) -> None:
    plan = json.loads(json.dumps(build_plan(small(EVERYTHING, 4)).to_json()))
    check_arrays(plan)
    swap_ranks(role)(plan)
    with pytest.raises(AssertionError, match=r"0\."):
        check_arrays(plan)


def test_arrays_see_a_replicated_layer_that_is_summed() -> None:
    plan = json.loads(json.dumps(build_plan(small(EVERYTHING, 4, "replicate")).to_json()))
    check_arrays(plan)
    full = next(layer for layer in plan["layers"] if layer["type"] == FULL)
    full["attention"]["reduce"] = True
    with pytest.raises(AssertionError, match=f"{full['index']}.attention"):
        check_arrays(plan)


# --- identities ---


def ids(config: Config) -> tuple[str, str, list[str]]:
    plan = build_plan(config)
    return plan.placement_id, plan.plan_id, [graph.id for graph in plan.graphs]


def with_target(config: Config, **changed: Any) -> Config:
    """The machine that the plan takes, changed, and asked for."""
    name = build_plan(config).target
    target = next(target for target in config.known_targets if target.name == name)
    return replace(config, targets=(replace(target, **changed),))


BASE = small(EVERYTHING, 4, shapes=shapes(prefill_buckets=(4, 8)))


def test_equal_configurations_have_equal_plans() -> None:
    assert build_plan(BASE) == build_plan(small(EVERYTHING, 4, shapes=shapes(prefill_buckets=(4, 8))))


@pytest.mark.parametrize("what", ["price", "host memory", "bandwidth"])
def test_better_estimates_rebuild_nothing(what: str) -> None:
    """Figures about the machine change the estimate, the budget, findings and decisions, and no identity."""
    plain = with_target(BASE)
    (target,) = plain.targets
    chip = replace(target.chip, bandwidth_bytes_per_s=target.chip.bandwidth_bytes_per_s // 2)
    changes: dict[str, dict[str, Any]] = {
        "price": {"price": replace(target.price, on_demand=None, spot=None)},
        "host memory": {"host_memory_gib": 1},
        "bandwidth": {"chip": chip},
    }
    changed = with_target(BASE, **changes[what])
    before, after = build_plan(plain), build_plan(changed)
    if what != "price":
        assert (before.budget, before.estimate, before.findings) != (after.budget, after.estimate, after.findings)
    assert ids(plain) == ids(changed)


@pytest.mark.parametrize(
    ("changed", "placement_changes"),
    [
        pytest.param({"tp": 2}, True, id="tp"),
        pytest.param({"ple": PleChoice("split")}, True, id="ple-split"),
        pytest.param({"lm_head": LmHeadChoice("replicate")}, True, id="lm-head"),
        pytest.param({"moe": MoeChoice("experts")}, True, id="experts"),
        pytest.param({"dtype": "float32"}, True, id="dtype"),
        pytest.param({"shapes": shapes(prefill_buckets=(4, 8), batch=2)}, False, id="batch"),
        pytest.param({"shapes": shapes(prefill_buckets=(4, 8), kv_length=64)}, False, id="kv-length"),
        pytest.param({"shapes": shapes(prefill_buckets=(4, 8), kv_layout="ring")}, False, id="ring"),
        pytest.param({"offload": OffloadChoice("host", "host", "device", "device", "host")}, False, id="softcap"),
        pytest.param({"offload": OffloadChoice("host", "host", "device", "host", "device")}, False, id="sampling"),
    ],
)
def test_a_graphs_id_follows_what_it_computes(changed: dict[str, Any], placement_changes: bool) -> None:
    before = ids(BASE)
    arguments = {"tp": 4, "shapes": shapes(prefill_buckets=(4, 8)), **changed}
    after = ids(small(EVERYTHING, **arguments))
    assert before[1] != after[1]
    assert not set(before[2]) & set(after[2])
    assert (before[0] != after[0]) == placement_changes


def test_a_bucket_more_leaves_the_other_graphs_alone() -> None:
    _, _, before = ids(small(EVERYTHING, 4, shapes=shapes(prefill_buckets=(8,))))
    _, _, after = ids(BASE)
    assert set(before) < set(after)
    assert len(set(after)) == 3


@pytest.mark.parametrize("key", ["plan_id", "placement_id", "tp", "format_version"])
def test_a_changed_plan_is_not_read(key: str) -> None:
    data = json.loads(json.dumps(build_plan(BASE).to_json()))
    data[key] = {"tp": 8}.get(key, "0" * 64)
    with pytest.raises(UserError, match=r"placement_id|plan_id|format_version"):
        Plan.from_json(data)

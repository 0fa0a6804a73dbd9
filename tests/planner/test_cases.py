"""Public faults of this field that a planner meets, one test each: the right value, or the refusal in its words.

The numbers are those of the collection of cases. Elsewhere: what headers say (11, 21, 27, 39, 49, 50, 54, 70, 72, 76 and
94) in tests/architecture, the detection of broken plans (45 and 19 as input) in test_invariants, resharding (38, 46, 77)
in tests/sharding. Not a planner's to find, and left to later work:

- proof on CPU ranks: 16, 17, 18, 37 (buffers rebuilt on a rank), 38 (verifying through the resharder), 48, 58 and 59
  (values of the cap), 63, 65 to 69, 75;
- compiling: 36, 40, 83;
- sweeps: 86, 87, 89, 90.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import pytest

from gemma4cfg import Plan, build_plan, load_config
from gemma4cfg.config.schema import Config
from gemma4cfg.errors import ConfigError, PlanError, UserError
from gemma4cfg.findings import Finding
from gemma4cfg.plan.records import Decision, Layer
from tests.interpret import pieces_of

MODELS = ("e2b", "e4b", "12b", "26b-a4b", "31b")


@functools.cache
def plan_of(*overrides: str) -> Plan:
    return build_plan(load_config(overrides))


def on_large_machine(*overrides: str) -> Config:
    """inf2.xlarge with 200 GB a chip: for degrees at which the model fits no machine there is."""
    config = load_config([*overrides, "target=inf2.xlarge"])
    (target,) = config.targets
    return replace(config, targets=(replace(target, chip=replace(target.chip, hbm_bytes=200 * 10**9)),))


def refusal(*overrides: str) -> str:
    with pytest.raises(UserError) as refused:
        build_plan(load_config(overrides))
    return str(refused.value)


def first(plan: Plan, kind: str) -> Layer:
    return next(layer for layer in plan.layers if layer.type == kind)


def decision(plan: Plan, name: str) -> Decision:
    return next(item for item in plan.decisions if item.id == name)


def findings(plan: Plan, code: str) -> list[Finding]:
    return [finding for finding in plan.findings if finding.code == code]


def tensor(plan: Plan, layer: int, role: str) -> Mapping[str, Any]:
    return plan.tensors[f"model.language_model.layers.{layer}.{role}"]


# --- A. heads ---


def test_case_01_more_kv_heads_than_ranks_are_split() -> None:
    """NxD Inference converts 8 KV heads over 2 ranks to MHA although they divide; the plan splits them and names the
    package. It is told as information, since this plan hands NxD the heads of each rank; and at tp=2 no machine there is
    holds 26B-A4B, so the same is asked of tp=4."""
    for plan in (build_plan(on_large_machine("model=26b-a4b", "tp=2")), plan_of("model=26b-a4b", "tp=4")):
        attention = first(plan, "sliding_attention").attention
        assert (attention.mode, attention.local_kv_heads) == ("split", 8 // plan.tp)
        (finding,) = findings(plan, "kv_heads_converted_to_mha")
        assert "aws-neuron/aws-neuron-sdk#1289" in finding.message
        assert finding.severity == "info"
    assert findings(plan_of("model=26b-a4b", "tp=8"), "kv_heads_converted_to_mha") == []


def test_case_02_a_cut_is_never_less_than_a_head() -> None:
    """1,024 rows of k_proj over 8 ranks are 128 each, a quarter of a head: refused, and grouped by default."""
    message = refusal("model=26b-a4b", "tp=8", "attention.policy=split")
    assert "2 x 512 rows / 8 is not whole heads" in message
    assert "layer 5 (full_attention)" in message
    plan = plan_of("model=26b-a4b", "tp=8")
    attention = first(plan, "full_attention").attention
    assert (attention.mode, attention.local_kv_heads, attention.replication) == ("group", 1, 4)
    entry = tensor(plan, 5, "self_attn.k_proj.weight")
    assert [sum(length for _, length in pieces_of(dict(entry), rank)) for rank in range(8)] == [512] * 8


def test_case_04_divisibility_is_tested_at_config_time() -> None:
    """2 KV heads over 4 ranks failed on a reshape deep in the forward pass."""
    with pytest.raises(
        ConfigError, match=r"^attention\.policy=split: layer 0 .*; possible there: group, replicate; e\.g\."
    ):
        build_plan(load_config(["model=e4b", "tp=4", "attention.policy=split"]))


def test_case_05_total_local_and_replication_are_three_fields() -> None:
    """A consumer that multiplied local heads by TP got 8 KV heads where there are 2."""
    layer = first(plan_of("model=26b-a4b", "tp=8"), "full_attention")
    total, local, replication = layer.kv_heads, layer.attention.local_kv_heads, layer.attention.replication
    assert (total, local, replication) == (2, 1, 4)
    assert total * replication == local * 8


@pytest.mark.parametrize("tp", [2, 4, 8, 16])
@pytest.mark.parametrize("model", ["12b", "26b-a4b", "31b"])
def test_case_06_copies_lie_with_their_queries(model: str, tp: int) -> None:
    """Copies of KV heads were dealt out in turn (H0 H1 H0 H1); rank r needs head r·local_q // (q/kv), so H0 H0 H1 H1."""
    plan = build_plan(on_large_machine(f"model={model}", "tp=2")) if tp == 2 else plan_of(f"model={model}", f"tp={tp}")
    for layer in plan.layers:
        attention, groups = layer.attention, layer.q_heads // layer.kv_heads
        for rank, heads in enumerate(attention.kv_heads_of_rank):
            assert heads[0] == rank * attention.local_q_heads // groups


def test_case_06_interleaving_is_no_choice() -> None:
    assert plan_of("model=26b-a4b", "tp=4").layers[5].attention.kv_heads_of_rank == ((0,), (0,), (1,), (1,))
    assert refusal("model=26b-a4b", "tp=4", "attention.policy=interleaved").startswith("attention.policy=interleaved: ")


def test_case_08_kv_bytes_are_of_a_rank() -> None:
    """Bytes a token were counted with all KV heads and held to one chip. At tp=4 every layer of 31B is split: a quarter.
    At tp=8 its 4 KV heads of full layers are on two ranks each: more than an eighth."""
    assert plan_of("model=31b", "tp=4").estimate.bytes_per_token_per_rank.kv == 901_120 // 4
    eighth = plan_of("model=31b", "tp=8")
    by_layers = 50 * 2 * 2 * 256 * 2 + 10 * 1 * 2 * 512 * 2
    assert eighth.estimate.bytes_per_token_per_rank.kv == by_layers == 122_880 > 901_120 // 8
    assert "122,880 bytes a token and rank" in decision(eighth, "kv.layout").detail


def test_case_10_every_count_of_a_rank_is_local() -> None:
    """Attention was built with 16 heads on tensors already cut to 4: 16 × 256 columns are not the 1,024 of the shard."""
    plan = plan_of("model=26b-a4b", "tp=4")
    layer = first(plan, "sliding_attention")
    (rows,) = {
        sum(n for _, n in pieces_of(dict(tensor(plan, 0, "self_attn.q_proj.weight")), rank)) for rank in range(4)
    }
    assert rows == layer.attention.local_q_heads * layer.head_dim == 1024 != layer.q_heads * layer.head_dim
    heads = {port.name: port.shape[1] for graph in plan.graphs for port in graph.state}
    assert heads["key_0"] == layer.attention.local_kv_heads == 2
    assert heads["key_5"] == 1


def test_case_12_no_kernel_that_heads_are_too_wide_for() -> None:
    """A kernel for heads of at most 128 was given 256, with a vocabulary of 262,208 written into the code. Attention is
    traced, as eager or sdpa; a kernel is no choice; the vocabulary is the model's."""
    says = "attention.implementation=nki_attn: expected auto | eager | sdpa"
    assert refusal("model=e2b", "attention.implementation=nki_attn") == says
    plan = plan_of("model=12b", "tp=8")
    assert {port.shape for graph in plan.graphs for port in graph.outputs} == {(1, 262_144)}
    assert {layer.attention.implementation for layer in plan.layers} == {"eager"}


@pytest.mark.parametrize(("head_dim", "found"), [(512, 1), (256, 0)])
def test_case_13_shared_memory_of_the_gpu(head_dim: int, found: int) -> None:
    """On Turing the kernel's tiles for heads of 512 need 98,304 bytes of 65,536. The finding is the published one: the plan
    does not choose vLLM's tiles, and says what a patch must do."""
    plan = plan_of("model=e2b", "target=g5g.2xlarge", f"model.attention.full_attention.head_dim={head_dim}")
    reported = findings(plan, "shared_memory_head_512")
    assert len(reported) == found
    for finding in reported:
        assert "Required 98304, limit 65536" in finding.message
        assert "vllm-project/vllm#57712" in finding.message
        assert finding.severity == "warning"


@pytest.mark.parametrize("target", ["inf2.24xlarge", "g5g.2xlarge"])
def test_case_15_kv_type_whose_pages_do_not_nest(target: str) -> None:
    """With scales a page of 512-wide heads is 1,032 bytes, no multiple of 520: refused before anything starts."""
    message = refusal("model=e2b", f"target={target}", "shapes.kv_dtype=int8_per_token_head")
    assert message.startswith("shapes.kv_dtype=int8_per_token_head is refused with ")
    assert "1032 and 520" in message


# --- B. sharing ---


@pytest.mark.parametrize(("model", "slots"), [("e2b", 15), ("e4b", 24)])
def test_case_19_one_writer_a_slot(model: str, slots: int) -> None:
    """Borrowing layers overwrote their donor's cache."""
    plan = plan_of(f"model={model}")
    writers = [layer.index for layer in plan.layers if layer.kv.writes]
    assert writers == [layer.index for layer in plan.layers if layer.kv.slot is not None] == list(range(slots))
    assert "only owners write" in decision(plan, "kv.sharing").detail
    for layer in plan.layers[slots:]:
        assert (layer.kv.writes, layer.kv.slot, layer.kv.shape, layer.kv.layout) == (False, None, None, None)


def test_case_23_every_layer_has_an_owner() -> None:
    """Maps by layer number failed at layer 15; the owner is defined for every layer, and its slot found through it."""
    plan = plan_of("model=e2b")
    assert [plan.layers[index].kv.owner for index in (0, 13, 14, 15, 19, 34)] == [0, 13, 14, 13, 14, 14]
    assert all(plan.layers[layer.kv.owner].kv.slot is not None for layer in plan.layers)


@pytest.mark.parametrize("model", ["e2b", "12b"])
def test_case_24_quantised_kv_where_layers_share_it(model: str) -> None:
    """Borrowers read a quantised slot as if it were whole. Refused for every model, shared or not: scales are not planned."""
    message = refusal(f"model={model}", "tp=2", "shapes.kv_dtype=int8")
    assert message.startswith("shapes.kv_dtype=int8 is refused with neuron-2.28: key and value scales are not planned")
    assert "ekryski/mlx-swift-lm#201" in message


def test_case_26_window_rope_and_owner_are_of_a_layer() -> None:
    """One window was applied to all layers, and donors were overwritten. A window on full layers is refused by its key."""
    for layer in plan_of("model=e2b").layers:
        full = layer.index % 5 == 4
        assert layer.type == ("full_attention" if full else "sliding_attention")
        assert layer.window == (None if full else 512)
        assert (layer.rope.theta, layer.head_dim) == ((1e6, 512) if full else (1e4, 256))
        assert layer.kv.owner == (layer.index if layer.index < 15 else 14 if full else 13)
    assert refusal("model=e2b", "model.attention.full_attention.window=512").startswith(
        "model.attention.full_attention.window=512: sliding layers have a window"
    )


# --- C. keys that double as values ---


@pytest.mark.parametrize("model", ["12b", "26b-a4b", "31b"])
def test_case_29_k_and_v_are_two_planes(model: str) -> None:
    """K passes a norm with a scale and the rotation, V neither: one buffer cannot hold both."""
    plan = plan_of(f"model={model}", "tp=8")
    doubled = [layer for layer in plan.layers if layer.value_source == "k_proj"]
    assert {layer.type for layer in doubled} == {"full_attention"}
    for graph in plan.graphs:
        shapes = {port.name: port.shape for port in graph.state}
        for layer in doubled:
            assert shapes[f"key_{layer.kv.slot}"] == shapes[f"value_{layer.kv.slot}"] == layer.kv.shape
    assert "K and V are kept apart" in decision(plan, "kv.value_source").detail
    assert all(f"layers.{layer.index}.self_attn.v_proj" not in name for layer in doubled for name in plan.tensors)


# --- D. embeddings ---


def test_case_30_the_per_layer_table_is_the_hosts() -> None:
    """E4B's table of 5.25 GiB filled a card; on the host it costs 21,504 bytes a token. The whole model with its table
    does fit one core of 16 GiB with one stream, and the decision says what the host would save; with 64 streams it does
    not, and offload=host is named first."""
    table = 262_144 * 42 * 256 * 2
    usual = plan_of("model=e4b", "target=inf2.xlarge")
    assert sum(part.bytes for part in usual.host if part.what == "per_layer_embedding") == table
    held = plan_of("model=e4b", "target=inf2.xlarge", "offload=device")
    assert "on the host 21,504 bytes a token cross instead" in decision(held, "offload.per_layer_embedding").detail
    assert held.budget.hbm_per_rank.weights == usual.budget.hbm_per_rank.weights + table
    assert [finding.severity for finding in findings(held, "per_layer_table_in_graph")] == ["warning"]
    # 32 streams: with the table they take too much, without it they do not
    message = refusal("model=e4b", "target=inf2.xlarge", "offload=device", "shapes.batch=32")
    assert "Would fit: the tables on the host, offload=host (26,624 bytes a token cross instead)" in message
    assert plan_of("model=e4b", "target=inf2.xlarge", "offload=host", "shapes.batch=32").host


def test_case_31_the_table_needs_ids() -> None:
    """Given embeddings alone, the reference searched the whole table backwards for the ids."""
    message = refusal("model=e4b", "offload.per_layer_embedding=device")
    assert message.startswith("offload.per_layer_embedding=device with offload.token_embedding=host")
    assert "set offload.token_embedding=device too, or per_layer_embedding=host" in message
    inputs = {port.name for graph in plan_of("model=e4b").graphs for port in graph.inputs}
    assert {"inputs_embeds", "per_layer_inputs"} < inputs
    assert "input_ids" not in inputs
    on_device = {port.name for graph in plan_of("model=e4b", "offload=device").graphs for port in graph.inputs}
    assert "input_ids" in on_device
    assert not {"inputs_embeds", "per_layer_inputs"} & on_device


def test_case_33_the_peak_of_loading_is_its_own_figure() -> None:
    """A table was first built where it was not to stay: loading peaks above what serving holds."""
    host = plan_of("model=e4b", "target=inf2.xlarge").budget.host
    assert host.load_peak > host.steady > 0
    assert host.swap > 0
    assert findings(plan_of("model=e4b", "target=inf2.xlarge"), "host_swap")


# --- E. experts and cuts ---


def test_case_42_packed_gate_and_up_are_cut_part_by_part() -> None:
    """A contiguous cut gave rank 0 all of gate and rank 1 all of up: rank 0 has rows 0-351 and 704-1055."""
    plan = build_plan(on_large_machine("model=26b-a4b", "tp=2"))
    entry = tensor(plan, 0, "experts.gate_up_proj")
    assert entry["shape"] == [128, 1408, 2816]
    assert entry["placement"] == {"dim": 1, "ranges": [[[0, 352], [704, 1056]], [[352, 704], [1056, 1408]]]}
    assert tensor(plan, 0, "experts.down_proj")["placement"] == {"dim": 2, "ranges": [[[0, 352]], [[352, 704]]]}


def test_case_45_ranks_hold_different_rows() -> None:
    """Every rank loaded the first shard, and all shapes were right."""
    entry = tensor(plan_of("model=12b", "tp=2"), 0, "mlp.gate_proj.weight")
    assert entry["placement"] == {"dim": 0, "ranges": [[[0, 7680]], [[7680, 15360]]]}


@pytest.mark.parametrize("model", MODELS)
def test_case_46_elements_are_counted_not_names(model: str) -> None:
    """Half the columns were absent and every name was there."""
    plan = plan_of(f"model={model}", "tp=8")
    for name, entry in plan.tensors.items():
        if entry["home"] != "device":
            continue
        dim = entry["placement"]["dim"] or 0
        rows = sum(n for rank in range(8) for start, n in pieces_of(dict(entry), rank) if start is not None)
        copies = 8 if entry["placement"]["dim"] is None else 1
        if "self_attn.k_proj" in name or "self_attn.v_proj" in name:
            copies = plan.layers[int(name.split(".")[3])].attention.replication
        assert rows == copies * entry["shape"][dim], name


# --- F. numbers ---


@pytest.mark.parametrize("model", MODELS)
def test_case_51_the_frequency_table_keeps_its_length(model: str) -> None:
    """A table cut to the 64 live pairs turns channel i with i + 64; the reference pairs i with i + 256."""
    layer = first(plan_of(f"model={model}", "tp=8"), "full_attention")
    assert (layer.rope.inv_freq_length, layer.rope.rotary_pairs) == (256, 64)
    assert layer.rope.inv_freq_length == layer.head_dim // 2


def test_case_52_the_type_decides_the_table() -> None:
    """``default`` at the same factor is another convention: 64 entries over a denominator of 128, not 256 over 512."""
    plain = plan_of("model=12b", "tp=8")
    other = plan_of("model=12b", "tp=8", "model.attention.full_attention.rope.type=default")
    rope = first(other, "full_attention").rope
    assert (rope.type, rope.inv_freq_length, rope.rotary_pairs) == ("default", 64, 64)
    assert other.model == "custom"
    assert not {graph.id for graph in plain.graphs} & {graph.id for graph in other.graphs}


@pytest.mark.parametrize(
    ("model", "compiler", "kv_length", "found"),
    [
        pytest.param("31b", "2.24.5133", 513, True, id="faulty"),
        pytest.param("31b", "2.25.1", 2048, True, id="2.30-unreported"),
        pytest.param("31b", "2.24.5133", 512, False, id="short"),
        pytest.param("31b", "2.23.6484", 2048, False, id="2.28"),
        pytest.param("31b", "2.26.6360", 2048, False, id="2.31"),
        pytest.param("12b", "2.24.5133", 2048, False, id="other-model"),
    ],
)
def test_case_56_decode_past_512(model: str, compiler: str, kv_length: int, found: bool) -> None:
    """31B decoded wrongly from position 512 on one release and no longer on 2.31: told of exactly those compilers."""
    config = load_config([f"model={model}", "tp=8", "sdk=neuron-2.28", f"shapes.kv_length={kv_length}"])
    (sdk,) = config.sdks
    pinned = replace(sdk, pins={**sdk.pins, "neuronx-cc": compiler})
    reported = findings(build_plan(replace(config, sdks=(pinned,))), "decode_past_512")
    assert [finding.severity for finding in reported] == ["warning"] * found


def test_case_56_the_scale_is_stated_and_in_no_weight() -> None:
    """A scale put on q_proj's weights was undone by q_norm. The plan rewrites no weight: norms lie whole on every rank."""
    plan = plan_of("model=31b", "tp=8")
    assert plan.numerics.attention_scale == 1.0
    assert tensor(plan, 0, "self_attn.q_norm.weight")["placement"] == {"dim": None}


def test_case_57_the_attention_scale_is_part_of_the_identity() -> None:
    """``head_dim ** -0.5`` is the plausible scale and the wrong one: it makes another plan and other graphs, on the same
    rank files."""
    right = plan_of("model=12b", "tp=8")
    wrong = plan_of("model=12b", "tp=8", "model.attention_scale=0.0625")
    assert (right.numerics.attention_scale, wrong.numerics.attention_scale) == (1.0, 0.0625)
    assert right.plan_id != wrong.plan_id
    assert not {graph.id for graph in right.graphs} & {graph.id for graph in wrong.graphs}
    assert right.placement_id == wrong.placement_id
    assert (right.model, wrong.model) == ("12b", "custom")


@pytest.mark.parametrize(("overrides", "home"), [((), "host"), (("offload=softcap_in_graph",), "device")])
def test_case_58_the_cap_appears_once(overrides: tuple[str, ...], home: str) -> None:
    """A port dropped the cap, and greedy tokens could not tell: it is on one side, and in the numerics."""
    plan = plan_of("model=e2b", *overrides)
    assert plan.numerics.final_logit_softcap == 30.0
    assert decision(plan, "offload.softcap").choice == home
    assert [part.what for part in plan.host].count("softcap") == (home == "host")


def test_case_61_float16_is_refused_but_on_the_gpu() -> None:
    """Activations pass 65,504. On g5g nothing else is fast: a warning there."""
    message = refusal("model=e2b", "dtype=float16")
    assert message.startswith("dtype=float16 is refused with neuron-2.28: Gemma's activations pass 65504")
    assert message.endswith("Instead: bfloat16 or float32")
    plan = plan_of("model=e2b", "target=g5g.2xlarge")
    assert plan.dtype == "float16"
    (warning,) = findings(plan, "dtype_float16")
    assert (warning.severity, "target=inf2.xlarge, in bfloat16" in warning.fix) == ("warning", True)
    assert "does not fit" in refusal("model=e2b", "tp=2", "target=g5g.16xlarge", "dtype=float32"), (
        "so it is not advised"
    )


# --- G. windows ---


@pytest.mark.parametrize(("model", "window"), [("e2b", 512), ("31b", 1024)])
def test_case_64_a_window_counts_the_query_itself(model: str, window: int) -> None:
    """Kernels take an inclusive bound, one less than the reference's window. No kernel is called here: the plan states the
    reference's number, and a ring has as many rows, not one less."""
    plan = plan_of(f"model={model}", "tp=8", "shapes.kv_layout=ring")
    layer = first(plan, "sliding_attention")
    assert layer.window == layer.kv.shape[2] == window
    assert refusal(f"model={model}", "target=inf2.xlarge", "+target.window_inclusive=true").startswith(
        "unknown key target.window_inclusive"
    )


# --- H. the head ---


def test_case_72_a_tied_head_is_one_tensor_or_says_that_it_is_two() -> None:
    """Tied, and stored twice. On the device whole beside a whole embedding it is that embedding; split, or beside a table
    on the host, it is a copy from the embedding's bytes, which the file need not repeat."""
    shared = plan_of("model=e2b", "offload=device", "lm_head.partition=replicate").tensors
    assert (shared["lm_head.weight"]["home"], shared["lm_head.weight"]["placement"]) == ("unused", None)
    plan = plan_of("model=26b-a4b", "tp=8")
    head = plan.tensors["lm_head.weight"]
    assert (head["status"], head["home"], head["source"]) == (
        "tied",
        "device",
        "model.language_model.embed_tokens.weight",
    )
    assert plan.tensors[head["source"]]["home"] == "host"
    assert prod(head["shape"]) * 2 / 2**30 == 1.375, "GiB that storing it twice would take"


@pytest.mark.parametrize(("tp", "rows", "padding"), [(24, 10_923, 8), (12, 21_846, 8), (8, 32_768, 0)])
def test_case_73_padding_of_the_vocabulary_is_never_seen(tp: int, rows: int, padding: int) -> None:
    """262,144 rows do not divide by 24: the last rank's run ends in 8 rows of zeros. Logits have no column for them, so
    nothing need mask them."""
    plan = plan_of("model=12b", f"tp={tp}")
    head = dict(plan.tensors["lm_head.weight"])
    assert {sum(length for _, length in pieces_of(head, rank)) for rank in range(tp)} == {rows}
    zeros = [[length for start, length in pieces_of(head, rank) if start is None] for rank in range(tp)]
    assert zeros == [[]] * (tp - 1) + [[padding] if padding else []]
    assert {port.shape for graph in plan.graphs for port in graph.outputs} == {(1, 262_144)}
    told = f"({padding} rows of padding, {rows} a rank)"
    assert (told in decision(plan, "lm_head.partition").detail) == bool(padding)


# --- I. compiling and memory ---


@pytest.mark.parametrize(
    ("model", "bucket", "found"), [("31b", 8192, True), ("31b", 4096, False), ("12b", 8192, False)]
)
def test_case_79_instructions_of_a_long_bucket(model: str, bucket: int, found: bool) -> None:
    """Layers and rows are unrolled: 8,658,944 instructions where 5,000,000 are allowed. A published limit, held against
    buckets and layers; a smaller bucket with chunking is proposed."""
    plan = plan_of(f"model={model}", "tp=8", f"shapes.prefill_buckets=[{bucket}]", "shapes.kv_length=8192")
    reported = findings(plan, "instruction_count")
    assert [finding.severity for finding in reported] == ["warning"] * found
    assert all("8,658,944" in finding.message and "prompt_chunking" in finding.fix for finding in reported)


def test_case_80_the_budget_comes_first() -> None:
    """Out of memory was found after minutes. 31B at tp=2 is 28.6 GiB a core of 16: refused at once. That tp=4 leaves no
    room for KV does not hold for these shapes: 15.6 of 16 GiB with 2,048 tokens; it does for 8,192 without rings."""
    config = load_config(["model=31b", "tp=2", "target=inf2.8xlarge"])
    began = time.perf_counter()
    with pytest.raises(PlanError) as refused:
        build_plan(config)
    assert time.perf_counter() - began < 1
    message = str(refused.value)
    says = "31b at tp=2 does not fit inf2.8xlarge: weights alone are 28.6 GiB a core, 16.0 available. Would fit: tp=4 target="
    assert message.startswith(says)
    assert [finding.code for finding in refused.value.findings if finding.severity == "error"] == ["does_not_fit"]
    assert plan_of("model=31b", "tp=4", "target=inf2.24xlarge").budget.hbm_per_rank.total < 16 * 2**30
    longer = refusal("model=31b", "tp=4", "target=inf2.24xlarge", "shapes.kv_length=8192")
    assert re.search(r"17\.0 GiB a core, 16\.0 available \(weights 14\.30, KV 1\.72, .*Would fit: tp=8", longer)


def test_case_81_flags_are_part_of_a_graphs_identity() -> None:
    """A compiler flag changed the binary and not its cache key."""
    config = load_config(["model=12b", "tp=8"])
    sdks = []
    for sdk in config.sdks:
        apis = dict(sdk.stack.apis)
        for name, api in apis.items():
            flags = tuple("-O2" if flag == "-O1" else flag for flag in api.compiler_flags)
            apis[name] = replace(api, compiler_flags=flags)
        sdks.append(replace(sdk, stack=replace(sdk.stack, apis=apis)))
    plain, changed = build_plan(config), build_plan(replace(config, sdks=tuple(sdks)))
    assert not {graph.id for graph in plain.graphs} & {graph.id for graph in changed.graphs}
    assert plain.plan_id != changed.plan_id
    assert plain.placement_id == changed.placement_id


def test_case_81_so_is_the_compilers_version() -> None:
    config = load_config(["model=12b", "tp=8", "sdk=neuron-2.28"])
    (sdk,) = config.sdks
    newer = replace(sdk, pins={**sdk.pins, "neuronx-cc": "2.23.9999"})
    plain, changed = build_plan(config), build_plan(replace(config, sdks=(newer,)))
    assert not {graph.id for graph in plain.graphs} & {graph.id for graph in changed.graphs}


def test_case_84_e2b_traces_as_two_graphs_with_host_tables() -> None:
    """E2B did not trace with its lookups in the graph. By default there are two graphs, KV is state of both, and the
    per-layer rows come from the host; the table on the device is a warning that proposes the host."""
    plan = plan_of("model=e2b")
    assert plan.recipe == "trace"
    assert [graph.kind for graph in plan.graphs] == ["prefill", "decode"]
    assert plan.graphs[0].state == plan.graphs[1].state != ()
    for graph in plan.graphs:
        assert {port.name for port in graph.inputs} == {
            "inputs_embeds",
            "per_layer_inputs",
            "position_ids",
            "valid_length",
        }
    assert {"token_embedding", "per_layer_embedding"} < {part.what for part in plan.host}
    (warning,) = findings(plan_of("model=e2b", "recipe=trace", "offload=device"), "per_layer_table_in_graph")
    assert warning.severity == "warning"
    assert "offload=host" in warning.fix

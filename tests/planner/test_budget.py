"""Budgets and estimates: lines that add up, bytes counted again from the inventory and from rank files, contexts that are
tight, on-chip figures beside what was published, and the host."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest

import sharding
from gemma4cfg import Plan, build_plan, load_config
from gemma4cfg.architecture.inventory import inventory
from gemma4cfg.calibration.table import draft_of
from gemma4cfg.config.catalog import choices, every_choice
from gemma4cfg.config.schema import Config, Recipe
from gemma4cfg.config.target import Target
from gemma4cfg.findings import Finding
from gemma4cfg.plan.records import WorkingSet
from gemma4cfg.planner.draft import Draft
from tests.twins import read_directory, twin_plan, twin_values, write_twin

MODELS = ("e2b", "e4b", "12b", "26b-a4b", "31b")
GIB = 2**30


@functools.cache
def plan_of(*overrides: str) -> Plan:
    return build_plan(load_config(overrides))


@functools.cache
def drafted(*overrides: str) -> Draft:
    """A draft, whether it fits or not."""
    return draft_of(load_config(overrides))


PLANS = {
    "trace": ("model=e2b", "target=inf2.xlarge"),
    "trace-one-core": ("model=e2b", "target=inf2.xlarge", "recipe=trace", "recipe.placement=one_core"),
    "tp-alias": ("model=e4b", "tp=2", "recipe=tp_alias"),
    "tp-alias-host": ("model=e4b", "tp=2", "recipe=tp_alias", "recipe.prefill=host"),
    "experts": ("model=26b-a4b", "tp=8", "moe.partition=experts"),
    "rings": ("model=31b", "tp=8", "shapes=kv32k"),
    "trn2": ("model=31b", "tp=4", "target=trn2.3xlarge"),
    "vllm": ("model=e2b", "target=g5g.2xlarge", "shapes=kv16k"),
}

# --- device memory ---


@pytest.mark.parametrize("name", PLANS)
def test_lines_add_up_to_their_parts(name: str) -> None:
    budget = plan_of(*PLANS[name]).budget
    hbm = budget.hbm_per_rank
    sums = {
        part: sum(line.bytes for line in budget.lines if line.part == part) for part in ("weights", "kv", "scratch")
    }
    sums |= {part: sum(line.bytes for line in budget.lines if line.part == part) for part in ("code", "runtime")}
    assert sums == {part: getattr(hbm, part) for part in sums}
    assert hbm.total == sum(sums.values())
    assert all(line.source and line.bytes >= 0 for line in budget.lines)


@pytest.mark.parametrize(
    ("target", "gib", "runtime"),
    [("inf2.8xlarge", 16, 96_000_000), ("trn1.2xlarge", 16, 96_000_000), ("trn2.3xlarge", 24, 192_000_000)],
)
def test_limits_are_of_a_logical_core(target: str, gib: int, runtime: int) -> None:
    """96 MB for each physical core; two of trn2's act as one."""
    hbm = plan_of("model=e2b", f"target={target}").budget.hbm_per_rank
    assert (hbm.limit, hbm.runtime) == (gib * GIB, runtime)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("model", MODELS)
def test_weights_are_those_of_the_placements(model: str, tp: int) -> None:
    """Counted from the plan's JSON: what each rank's ranges hold, and its own tensors."""
    draft = drafted(f"model={model}", f"tp={tp}", "target=trn2.48xlarge", "recipe=model_builder")
    placed = 0
    for name, facts in inventory(load_config([f"model={model}"]).model).items():
        tensor = draft.division.placed[name]
        if tensor.placement is None:
            continue
        entry = tensor.placement.to_json()
        lengths = facts.shape
        if entry["dim"] is not None:
            held = sum(p["zeros"] if isinstance(p, dict) else p[1] - p[0] for p in entry["ranges"][0])
            lengths = (*facts.shape[: entry["dim"]], held, *facts.shape[entry["dim"] + 1 :])
        placed += prod(lengths)
    ids = sum(len(tensor.values[0]) * 4 for tensor in draft.division.feedforward.rank_tensors.values())
    assert draft.budget.hbm_per_rank.weights == placed * 2 + ids


@pytest.mark.parametrize(
    ("model", "tp", "more"),
    [
        ("e2b", 1, ()),
        ("e2b", 3, ()),
        ("e4b", 2, ("ple.partition=split",)),
        ("12b", 4, ()),
        ("31b", 8, ()),
        ("26b-a4b", 2, ("moe.partition=experts",)),
        ("26b-a4b", 4, ("attention.policy=replicate",)),
    ],
)
def test_weights_are_those_of_rank_files(model: str, tp: int, more: tuple[str, ...], tmp_path: Path) -> None:
    """A tiny twin cut by the resharder: every rank's file has exactly the budgeted bytes, the host's tables theirs."""
    plan = twin_plan(model, tp, "recipe=model_builder", *more)
    source = write_twin(tmp_path / "source", twin_values(plan))
    placements = {"tensors": plan["tensors"], "rank_tensors": plan["rank_tensors"]}
    sharding.reshard(placements, tp, str(source), str(tmp_path / "out"), plan["dtype"])
    sizes = {
        name: sum(len(data) for _, _, data in tensors.values())
        for name, tensors in read_directory(tmp_path / "out").items()
    }
    budget = plan["budget"]
    host = sizes.pop("host_tables.safetensors")
    assert set(sizes.values()) == {budget["hbm_per_rank"]["weights"] // plan["weight_copies"]}
    assert sum(sizes.values()) + host == budget["host"]["disk"]["shards"]
    assert host == sum(part["bytes"] for part in plan["host"])


@pytest.mark.parametrize(
    ("tp", "length", "linear", "ring"),
    [
        # 50 sliding layers of 16 heads x 256, 10 full of 4 x 512; K and V of 2 bytes
        (4, 32_768, 225_280 * 32_768, 50 * 4 * 1024 * 1024 + 10 * 2048 * 32_768),
        (4, 131_072, 225_280 * 131_072, 50 * 4 * 1024 * 1024 + 10 * 2048 * 131_072),
        (8, 32_768, 122_880 * 32_768, 50 * 2 * 1024 * 1024 + 10 * 2048 * 32_768),
        (8, 131_072, 122_880 * 131_072, 50 * 2 * 1024 * 1024 + 10 * 2048 * 131_072),
    ],
)
def test_ring_against_linear_of_31b(tp: int, length: int, linear: int, ring: int) -> None:
    """At tp=8 a full layer's four heads lie on two ranks each: a rank holds one, as at tp=4."""
    for layout, expected in (("linear", linear), ("ring", ring)):
        words = ("model=31b", f"tp={tp}", "target=trn2.48xlarge")
        draft = drafted(*words, f"shapes.kv_length={length}", f"shapes.kv_layout={layout}")
        assert draft.budget.hbm_per_rank.kv == expected
        (decision,) = [item for item in draft.decisions if item.id == "kv.layout"]
        assert f"linear {linear:,}, ring {ring:,} bytes a rank" in decision.detail


# --- maximum context ---


@functools.cache
def base(model: str) -> Config:
    return load_config([f"model={model}", "shapes=kv512"])


def with_shapes(config: Config, recipe: Recipe | None = None, **shapes: object) -> Config:
    settings = replace(config.settings, shapes=replace(config.settings.shapes, **shapes))  # type: ignore[arg-type]
    return replace(config, settings=settings, recipes=(recipe,) if recipe else config.recipes)


@pytest.mark.parametrize("layout", ["linear", "ring"])
@pytest.mark.parametrize("target", choices("target"))
@pytest.mark.parametrize("model", MODELS)
def test_one_more_bucket_does_not_fit(model: str, target: str, layout: str) -> None:
    """At the smallest degree that fits at all: planned anew at the maximum it fits, a bucket further it does not."""
    (machine,) = [known for known in every_choice(Target, "target") if known.name == target]
    start = replace(with_shapes(base(model), kv_layout=layout, prompt_chunking=True), targets=(machine,))
    for tp in (1, 2, 4, 8, 16, 32):
        if tp > machine.cores:
            break
        config = replace(start, settings=replace(start.settings, tp=tp))
        draft = draft_of(config)
        context = draft.budget.maximum_context
        if not draft.fits:
            assert context.tokens < config.settings.shapes.kv_length
            continue
        assert context.step == (16 if machine.family == "g5g" else 128) and context.tokens % context.step == 0
        at = draft_of(with_shapes(config, draft.recipe, kv_length=context.tokens))
        assert at.fits
        assert at.budget.maximum_context == context
        if context.limited_by == "positions":
            assert context.tokens == config.model.max_positions
        else:
            assert not draft_of(with_shapes(config, draft.recipe, kv_length=context.tokens + context.step)).fits
        return


@pytest.mark.parametrize(("kv_length", "tokens"), [(262_144, 262_144), (1_234, 262_000)])
def test_the_planned_length_is_no_more_than_the_longest(kv_length: int, tokens: int) -> None:
    """Where it is no multiple of the bucket: all of a model's positions, or where the next bucket is out of reach."""
    words = ("model=31b", "tp=8", "target=inf2.24xlarge", "shapes.prefill_buckets=[500]", "shapes.prompt_chunking=true")
    context = plan_of(*words, "shapes.kv_layout=ring", f"shapes.kv_length={kv_length}").budget.maximum_context
    assert (context.tokens, context.limited_by) == (tokens, "positions")


def test_the_loop_above_meets_every_model() -> None:
    """On inf2.48xlarge each of them fits somewhere."""
    for model in MODELS:
        assert plan_of(f"model={model}", "tp=4", "target=inf2.48xlarge", "shapes=kv512").budget.maximum_context.tokens


# --- on-chip working sets ---


def sets_of(plan: Plan, what: str, graph: str) -> list[WorkingSet]:
    return [row for row in plan.budget.on_chip if row.what == what and row.graph == graph]


def findings(plan: Plan, code: str) -> list[Finding]:
    return [finding for finding in plan.findings if finding.code == code]


def test_on_chip_figures_of_12b() -> None:
    """12B at tp=2 with a bucket of 64 and 256 positions, in bfloat16, against 196,608 bytes."""
    plan = plan_of("experiment=12b-tp2-model-builder-256-64")
    for row in plan.budget.on_chip:
        assert row.limit == 196_608
        assert row.fits == (row.bytes <= 196_608)
        assert row.psum_banks is not None and row.psum_banks <= 8
    assert {row.bytes for row in sets_of(plan, "eager attention", "prefill_64")} == {256 * 4}
    assert {row.bytes for row in sets_of(plan, "fused attention", "prefill_64")} == {(256 + 256) * 6, (256 + 512) * 6}
    published = {row.layers: row.published for row in sets_of(plan, "fused attention", "decode")}
    assert published == {
        "sliding_attention, mlp 7680": "fused_attention_window_1024",
        "full_attention, mlp 7680": None,
    }
    # 3840 / 128 = 30 rows of hidden, 7680 / 128 = 60 of gate and of up
    assert {row.bytes for row in sets_of(plan, "mlp tile", "prefill_64")} == {
        (30 * 64 + 2 * 60 * 64 + 2 * 30 * 128) * 2
    }
    (every,) = sets_of(plan, "softcap, every row", "prefill_64")
    assert (every.bytes, every.fits, every.published) == (524_288, False, "softcap_prefill_all_rows")
    (last,) = sets_of(plan, "softcap, last row", "prefill_64")
    assert (last.bytes, last.fits) == (262_144 * 4 // 128, True)
    (row,) = sets_of(plan, "logits, a row a partition", "decode")
    assert (row.bytes, row.fits) == (524_288, False)


@pytest.mark.parametrize("code", ["fused_attention_window_1024_disagrees", "softcap_prefill_all_rows_disagrees"])
def test_arithmetic_against_a_published_failure_is_said(code: str) -> None:
    """Both failures decide on 12B's shapes under their compiler, and on no other compiler are they spoken of."""
    (finding,) = findings(plan_of("model=12b", "tp=2", "target=inf2.8xlarge"), code)
    assert finding.severity == "info"
    assert "by arithmetic" in finding.message and "the published failure decides" in finding.message
    assert findings(plan_of("model=12b", "tp=2", "target=inf2.8xlarge", "sdk=neuron-2.31"), code) == []


@pytest.mark.parametrize(
    "overrides",
    [
        ("model=e2b", "target=inf2.xlarge"),
        ("model=12b", "tp=2", "target=inf2.8xlarge", "sdk=neuron-2.31"),
        ("model=12b", "tp=4", "target=trn2.3xlarge", "sdk=neuron-2.31"),
    ],
)
def test_a_failure_is_on_no_working_set_of_another_shape_or_compiler(overrides: tuple[str, ...]) -> None:
    assert {row.published for row in plan_of(*overrides).budget.on_chip} == {None}


def test_a_window_alone_is_on_the_working_sets_of_31b() -> None:
    """The cap failed on 12B's shapes only."""
    rows = plan_of("model=31b", "tp=8", "target=inf2.24xlarge").budget.on_chip
    assert {row.published for row in rows} == {None, "fused_attention_window_1024"}
    assert all(row.layers.startswith("sliding") for row in rows if row.published)


def test_both_failures_can_be_overridden() -> None:
    """Each is warned of, and nothing is advised that is set already."""
    choices = {"attention.implementation=sdpa", "offload.softcap=device"}
    plan = plan_of("model=12b", "tp=2", "target=inf2.8xlarge", *choices)
    assert {layer.attention.implementation for layer in plan.layers} == {"sdpa"}
    assert "softcap" not in {part.what for part in plan.host}
    warned = {finding.code for finding in plan.findings if finding.severity == "warning"}
    assert {"fused_attention_window_1024", "softcap_prefill_all_rows"} <= warned
    assert not [finding for finding in plan.findings if any(choice in finding.fix for choice in choices)]


def test_whatever_overflows_of_our_own_graphs_is_said() -> None:
    """32 streams: 32 x 262,144 x 4 / 128 of the cap, and 512 rows of E2B's wide MLP; the cap on the host is no part of it."""
    words = ("model=e2b", "target=inf2.xlarge", "shapes=kv256", "shapes.batch=32")
    (finding,) = findings(plan_of(*words, "offload.softcap=device"), "working_set_overflows")
    assert "softcap, last row: 262,144 of 196,608" in finding.message and "mlp tile: 215,040" in finding.message
    assert "offload.softcap=host" in finding.fix
    (finding,) = findings(plan_of(*words), "working_set_overflows")
    assert "softcap" not in finding.message + finding.fix


def test_arithmetic_that_nobody_published_is_said() -> None:
    """32,768 keys of 6 bytes are over 196,608; E2B takes fused attention, and no report says that it fails."""
    (finding,) = findings(plan_of("model=e2b", "tp=2", "shapes=kv32k", "target=inf2.xlarge"), "working_set_overflows")
    assert f"{(32_768 + 512) * 6:,} of 196,608" in finding.message
    assert findings(plan_of("model=e2b", "tp=2", "target=inf2.xlarge"), "working_set_overflows") == []


def test_shared_memory_of_the_gpu() -> None:
    """The published 98,304 bytes at head 512, and the tile of 16 that fits; heads of 256 keep theirs."""
    rows = {row.what: (row.bytes, row.fits) for row in plan_of(*PLANS["vllm"]).budget.on_chip}
    assert rows == {
        "attention kernel, head 256, tile 32": (49_152, True),
        "attention kernel, head 512, tile 32": (98_304, False),
        "attention kernel, head 512, tile 16": (49_152, True),
    }


# --- host and disk ---


@pytest.mark.parametrize(
    ("target", "shards", "compiles", "loads", "serves", "where"),
    [
        ("inf2.xlarge", True, False, False, True, "inf2.8xlarge"),
        ("inf2.8xlarge", True, True, True, True, "inf2.8xlarge"),
        ("inf2.48xlarge", True, True, True, True, "inf2.8xlarge"),
        ("trn1.2xlarge", True, True, True, True, "trn1.2xlarge"),
    ],
)
def test_what_a_host_can_do(target: str, shards: bool, compiles: bool, loads: bool, serves: bool, where: str) -> None:
    """12B over two ranks: 24 GB to load, a rank's 12 GB and two compilers to compile."""
    plan = plan_of("model=12b", "tp=2", f"target={target}")
    can = plan.budget.host.can
    assert (can.shard, can.compile, can.load, can.serve) == (shards, compiles, loads, serves)
    assert plan.budget.host.compile_on == where
    warned = {finding.code for finding in plan.findings} & {"host_compile", "host_swap"}
    assert warned == ({"host_compile"} if not compiles else set()) | ({"host_swap"} if not loads else set())


def test_swap_that_is_asked_for_is_enough() -> None:
    """With the GiB that the findings name, both go away."""
    short = plan_of("model=12b", "tp=2", "target=inf2.xlarge").budget.host
    need = -(-max(short.swap, short.compile_swap) // GIB)
    enough = plan_of("model=12b", "tp=2", "target=inf2.xlarge", f"swap_gib={need}")
    can = enough.budget.host.can
    assert can.compile and can.load
    assert not {"host_compile", "host_swap"} & {finding.code for finding in enough.findings}
    less = plan_of("model=12b", "tp=2", "target=inf2.xlarge", f"swap_gib={need - 1}").budget.host.can
    assert not (less.compile and less.load)


def test_compile_peaks_of_the_published_31b_port() -> None:
    """One rank after a float32 checkpoint (182 GB published), in bfloat16 (83), all eight (about 300)."""
    peaks = plan_of("experiment=31b-tp8-model-builder-256-64").budget.host.compile
    elements, rank, compiler = 30_697_345_340, 13_418_406_520, 7_500_000_000
    assert peaks is not None
    assert peaks.one_rank_streamed == rank + 2 * compiler
    assert peaks.one_rank_bfloat16 == 2 * elements + rank + compiler == pytest.approx(83e9, rel=0.01)
    assert peaks.one_rank_float32 == 6 * elements == pytest.approx(182e9, rel=0.02)
    assert peaks.all_ranks_bfloat16 == 8 * (2 * rank + compiler)
    assert peaks.all_ranks_float32 == 8 * (4 * elements + 4 * rank + compiler), "each loads the whole model"


@pytest.mark.parametrize(
    ("model", "published"),
    [("e2b", 10_246_357_958), ("26b-a4b", 51_611_872_412), ("31b", 62_546_177_752)],
)
def test_disk_of_a_published_checkpoint(model: str, published: int) -> None:
    """The tensors of the published files, towers and unread k/v included: the index's total, or the file less its header."""
    assert plan_of(f"model={model}", "tp=8").budget.host.disk.checkpoint == published


@pytest.mark.parametrize(
    ("overrides", "programs"),
    [
        (("model=e2b", "target=inf2.xlarge", "recipe=trace"), 2),
        (("model=e4b", "tp=2", "recipe=tp_alias"), 4),
        (("model=e4b", "tp=2", "recipe=tp_alias", "recipe.prefill=host"), 2),
        (("model=e4b", "tp=2", "recipe=model_builder"), 0),
    ],
)
def test_disk_of_artifacts(overrides: tuple[str, ...], programs: int) -> None:
    """Programs of trace and parallel_model_trace carry a rank's weights each; ModelBuilder's carries none."""
    plan = plan_of(*overrides)
    code = sum(graph.code for graph in plan.budget.graphs)
    weights = plan.budget.hbm_per_rank.weights // plan.weight_copies
    ranks = plan.tp if programs else 1
    assert plan.budget.host.disk.artifacts == programs * weights + ranks * code


def test_gpu_host() -> None:
    """8 GiB do not map E2B's file without swap; none of it compiles graphs, and the stack is built on 32 GiB."""
    small, usual = (plan_of("model=e2b", f"target=g5g.{size}").budget.host for size in ("xlarge", "2xlarge"))
    assert (small.can.load, usual.can.load) == (False, True)
    assert small.swap > 0 == usual.swap
    assert small.compile is usual.compile is None
    assert {small.compile_on, usual.compile_on} == {"g5g.4xlarge"}
    assert (small.compile_swap, usual.compile_swap) == (24 * GIB, 16 * GIB), (
        "up to the 32 GiB of the host that built it"
    )
    assert usual.load_peak == 5_104_298_467 * 2, "every parameter, towers too"


@pytest.mark.parametrize(
    ("target", "swap", "builds"), [("xlarge", 24, True), ("xlarge", 23, False), ("4xlarge", 0, True)]
)
def test_a_host_too_small_to_build_is_said(target: str, swap: int, builds: bool) -> None:
    plan = plan_of("model=e2b", f"target=g5g.{target}", f"swap_gib={swap}")
    assert plan.budget.host.can.compile == builds
    assert [finding.fix for finding in findings(plan, "host_compile")] == (
        [] if builds else ["compile on g5g.4xlarge, or 24.0 GiB of swap (swap_gib=24 to say so)"]
    )
    (install, *_) = plan.calls
    assert install.args["needs"]["memory"].startswith("32 GiB with swap")


def test_a_machine_with_a_spot_price_has_a_price() -> None:
    (decision,) = [item for item in plan_of(*PLANS["vllm"]).decisions if item.id == "target"]
    assert decision.detail.endswith(", 0.369 $/h spot, none on demand known (2026-08-19)")


# --- time and cost ---


@pytest.mark.parametrize("name", PLANS)
def test_ranges_hold_their_floors(name: str) -> None:
    estimate = plan_of(*PLANS[name]).estimate
    batch = plan_of(*PLANS[name]).shapes.batch
    assert 0 < estimate.decode_tokens_per_s.low < estimate.decode_tokens_per_s.high
    assert estimate.decode_tokens_per_s.high <= 1e3 * batch / estimate.floors.decode_ms
    assert estimate.prefill_ms.low >= estimate.floors.prefill_ms * (name != "tp-alias-host")
    assert list(estimate.prefill_ms_by_bucket.values())[-1] == estimate.prefill_ms
    assert estimate.basis


def test_floors_are_the_chips_limits() -> None:
    """31B at tp=4 on trn2: bytes over 725 GB/s and 121 collectives; 512 rows over 166.75 TFLOPS."""
    plan = plan_of("model=31b", "tp=4", "target=trn2.3xlarge", "shapes.kv_length=512", "shapes.prefill_buckets=[512]")
    weights, kv, link = plan.budget.hbm_per_rank.weights, plan.budget.hbm_per_rank.kv, 320e9
    ring = 2 * 3 * 120 * 5376 * 2 // 4 + 3 * 262_144 * 2 // 4
    decode = (weights + kv) / 725e9 + 121 * 20e-6 + ring / link
    assert plan.estimate.floors.decode_ms == pytest.approx(1e3 * decode, rel=1e-3)
    head = 262_144 * 5376 // 4
    scores = 4 * 512 * 512 * (50 * 8 * 256 + 10 * 8 * 512)
    operations = 2 * (weights // 2 - head) * 512 + 2 * head + scores
    ring = 2 * 3 * 120 * 512 * 5376 * 2 // 4 + 3 * 262_144 * 2 // 4
    prefill = operations / 166.75e12 + 121 * 20e-6 + ring / link
    assert plan.estimate.floors.prefill_ms == pytest.approx(1e3 * prefill, rel=1e-3)


def test_two_gpus_pay_for_what_passes_between_them() -> None:
    """Over PCIe, slower than their memory: 4,096 rows of 1,536 in float16, all-reduced in every layer."""
    words = ("model=e2b", "target=g5g.16xlarge", "shapes.kv_length=4096")
    plan, alone = plan_of(*words, "tp=2"), plan_of(*words)
    reduces = int(plan.estimate.basis.split(" collectives")[0].split()[-1])
    passed = 2 * reduces * 4096 * 1536 * 2 // 2
    assert reduces >= 70
    between = 1e3 * (passed / 15.75e9 + reduces * 20e-6)
    assert plan.estimate.floors.prefill_ms == pytest.approx(alone.estimate.floors.prefill_ms / 2 + between, rel=0.05)


def test_borrowed_keys_are_read_again() -> None:
    """E2B keeps 15 slots and 35 layers read them: 28 sliding of 256, 7 full of 512."""
    plan = plan_of("model=e2b", "target=inf2.xlarge")
    step = 2 * plan.estimate.bytes_per_token_per_rank.weights // 2 + (28 * 1024 + 7 * 2048) * 2048
    assert f"decode: {step:,} bytes a step" in plan.estimate.basis


def test_cost_is_price_over_speed() -> None:
    estimate = plan_of("model=e2b", "target=inf2.xlarge").estimate
    costs, rate = estimate.usd_per_million_tokens, estimate.decode_tokens_per_s
    assert costs.on_demand and costs.spot
    assert costs.on_demand.low == pytest.approx(0.7582 / 3600 / rate.high * 1e6, rel=1e-5)
    assert costs.spot.high == pytest.approx(0.1177 / 3600 / rate.low * 1e6, rel=1e-5)
    unknown = plan_of("model=31b", "tp=8").estimate.usd_per_million_tokens
    assert (unknown.on_demand, unknown.spot) == (None, None)


@pytest.mark.parametrize("shapes", ["kv128", "kv8k", "kv16k", "kv32k"])
def test_equal_commands_of_vllm_are_equal_plans(shapes: str) -> None:
    """vLLM is told a length and how many streams; what else a group of shapes says of graphs is nothing to it."""
    words = ("model=e2b", "target=g5g.2xlarge", "shapes.kv_length=131072")
    usual, plan = plan_of(*words), plan_of(*words, f"shapes={shapes}")
    assert (plan.plan_id, plan.estimate, plan.budget) == (usual.plan_id, usual.estimate, usual.budget)
    reasons = {decision.id: decision.reason for decision in plan.decisions}
    assert reasons["kv.layout"] == reasons["prompt_chunking"] == "stack_of_target"


def test_a_longer_context_does_not_slow_a_prompt_of_vllm() -> None:
    """Its keys are the prompt's own; a graph is padded to its whole KV."""
    words = ("model=e2b", "target=g5g.2xlarge")
    served = [plan_of(*words, f"shapes.kv_length={length}").estimate for length in (4096, 131072)]
    assert served[0].prefill_ms == served[1].prefill_ms
    assert served[0].floors.prefill_ms == served[1].floors.prefill_ms
    graphs = [plan_of("model=e2b", "target=inf2.xlarge", f"shapes.kv_length={n}").estimate for n in (4096, 131072)]
    assert graphs[0].floors.prefill_ms < graphs[1].floors.prefill_ms


def test_nothing_is_compiled_ahead_by_vllm() -> None:
    assert plan_of(*PLANS["vllm"]).estimate.compile_s is None
    compiled = plan_of(*PLANS["rings"]).estimate.compile_s
    assert compiled and 0 < compiled.low < compiled.high <= 2 * compiled.low


# --- options ---


@pytest.mark.parametrize(
    ("overrides", "choice", "options"),
    [
        (("model=12b", "tp=8"), "attention.implementation", {"eager": True, "sdpa": False}),
        (("model=e2b", "tp=8"), "attention.implementation", {"eager": False, "sdpa": True}),
        (("model=26b-a4b", "tp=8"), "moe.partition", {"intermediate": True, "experts": False}),
        (("model=26b-a4b", "tp=12"), "moe.partition", {"intermediate": True}),
        (("model=e2b", "target=inf2.xlarge"), "recipe.placement", {"core_each": True, "one_core": False}),
        (("model=e2b", "tp=8"), "recipe.placement", {}),
        (("model=e2b", "tp=8"), "moe.partition", {}),
        (PLANS["vllm"], "attention.implementation", {}),
    ],
)
def test_options_with_figures(overrides: tuple[str, ...], choice: str, options: dict[str, bool]) -> None:
    found = [option for option in plan_of(*overrides).estimate.alternatives if option.choice == choice]
    assert {option.option: option.taken for option in found} == options
    assert all(option.figures for option in found)


@pytest.mark.parametrize("placement", ["core_each", "one_core"])
def test_bytes_of_a_placement_are_the_budgets(placement: str) -> None:
    """What a plan says of the other placement, the other plan says of itself."""
    plans = {
        option: plan_of("model=e2b", "target=inf2.xlarge", "recipe=trace", f"recipe.placement={option}")
        for option in ("core_each", "one_core")
    }
    told = {
        option.option: option.figures["bytes_on_core"]
        for option in plans[placement].estimate.alternatives
        if option.choice == "recipe.placement"
    }
    assert told == {option: plan.budget.hbm_per_rank.total for option, plan in plans.items()}


def test_figures_of_the_experts() -> None:
    """704 over 8 ranks is 88 of the array's 128 rows; whole it is 5.5 passes of six."""
    figures = {
        option.option: option.figures["array_rows_filled"]
        for option in plan_of("model=26b-a4b", "tp=8").estimate.alternatives
        if option.choice == "moe.partition"
    }
    assert figures == {"intermediate": pytest.approx(88 / 128), "experts": pytest.approx(704 / 768, rel=1e-5)}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_reads_back(name: str) -> None:
    plan = plan_of(*PLANS[name])
    again = Plan.from_json(json.loads(json.dumps(plan.to_json())))
    assert (again.budget, again.estimate) == (plan.budget, plan.estimate)

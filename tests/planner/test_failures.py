"""Every published failure that ships: it fires on its versions and shapes, and not outside either."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import pytest

from gemma4cfg.calibration.table import draft_of
from gemma4cfg.config.compose import load_config
from gemma4cfg.config.schema import Config
from gemma4cfg.config.sdk import Failure
from gemma4cfg.planner.draft import Draft


@dataclass(frozen=True)
class Case:
    """``shapes`` fire, ``others`` do not, both on ``version`` of the failure's package. ``outside``: versions on which nothing
    fires; none where every version is in range."""

    shapes: str
    others: tuple[str, ...]
    version: str
    outside: tuple[str, ...] = ()


B12 = "model=12b tp=2 target=inf2.8xlarge"
E2B, SERVED = "model=e2b target=inf2.8xlarge", "model=e2b target=g5g.2xlarge"
ANY = "1.0"
CASES = {
    "fused_attention_window_1024": Case(B12, ("model=e2b target=inf2.8xlarge",), "2.23.6484", ("2.22.9", "2.24")),
    "softcap_prefill_all_rows": Case(B12, ("model=31b tp=8 target=inf2.24xlarge",), "2.23.6484", ("2.22.9", "2.24")),
    "per_layer_table_in_graph": Case(
        "model=e2b target=inf2.8xlarge offload=device",
        ("model=e2b target=inf2.8xlarge", "model=12b tp=2 target=inf2.8xlarge offload=device"),
        ANY,
    ),
    "per_layer_prefill_2_24": Case("model=e2b target=inf2.8xlarge", (B12,), "2.24.5133", ("2.23.6484", "2.25.3371")),
    "decode_past_512": Case(
        "model=31b tp=4 target=trn2.3xlarge shapes=kv512 shapes.kv_length=513",
        ("model=31b tp=4 target=trn2.3xlarge shapes=kv512", "model=12b tp=4 target=trn2.3xlarge"),
        "2.24.8799",
        ("2.23.6484", "2.26.6360"),
    ),
    "instruction_count": Case(
        "model=31b tp=4 target=trn2.48xlarge shapes=kv8k shapes.prefill_buckets=[8192]",
        (
            "model=31b tp=4 target=trn2.48xlarge shapes=kv8k shapes.prefill_buckets=[4096]",
            "model=12b tp=4 target=trn2.48xlarge shapes=kv8k shapes.prefill_buckets=[8192]",
        ),
        ANY,
    ),
    "prefill_16384_host_memory": Case(
        "model=31b tp=4 target=trn2.3xlarge shapes=kv16k shapes.prefill_buckets=[16384]",
        (
            "model=31b tp=4 target=trn2.3xlarge shapes=kv16k shapes.prefill_buckets=[8192]",
            "model=31b tp=4 target=trn2.48xlarge shapes=kv16k shapes.prefill_buckets=[16384]",
        ),
        ANY,
    ),
    "compile_swap_on_128_gib": Case(
        B12,
        (
            f"{B12} swap_gib=52",
            "model=12b tp=2 target=inf2.24xlarge",
            "model=e2b tp=2 target=inf2.8xlarge",
            "model=e4b target=inf2.8xlarge recipe=trace",
            "model=31b tp=4 target=trn2.3xlarge",
        ),
        ANY,
    ),
    "top_k_on_device": Case(
        "model=e2b target=inf2.8xlarge offload.sampling=device", ("model=e2b target=inf2.8xlarge",), ANY
    ),
    "moe_kernel_verify": Case(
        "model=26b-a4b tp=4 target=trn2.3xlarge",
        ("model=26b-a4b tp=8 target=inf2.24xlarge", "model=31b tp=4 target=trn2.3xlarge"),
        "2.26.6360",
        ("2.24.8799",),
    ),
    "moe_all_experts_computed": Case(
        "model=26b-a4b tp=8 target=inf2.24xlarge", ("model=26b-a4b tp=4 target=trn2.3xlarge", B12), ANY
    ),
    "decode_gap_inf2": Case(B12, ("model=12b tp=2 target=trn2.3xlarge",), "2.26.6360", ("2.25.3371",)),
    "two_graphs_one_core": Case(
        "model=e2b target=inf2.8xlarge recipe=trace recipe.placement=one_core",
        ("model=e2b target=inf2.8xlarge recipe=trace", "model=e2b target=inf2.8xlarge recipe=model_builder"),
        ANY,
    ),
    "ring_index_out_of_bounds": Case(f"{B12} shapes.kv_layout=ring", (B12,), ANY),
    "all_ranks_compiled": Case(
        "model=31b tp=8 target=inf2.24xlarge recipe=tp_alias",
        ("model=31b tp=4 target=inf2.24xlarge recipe=tp_alias", "model=31b tp=8 target=inf2.24xlarge"),
        ANY,
    ),
    "kv_heads_converted_to_mha": Case(
        B12, ("model=12b tp=8 target=inf2.24xlarge", "model=e2b tp=2 target=inf2.8xlarge"), ANY
    ),
    "rank_baked_in": Case(
        "model=26b-a4b tp=8 target=inf2.24xlarge moe.partition=experts",
        ("model=26b-a4b tp=8 target=inf2.24xlarge",),
        ANY,
    ),
    "scratchpad_pages": Case(B12, ("model=12b tp=2 target=trn2.3xlarge",), "2.30.51", ("2.33.10",)),
    "outputs_of_rank_0": Case(B12, (E2B, "model=e2b target=inf2.8xlarge recipe=model_builder"), ANY),
    "v1_deletes_workdir": Case(f"{B12} recipe=model_builder recipe.api=v1", (f"{B12} recipe=model_builder",), ANY),
    "v2_compiles_once": Case(B12, (f"{B12} recipe=model_builder recipe.api=v1",), ANY),
    "v2_layout_transformer_lnc_1": Case("model=12b tp=2 target=trn2.3xlarge", (B12,), ANY),
    "transformers_fx_removed": Case(B12, ("model=e2b target=inf2.8xlarge",), "5.13.0", ("4.57",)),
    "bucketed_parallel_model_trace": Case(
        f"{B12} recipe=tp_alias shapes.prefill_buckets=[256,512]",
        (
            f"{B12} recipe=tp_alias",
            f"{B12} recipe=tp_alias recipe.prefill=host shapes.prefill_buckets=[256,512]",
            f"{B12} shapes.prefill_buckets=[256,512]",
            "model=e2b tp=2 target=inf2.8xlarge recipe=tp_alias shapes.prefill_buckets=[256,512] dtype=float32",
        ),
        ANY,
    ),
    "parallel_layers_float32": Case(
        B12, ("model=e2b target=inf2.8xlarge", "model=e2b target=inf2.8xlarge recipe=model_builder"), ANY
    ),
    "gelu_shim": Case("model=e2b target=inf2.8xlarge", (B12,), ANY),
    "state_swapped_on_first_call": Case(f"{B12} recipe=tp_alias", (B12,), ANY),
    "v1_reload_needs_import_and_weights": Case(f"{B12} recipe=model_builder recipe.api=v1", (B12,), ANY),
    "float32_weights": Case("model=e2b target=inf2.8xlarge dtype=float32", ("model=e2b target=inf2.8xlarge",), ANY),
    "shared_memory_head_512": Case(
        "model=e2b target=g5g.2xlarge",
        ("model=e2b target=g5g.2xlarge model.attention.full_attention.head_dim=256",),
        ANY,
    ),
    "ambiguous_head_dim": Case(SERVED, (E2B,), "0.26.0", ("0.27.2rc0", "0.28")),
    "stock_image_lacks_sm75": Case(SERVED, (E2B,), "0.27.2rc0", ("0.26.0", "0.28")),
    "torch_not_pinned": Case(SERVED, (E2B,), "2.12.0", ("2.11", "2.13")),
    "saturates_at_8": Case(
        "model=e2b target=g5g.2xlarge shapes.batch=9", ("model=e2b target=g5g.2xlarge shapes.batch=8",), ANY
    ),
    "two_gpus_unmeasured": Case("model=e2b tp=2 target=g5g.16xlarge", ("model=e2b target=g5g.16xlarge",), ANY),
    "completions_without_template": Case(SERVED, (E2B,), ANY),
    "rust_frontend_skipped": Case(SERVED, (E2B,), ANY),
}


@functools.cache
def config_of(words: str) -> Config:
    return load_config(words.split())


def failures() -> dict[str, Failure]:
    """Those of every stack: a release's stack holds all of its own."""
    return {name: failure for sdk in config_of("model=e2b").sdks for name, failure in sdk.stack.failures.items()}


def drafted(words: str, name: str, version: str) -> Draft:
    """On the machine's own release, with another version of the package that the failure is of."""
    config, package = config_of(words), failures()[name].package
    sdks = tuple(replace(sdk, pins={**sdk.pins, package: version}) for sdk in config.sdks)
    return draft_of(replace(config, sdks=sdks))


def fires(draft: Draft, name: str) -> bool:
    """A finding; or the decision that the failure turns, with its words as the reason."""
    if any(finding.code == name for finding in draft.findings):
        return True
    what = failures()[name].what
    return any(what in decision.detail and decision.reason == "published_failure" for decision in draft.decisions)


@pytest.mark.parametrize("recipe", ["tp_alias", "model_builder"])
@pytest.mark.parametrize("model", ["e4b", "12b", "model=12b model.hidden_size=4096"])
def test_the_swap_that_builds_needed_is_said(model: str, recipe: str) -> None:
    """Of the models published, and of one as large under another name."""
    words = f"{'' if '=' in model else 'model='}{model} tp=2 target=inf2.8xlarge recipe={recipe}"
    assert fires(drafted(words, "compile_swap_on_128_gib", ANY), "compile_swap_on_128_gib")


def test_every_failure_has_a_case() -> None:
    assert set(CASES) == set(failures())


@pytest.mark.parametrize("name", CASES)
def test_it_fires_on_its_shapes_and_version(name: str) -> None:
    assert fires(drafted(CASES[name].shapes, name, CASES[name].version), name)


@pytest.mark.parametrize("name", ["softcap_prefill_all_rows", "decode_past_512", "prefill_16384_host_memory"])
def test_a_variant_of_the_same_shapes_keeps_them(name: str) -> None:
    """Another model by name, of the sizes that failed."""
    draft = drafted(
        f"{CASES[name].shapes} model.attention.full_attention.rope.theta=500000.0", name, CASES[name].version
    )
    assert draft.speed.architecture.name == "custom"
    assert fires(draft, name)


@pytest.mark.parametrize("name", CASES)
def test_it_does_not_on_other_shapes(name: str) -> None:
    assert CASES[name].others
    for words in CASES[name].others:
        assert not fires(drafted(words, name, CASES[name].version), name), words


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.outside])
def test_it_does_not_outside_its_versions(name: str) -> None:
    for version in CASES[name].outside:
        assert not fires(drafted(CASES[name].shapes, name, version), name), version


def test_versions_are_tested_where_there_are_any() -> None:
    bounded = {name for name, known in failures().items() if known.versions.minimum or known.versions.below}
    assert bounded == {name for name, case in CASES.items() if case.outside}

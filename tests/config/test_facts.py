"""The facts shipped under ``conf/``: every file decodes, and the figures are the published ones, written here again."""

from __future__ import annotations

from typing import get_args

import pytest

from gemma4cfg.config.catalog import choices, conf_directory, decode_choice, read_choice
from gemma4cfg.config.sdk import Effect, Failure, Sdk, VersionRange, version_parts
from gemma4cfg.config.target import Chip, Family, Target
from gemma4cfg.decode import decode
from gemma4cfg.planner.failures import LAYER_FACTS, PLAN_FACTS

GIB = 2**30

# name: family, chips, logical cores, vCPUs, host GiB, device GiB, device GiB of a core
TARGETS = {
    "inf2.xlarge": ("inf2", 1, 2, 4, 16, 32, 16),
    "inf2.8xlarge": ("inf2", 1, 2, 32, 128, 32, 16),
    "inf2.24xlarge": ("inf2", 6, 12, 96, 384, 192, 16),
    "inf2.48xlarge": ("inf2", 12, 24, 192, 768, 384, 16),
    "trn1.2xlarge": ("trn1", 1, 2, 8, 32, 32, 16),
    "trn1.32xlarge": ("trn1", 16, 32, 128, 512, 512, 16),
    "trn1n.32xlarge": ("trn1", 16, 32, 128, 512, 512, 16),
    "trn2.3xlarge": ("trn2", 1, 4, 12, 128, 96, 24),
    "trn2.48xlarge": ("trn2", 16, 64, 192, 2048, 1536, 24),
    "g5g.xlarge": ("g5g", 1, 1, 4, 8, 15, 15),
    "g5g.2xlarge": ("g5g", 1, 1, 8, 16, 15, 15),
    "g5g.4xlarge": ("g5g", 1, 1, 16, 32, 15, 15),
    "g5g.8xlarge": ("g5g", 1, 1, 32, 64, 15, 15),
    "g5g.16xlarge": ("g5g", 2, 2, 64, 128, 30, 15),
    "g5g.metal": ("g5g", 2, 2, 64, 128, 30, 15),
}

# name: on demand and spot dollars an hour, where published with a date
PRICES = {
    "inf2.xlarge": (0.7582, 0.1177),
    "inf2.8xlarge": (1.9679, 0.3872),
    "g5g.xlarge": (None, 0.128),
    "g5g.2xlarge": (None, 0.369),
}

# compiler and torch package of each Neuron release, from AWS's manifest
NEURON_RELEASES = {
    "neuron-2.28": {
        "neuronx-cc": "2.23.6484",
        "torch-neuronx": "2.8.0.2.12.22436",
        "libneuronxla": "2.2.15515",
        "neuronx-distributed": "0.17.26814",
        "neuronx-distributed-inference": "0.8.16251",
        "aws-neuronx-runtime-lib": "2.30.51",
    },
    "neuron-2.31": {
        "neuronx-cc": "2.26.6360",
        "torch-neuronx": "2.9.0.2.15.32035",
        "libneuronxla": "2.2.17544",
        "neuronx-distributed": "0.19.28492",
        "neuronx-distributed-inference": "0.10.18399",
        "aws-neuronx-runtime-lib": "2.33.10",
    },
}

# failure: the shipped releases it speaks of; the others are kept for pins a user sets
FAILURES_OF_RELEASES = {
    "fused_attention_window_1024": {"neuron-2.28"},
    "softcap_prefill_all_rows": {"neuron-2.28"},
    "per_layer_table_in_graph": {"neuron-2.28", "neuron-2.31"},
    "per_layer_prefill_2_24": set(),
    "decode_past_512": set(),
    "decode_gap_inf2": {"neuron-2.31"},
    "moe_kernel_verify": {"neuron-2.31"},
    "transformers_fx_removed": {"neuron-2.28", "neuron-2.31"},
    "bucketed_parallel_model_trace": {"neuron-2.28", "neuron-2.31"},
    "shared_memory_head_512": {"vllm-0.27.2rc0"},
    "ambiguous_head_dim": set(),
}


def load_target(name: str) -> Target:
    return decode_choice(Target, "target", read_choice("target", name))


def load_sdk(name: str) -> Sdk:
    return decode_choice(Sdk, "sdk", read_choice("sdk", name))


def load_failures() -> dict[str, Failure]:
    return {
        f"{group}.{key}": decode(Failure, data, key)
        for group in choices("failures")
        for key, data in read_choice("failures", group).items()
    }


FAILURES = load_failures()
SDKS = {name: load_sdk(name) for name in choices("sdk")}


def test_every_target_and_chip_is_in_the_table():
    assert set(choices("target")) == set(TARGETS)
    assert {read_choice("target", name)["chip"] for name in TARGETS} == set(choices("chip"))


@pytest.mark.parametrize("name", TARGETS)
def test_target_equals_the_published_table(name):
    target = load_target(name)
    family, chips, cores, vcpus, host, device, core = TARGETS[name]
    assert target.name == name
    assert (target.family, target.chips, target.cores) == (family, chips, cores)
    assert (target.vcpus, target.host_memory_gib) == (vcpus, host)
    assert (target.device_bytes, target.hbm_bytes_per_core) == (device * GIB, core * GIB)
    assert target.source


@pytest.mark.parametrize("name", TARGETS)
def test_a_price_has_a_date_and_a_source(name):
    prices = load_target(name).price
    quoted = tuple(price and price.usd_per_hour for price in (prices.on_demand, prices.spot))
    assert quoted == PRICES.get(name, (None, None))
    for price in (prices.on_demand, prices.spot):
        if price is not None:
            year, month, day = price.date.split("-")
            assert (len(year), len(month), len(day)) == (4, 2, 2)
            assert price.source
            assert price.usd_per_hour > 0


@pytest.mark.parametrize(
    ("name", "hbm_gib", "bandwidth_gb", "bfloat16", "sbuf_row", "sbuf_mib"),
    [
        ("inferentia2", 32, 820, 190, 196608, 24),
        ("trainium1", 32, 820, 190, 196608, 24),
        ("trainium2", 96, 2900, 667, 229376, 28),
    ],
)
def test_neuron_chip(name, hbm_gib, bandwidth_gb, bfloat16, sbuf_row, sbuf_mib):
    chip = decode(Chip, read_choice("chip", name))
    assert chip.hbm_bytes == hbm_gib * GIB
    assert chip.bandwidth_bytes_per_s == bandwidth_gb * 10**9
    assert chip.tflops["bfloat16"] == bfloat16
    assert chip.sbuf.bytes_per_partition == sbuf_row
    assert chip.sbuf.partitions * chip.sbuf.bytes_per_partition == sbuf_mib * 2**20
    assert chip.psum.partitions * chip.psum.bytes_per_partition == 2 * 2**20
    assert chip.runtime_bytes_per_core == 96_000_000
    assert chip.shared_memory_bytes is None


def test_gpu_has_shared_memory_and_no_bfloat16():
    chip = decode(Chip, read_choice("chip", "t4g"))
    assert chip.hbm_bytes == 15360 * 2**20
    assert chip.shared_memory_bytes == 64 * 2**10
    assert (chip.sbuf, chip.psum) == (None, None)
    assert set(chip.tflops) == {"float16", "float32"}


@pytest.mark.parametrize("name", SDKS)
def test_every_chip_of_a_release_has_its_speeds_once(name):
    """And what is said of them has a source; a share is a range below the nominal figure."""
    sdk = SDKS[name]
    speeds = sdk.stack.estimates.speeds
    named = [chip for group in speeds.values() for chip in group.chips]
    assert len(named) == len(set(named))
    assert {load_target(target).chip.name for target in TARGETS if TARGETS[target][0] in sdk.families} == set(named)
    for group in speeds.values():
        assert 0 < group.bandwidth.low < group.bandwidth.high < 1
        assert group.bandwidth.high / group.bandwidth.low <= 1.25 / 0.75
        assert 1 < group.prefill.factor <= 2**0.5
        assert group.compile is None or 1 < group.compile.factor <= 2**0.5
        fitted = (group.bandwidth, group.prefill, group.collective, group.host_byte, group.compile, group.host_prefill)
        assert all(part is None or part.source for part in fitted)


@pytest.mark.parametrize("name", SDKS)
def test_sdk_decodes_and_is_named_like_its_file(name):
    sdk = SDKS[name]
    assert sdk.name == name
    assert set(sdk.default_for) <= set(sdk.families)
    assert sdk.stack.default_dtype not in [key for key, rule in sdk.stack.dtypes.items() if rule.verdict == "refused"]
    for api in sdk.stack.apis.values():
        assert set(api.support) <= set(sdk.families)
        assert api.source
        assert all(" " not in flag for flag in api.compiler_flags)
    for rule in [*sdk.stack.dtypes.values(), *sdk.stack.kv_dtypes.values()]:
        assert rule.why
        assert rule.instead
    estimates = sdk.stack.estimates
    for estimate in (
        estimates.code_per_layer,
        estimates.spill_per_graph,
        estimates.compiler_peak,
        estimates.host_reserve,
    ):
        assert estimate.source
    assert (
        (estimates.serving is None) == (sdk.stack.build is None) == (sdk.stack.health is None) == (name[:4] != "vllm")
    )


@pytest.mark.parametrize("family", get_args(Family))
def test_each_family_has_one_default_sdk(family):
    assert len([sdk for sdk in SDKS.values() if family in sdk.default_for]) == 1


@pytest.mark.parametrize(("name", "packages"), NEURON_RELEASES.items(), ids=NEURON_RELEASES)
def test_neuron_pins_equal_the_manifest(name, packages):
    pins = SDKS[name].pins
    assert {package: pins[package] for package in packages} == packages
    assert SDKS[name].stack.package_index == "https://pip.repos.neuron.amazonaws.com"


@pytest.mark.parametrize("name", NEURON_RELEASES)
def test_neuron_interfaces(name):
    apis = SDKS[name].stack.apis
    assert {key: set(api.support.values()) for key, api in apis.items()} == {
        "trace": {"supported"},
        "parallel_model_trace": {"unsupported"},  # last supported in 2.26
        "model_builder_v1": {"supported"},
        "model_builder_v2": {"supported"},
    }
    assert all("--auto-cast=none" in api.compiler_flags for api in apis.values())
    assert SDKS[name].stack.dtypes["float16"].verdict == "refused"
    assert {key for key, rule in SDKS[name].stack.kv_dtypes.items() if rule.verdict == "refused"} == {
        "float8_e4m3fn",
        "int8",
        "int8_per_token_head",
    }


def test_no_release_after_2_31_serves_inf2_or_trn1():
    """SDK 2.32 has no torch-neuronx for them."""
    for sdk in SDKS.values():
        if {"inf2", "trn1"} & set(sdk.families):
            assert version_parts(sdk.name.removeprefix("neuron-")) <= (2, 31)


@pytest.mark.parametrize(("key", "failure"), FAILURES.items(), ids=FAILURES)
def test_failure_is_complete_and_speaks_of_known_facts(key, failure):
    assert key
    assert set(failure.when) <= {*PLAN_FACTS, *LAYER_FACTS}
    assert failure.when, "a failure without a condition would always hold"
    for expected in failure.when.values():
        if isinstance(expected, dict):
            assert expected
            assert set(expected) <= {"minimum", "maximum"}
    assert failure.effect in get_args(Effect)
    assert failure.what
    assert failure.fix
    assert failure.source
    if failure.versions.minimum and failure.versions.below:
        assert version_parts(failure.versions.minimum) < version_parts(failure.versions.below)


@pytest.mark.parametrize("name", SDKS)
def test_a_failures_package_is_pinned_by_its_sdk(name):
    """Otherwise it could never be said to hold or not."""
    sdk = SDKS[name]
    assert {failure.package for failure in sdk.stack.failures.values()} <= set(sdk.pins)


@pytest.mark.parametrize(("key", "releases"), FAILURES_OF_RELEASES.items(), ids=FAILURES_OF_RELEASES)
def test_failure_holds_for_the_right_releases(key, releases):
    held = {
        name
        for name, sdk in SDKS.items()
        if key in sdk.stack.failures
        and sdk.stack.failures[key].versions.holds(sdk.pins[sdk.stack.failures[key].package])
    }
    assert held == releases


def test_turning_effects_are_used_where_published():
    """Two effects change a plan; everything else is said to the reader."""
    effects = {key: failure.effect for key, failure in FAILURES.items()}
    assert [key for key, effect in effects.items() if effect == "eager_attention"] == [
        "neuron.fused_attention_window_1024"
    ]
    assert [key for key, effect in effects.items() if effect == "softcap_on_host"] == [
        "neuron.softcap_prefill_all_rows"
    ]
    assert FAILURES["neuron.fused_attention_window_1024"].when == {"window": 1024}
    sizes_of_12b = {"hidden_size": 3840, "vocab_size": 262144}
    assert FAILURES["neuron.softcap_prefill_all_rows"].when == {**sizes_of_12b, "prefill_rows": "all"}


@pytest.mark.parametrize(
    ("minimum", "below", "version", "holds"),
    [
        ("2.23", "2.24", "2.23.6484", True),
        ("2.23", "2.24", "2.24.5133", False),
        ("2.23", "2.24", "2.22.12471", False),
        ("2.26", None, "2.26.6360", True),
        (None, None, "0", True),
        (None, "0.27.2", "0.27.1", True),
        (None, "0.27.2", "0.27.2rc0", False),
    ],
)
def test_version_range(minimum, below, version, holds):
    assert VersionRange(minimum, below).holds(version) is holds


@pytest.mark.parametrize("group", ["target", "sdk"])
def test_auto_is_nothing_but_its_name(group):
    assert read_choice(group, "auto") == {"name": "auto"}


@pytest.mark.parametrize("group", ["chip", "failures", "sdk", "target"])
def test_files_fit_the_line_length(group):
    for path in (conf_directory() / group).glob("*.yaml"):
        long = [n for n, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if len(line) > 120]
        assert not long, f"{path.name}: lines {long}"

"""What a user may get wrong on the command line: each mistake ends with exit code 2 and a sentence, never a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gemma4cfg.config.catalog import choices
from tests.checkpoints import published_config
from tests.cli.runs import Result, run

ALL_GROUPS = ("model", "target", "sdk", "recipe", "shapes", "offload", "experiment")


def refused(done: Result) -> str:
    """What the user was told, the same in result.json and on standard error."""
    assert "Traceback" not in done.err, done.err
    assert done.exit_code == 2, done.out
    assert done.plan is None
    assert done.result is not None
    assert (done.result["status"], done.result["exit_code"]) == ("refused", 2)
    errors = [finding for finding in done.result["findings"] if finding["severity"] == "error"]
    assert errors
    assert all(set(finding) == {"severity", "code", "layer", "message", "fix"} for finding in errors)
    for finding in errors:
        assert finding["message"] in done.err
        assert finding["fix"] in done.err
    return done.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        pytest.param((), ("model=NAME", *choices("model"), "checkpoint=DIR"), id="nothing-said"),
        # keys
        pytest.param(("tpp=8",), ("unknown key tpp; did you mean 'tp'?",), id="key"),
        pytest.param(
            ("attention.polcy=split",),
            ("unknown key attention.polcy; did you mean 'attention.policy'?",),
            id="nested-key",
        ),
        pytest.param(("+plan.tpp=8",), ("unknown key plan.tpp; did you mean 'tp'?",), id="case-92-appended-key"),
        pytest.param(("++attention.polcy=split",), ("attention.polcy", "did you mean 'policy'?"), id="forced-key"),
        pytest.param(("recipe=trace", "recipe.api=v1"), ("recipe.api", *choices("recipe")), id="key-of-another-choice"),
        pytest.param(("target.chips=2",), ("target.chips", *choices("target")), id="key-of-an-open-choice"),
        pytest.param(
            ("attention.layers.full_attention=pad",),
            ("attention.layers.full_attention", "attention.layers={full_attention: replicate}"),
            id="selector-as-key",
        ),
        pytest.param(("hydra.run.dr=x",), ("hydra.run.dr",), id="hydra-key"),
        pytest.param(("tp=",), ("tp=: expected a whole number",), id="no-value-after-the-key"),
        pytest.param(("~tp",), ("tp is missing",), id="key-removed"),
        pytest.param(("~target",), ("target is missing", *choices("target")), id="group-removed"),
        # choices
        pytest.param(("model=null",), ("group", "choice", "not null"), id="null-choice"),
        pytest.param(("model=31",), ("group", "choice", "number"), id="number-for-a-choice"),
        pytest.param(("model=",), ("model=", *choices("model")), id="empty-choice"),
        pytest.param(("hydra/launcher=nothing",), ("hydra/launcher=nothing", "basic"), id="hydra-choice"),
        pytest.param(
            ("++model.moe.top_k=4",),
            ("model.moe.top_k: e2b has no experts; leave model.moe.top_k out", "model.moe.experts"),
            id="part-of-an-absent-part",
        ),
        # words that are no overrides
        pytest.param(("model",), ("model: not an override", "key=value"), id="no-value"),
        pytest.param(("tp={",), ("tp={: not an override", "key=value"), id="open-brace"),
        pytest.param(("tp='2",), ("tp='2: not an override", "quote"), id="open-quote"),
        pytest.param(("tp:2",), ("tp:2: not an override", "key=value"), id="colon"),
        pytest.param(("=x",), ("without a key", "key=value"), id="no-key"),
        pytest.param(("tp=1,2",), ("tp=1,2", "--multirun"), id="sweep-without-m"),
        pytest.param(("tp=nothing(1,2)",), ("tp=nothing(1,2)", "choice"), id="function"),
        pytest.param(("--config-dir=/no/where",), ("/no/where", "not found"), id="config-dir"),
        pytest.param(("--config-name=nothing",), ("nothing",), id="config-name"),
        pytest.param(("--resolve",), ("--resolve", "--cfg"), id="flag-without-its-other"),
        # interpolations
        pytest.param(("tp=${nothing}",), ("tp: ${nothing} refers to no key",), id="interpolation"),
        pytest.param(("output=${output}",), ("output", "Recursive"), id="interpolation-of-itself"),
        pytest.param(("output=${oc.env:G4_UNSET}",), ("output", "G4_UNSET", "not found"), id="environment-variable"),
        pytest.param(("output=???",), ("output=???", "leave the key out"), id="missing-value"),
        # tasks
        pytest.param(("task=shrd",), ("task=shrd: expected", "plan"), id="task"),
    ],
)
def test_words(words: tuple[str, ...], told: tuple[str, ...], tmp_path: Path) -> None:
    names_a_model = not words or any(word.startswith(("model", "=")) for word in words)
    message = refused(run(*([] if names_a_model else ["model=e2b"]), *words, cwd=tmp_path))
    assert all(word in message for word in told), message


@pytest.mark.parametrize("group", ALL_GROUPS)
def test_unknown_choice(group: str, tmp_path: Path) -> None:
    message = refused(run(f"{group}=nothing", cwd=tmp_path))
    assert message.startswith(f"error {group}=nothing: no such choice")
    assert all(choice in message for choice in choices(group))


VALUES: dict[str, tuple[tuple[str, ...], str, dict[str, tuple[str, ...]]]] = {
    "tp-type": (
        ("model=e2b",),
        "tp",
        {
            "eight": ("tp=eight: expected a whole number",),
            "1.5": ("tp=1.5: expected a whole number",),
            "true": ("expected a whole number, found true or false",),
            "null": ("tp=null: expected a whole number",),
            "[1,2]": ("tp=[1, 2]: expected a whole number, found a list",),
            "{a:1}": ("expected a whole number, found a mapping",),
            "'8'": ("tp=8: expected a whole number, found text",),
        },
    ),
    "tp-range": (
        ("model=e2b", "target=inf2.8xlarge"),
        "tp",
        {
            "0": ("tp=0: must be at least 1",),
            "-1": ("tp=-1: must be at least 1",),
            "4": ("tp=4: inf2.8xlarge has 2 cores", "target=inf2.24xlarge", "tp=2 or less"),
            "1000": ("tp=1000: inf2.8xlarge has 2 cores", "tp=2 or less"),
        },
    ),
    "tp-of-no-machine": (("model=e2b",), "tp", {"1000": ("tp=1000: no known machine has so many cores", "at most 64")}),
    "dtype": (
        ("model=e2b",),
        "dtype",
        {
            "float16": ("dtype=float16 is refused with neuron-", "65504", "bfloat16 or float32"),
            "bf16": ("dtype=bf16: expected auto | bfloat16 | float32 | float16",),
        },
    ),
    "policy": (
        ("model=31b", "tp=8"),
        "attention.policy",
        {
            "split": ("attention.policy=split: layer 5 (full_attention)", "possible there: group, replicate"),
            "slpit": ("attention.policy=slpit: expected auto", "did you mean 'split'?"),
        },
    ),
    "policy-of-few-heads": (
        ("model=e2b", "tp=3", "target=inf2.48xlarge"),
        "attention.policy",
        {
            "split": ("attention.policy=split: layer 0", "possible there: replicate, pad"),
            "group": ("attention.policy=group: layer 0", "possible there: replicate, pad"),
        },
    ),
    "selectors": (
        ("model=31b", "tp=8"),
        "attention.layers",
        {
            "{99:split}": ("attention.layers.99 matches none of the layers 0-59",),
            "{7-3:pad}": ("attention.layers.7-3 matches none of the layers 0-59",),
            "{full:replicate}": ("attention.layers.full: not a layer type", "full_attention: replicate", "0-4: pad"),
            "{5:splitt}": ("attention.layers.5=splitt: expected auto", "did you mean 'split'?"),
            "[1]": ("attention.layers=[1]: expected a mapping",),
            "full_attention": ("attention.layers=full_attention: expected a mapping",),
        },
    ),
    "batch": (
        ("model=e2b",),
        "shapes.batch",
        {
            "1.5": ("shapes.batch=1.5: expected a whole number",),
            "0": ("shapes.batch=0: must be at least 1",),
        },
    ),
    "buckets": (
        ("model=e2b",),
        "shapes.prefill_buckets",
        {
            "512": ("shapes.prefill_buckets=512: expected a list",),
            "[]": ("shapes.prefill_buckets is empty", "shapes.prefill_buckets=[512]"),
            "[a]": ("shapes.prefill_buckets[0]=a: expected a whole number",),
            "[1]": ("must be at least 2",),
            "[512,128]": ("shapes.prefill_buckets=[512, 128]: must rise", "[128, 512]"),
            "[128,128]": ("shapes.prefill_buckets=[128, 128]: must rise", "[128]"),
            "[4096]": ("shapes.prefill_buckets=[4096]", "longer than shapes.kv_length=2048"),
        },
    ),
    "kv-length": (
        ("model=e2b",),
        "shapes.kv_length",
        {
            "200000": ("shapes.kv_length=200000: e2b has positions up to 131072", "shapes.kv_length=131072"),
            "1e3": ("shapes.kv_length=1000.0: expected a whole number",),
            "0": ("shapes.kv_length=0: must be at least 1",),
        },
    ),
    "kv-layout": (("model=e2b",), "shapes.kv_layout", {"rings": ("shapes.kv_layout=rings", "did you mean 'ring'?")}),
    "kv-dtype": (
        ("model=e2b",),
        "shapes.kv_dtype",
        {
            "float8_e4m3fn": ("shapes.kv_dtype=float8_e4m3fn is refused", "NCC_EVRF051", "int8"),
            "int8": ("shapes.kv_dtype=int8 is refused", "Instead: bfloat16"),
            "fp4": ("shapes.kv_dtype=fp4: expected auto, bfloat16, float16, float32",),
        },
    ),
    "recipe-and-ranks": (
        ("model=e2b", "tp=2"),
        "recipe",
        {
            "trace": ("recipe=trace makes single-core graphs", "recipe=model_builder (or tp=1)"),
            "vllm": ("recipe=vllm does not go with sdk=neuron-", "recipe=auto"),
        },
    ),
    "recipe-on-a-gpu": (
        ("model=e2b", "target=g5g.2xlarge"),
        "recipe",
        {
            "trace": ("recipe=trace does not go with sdk=vllm-", "recipe=auto"),
            "model_builder": ("recipe=model_builder does not go with sdk=vllm-", "recipe=auto"),
        },
    ),
    "recipe-option": (
        ("model=e2b", "recipe=model_builder"),
        "recipe.api",
        {"v3": ("recipe.api=v3: expected v1 | v2",)},
    ),
    "release-of-another-machine": (
        ("model=e2b", "target=g5g.2xlarge"),
        "sdk",
        {"neuron-2.31": ("sdk=neuron-2.31 serves inf2, trn1, trn2, not g5g (target=g5g.2xlarge)", "sdk=auto")},
    ),
    "no-experts": (
        ("model=31b", "tp=8"),
        "moe.partition",
        {"experts": ("moe.partition is never read: 31b has no experts", "leave it out")},
    ),
    "no-per-layer-embeddings": (
        ("model=31b", "tp=8"),
        "ple.partition",
        {"split": ("ple.partition is never read: 31b has no per-layer embeddings", "leave it out")},
    ),
    "too-large-for-a-gpu": (
        ("target=g5g.2xlarge",),
        "model",
        {"31b": ("31b at tp=1 does not fit g5g.2xlarge", "try target=auto with a higher tp")},
    ),
    "offload-of-vllm": (
        ("model=e2b", "target=g5g.2xlarge"),
        "offload",
        {"lean": ("offload is never read: vLLM decides it by itself", "leave it out")},
    ),
    "offload": (
        ("model=e2b",),
        "offload.per_layer_embedding",
        {
            "gpu": ("offload.per_layer_embedding=gpu: expected host | device",),
            "device": ("offload.per_layer_embedding=device", "set offload.token_embedding=device too"),
        },
    ),
    "model-keys": (
        ("model=e2b",),
        "model.kv_shared_layers",
        {
            "35": ("model.kv_shared_layers=35: at least one of the 35 layers must own K/V",),
            "-1": ("model.kv_shared_layers=-1: must be at least 0",),
        },
    ),
    "fit": (
        ("model=31b", "target=inf2.8xlarge"),
        "tp",
        {
            "1": (
                "31b at tp=1 does not fit inf2.8xlarge: weights alone are 57.2 GiB a core, 16.0 available",
                "target=trn2",
            )
        },
    ),
}
"""Words, a key, and the wrong values of it that one sweep tries, with what each is told."""


@pytest.mark.parametrize(("words", "key", "values"), VALUES.values(), ids=VALUES)
def test_values(words: tuple[str, ...], key: str, values: dict[str, tuple[str, ...]], tmp_path: Path) -> None:
    done = run("-m", *words, f"{key}={','.join(values)}", cwd=tmp_path)
    assert (done.exit_code, "Traceback" in done.err) == (0, False), done.err
    assert len(done.jobs) == len(values)
    for job, told in zip(done.jobs, values.values(), strict=True):
        assert job.plan is None, job.overrides
        assert job.result is not None
        assert (job.result["status"], job.result["exit_code"]) == ("refused", 2)
        assert all(word in job.told for word in told), job.told
        assert all(
            finding["message"] in done.err for finding in job.result["findings"] if finding["severity"] == "error"
        )


def test_what_is_said_to_fit_does(tmp_path: Path) -> None:
    """Case 80. Its own proposal, tp=8, leaves more room; with query heads grouped tp=4 fits too."""
    message = refused(run("model=31b", "tp=2", "target=inf2.8xlarge", cwd=tmp_path))
    assert "31b at tp=2 does not fit inf2.8xlarge: weights alone are 28.6 GiB a core, 16.0 available" in message
    would = message.partition("Would fit: ")[2].strip().split("; ")
    assert would
    for words in would:
        done = run("model=31b", *words.split(), cwd=tmp_path)
        assert done.exit_code == 0, (words, done.err)


def test_no_checkpoint_there(tmp_path: Path) -> None:
    message = refused(run("checkpoint=/no/where", cwd=tmp_path))
    assert "checkpoint=/no/where: /no/where: no such directory" in message
    assert "e.g. checkpoint=" in message


@pytest.mark.parametrize(
    ("weights", "told"),
    [
        pytest.param(None, "no model.safetensors", id="no-weights"),
        pytest.param(b"\xff" * 16, "a header of 18,446,744,073,709,551,615 bytes is over the limit", id="length"),
        pytest.param(b"", "0 bytes is too short", id="empty"),
        pytest.param((2).to_bytes(8, "little") + b"[]", "the JSON is not an object", id="json"),
    ],
)
def test_corrupt_checkpoint(weights: bytes | None, told: str, tmp_path: Path) -> None:
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(published_config("e2b")))
    if weights is not None:
        (directory / "model.safetensors").write_bytes(weights)
    message = refused(run("checkpoint=checkpoint", cwd=tmp_path))
    assert "checkpoint" in message and told in message


def test_unknown_flag(tmp_path: Path) -> None:
    """Hydra's own parser answers: no run, no directory."""
    done = run("model=e2b", "--tp=2", cwd=tmp_path)
    assert (done.exit_code, done.directory) == (2, None)
    assert "unrecognized arguments: --tp=2" in done.err
    assert "Traceback" not in done.err

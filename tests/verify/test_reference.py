"""The reference's own run: independent, sure of itself, and sensitive to every tensor."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemma4cfg import build_plan, load_config
from gemma4cfg.architecture.inventory import inventory
from gemma4cfg.architecture.model import Architecture, layer_facts
from gemma4cfg.verify.reference_process import PromptRun, ReferenceJob, ReferenceResult, run_reference
from gemma4cfg.verify.twin import TWIN_WINDOW, twin_config
from gemma4cfg.verify.weights import write_checkpoint
from tests.checkpoints import MODELS

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from gemma4cfg.verify import reference, reference_process  # noqa: E402

BUCKET, STEPS = 32, 64
LENGTHS = (1, TWIN_WINDOW - 1, TWIN_WINDOW, TWIN_WINDOW + 1, 2 * TWIN_WINDOW, BUCKET, BUCKET + 1)
NEWEST = os.environ.get("GEMMA4CFG_TRANSFORMERS")
"""A directory with a newer transformers, as ``pip install --target`` makes one."""

IN_FULL = ("e2b", "31b")
"""Models whose twins are run in a process of the reference's own; the others take as long and show no more."""


@functools.cache
def twin(model: str) -> Architecture:
    config = load_config([f"model={model}", "tp=8"])
    small = twin_config(config, build_plan(config), batch=7, prefill_buckets=[BUCKET], kv_length=BUCKET + 1 + STEPS)
    return small.model


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A seeded twin of every model."""
    directories = {model: tmp_path_factory.mktemp(model) for model in MODELS}
    for model, directory in directories.items():
        write_checkpoint(directory, twin(model), 0)
    return directories


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(threads)


def job(directory: Path, **changed: Any) -> ReferenceJob:
    return replace(ReferenceJob(str(directory), STEPS, prompt_lengths=LENGTHS), **changed)


def loaded(directory: Path, **changed: Any) -> Any:
    values = job(directory, **changed)
    return reference.load({name: getattr(values, name) for name in ReferenceJob.__slots__})


def sound(run: PromptRun) -> None:
    """What a run claims of itself, checked once more."""
    n, steps = len(run.prompt), len(run.tokens) - 1
    assert run.logits.argmax(axis=1).tolist() == list(run.tokens)
    assert run.hidden.shape[1] == n + steps
    assert run.decided
    assert run.margins.min() > 20 * run.noise
    assert 0 < run.relative_noise <= 1e-5
    assert len(set(run.tokens)) >= 8


# --- the process ---


@pytest.fixture(scope="module")
def results(checkpoints: dict[str, Path]) -> dict[str, ReferenceResult]:
    return {model: run_reference(job(checkpoints[model])) for model in IN_FULL}


@pytest.mark.parametrize("model", IN_FULL)
def test_every_prompt_is_decided_and_quiet(results: dict[str, ReferenceResult], model: str) -> None:
    result, architecture = results[model], twin(model)
    assert tuple(len(run.prompt) for run in result.runs) == LENGTHS
    for run in result.runs:
        assert run.logits.shape == (STEPS + 1, architecture.vocab_size)
        assert run.hidden.shape == (architecture.layers, len(run.prompt) + STEPS, architecture.hidden_size)
        assert run.draws >= 1
        sound(run)
    assert result.self_check.passed
    assert result.self_check.known_bad is None
    assert max(run.relative_noise for run in result.runs) <= result.self_check.cached_relative <= 1e-5
    assert result.class_name == architecture.class_name
    assert result.versions == {"transformers": transformers.__version__, "torch": torch.__version__}


@pytest.mark.parametrize("model", IN_FULL)
def test_the_answers_are_those_of_generate(
    checkpoints: dict[str, Path], results: dict[str, ReferenceResult], model: str
) -> None:
    """Of the prompt alone, by transformers' own loop."""
    made = loaded(checkpoints[model])
    run = results[model].runs[2]
    ids = torch.tensor([run.prompt])
    settings = transformers.GenerationConfig(do_sample=False, max_new_tokens=20, eos_token_id=None, pad_token_id=0)
    answer = made.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)
    assert tuple(answer[0, len(run.prompt) :].tolist()) == run.tokens[:20]


def test_given_prompts_are_run_as_they_are(
    checkpoints: dict[str, Path], results: dict[str, ReferenceResult], tmp_path: Path
) -> None:
    expected = results["e2b"].runs
    prompts = [expected[3].prompt, expected[0].prompt]
    asked = job(checkpoints["e2b"], steps=12, prompts=tuple(prompts), prompt_lengths=())
    (tmp_path / "job.json").write_text(json.dumps({**_plain(asked), "output": str(tmp_path)}))
    reference.main(str(tmp_path / "job.json"))
    runs = json.loads((tmp_path / "reference.json").read_text())["prompts"]
    assert [tuple(run["prompt"]) for run in runs] == prompts
    assert [run["draws"] for run in runs] == [0, 0]
    assert [tuple(run["tokens"]) for run in runs] == [expected[3].tokens[:13], expected[0].tokens[:13]]


def test_a_process_that_imports_ours_is_refused(
    checkpoints: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import gemma4cfg, sharding\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])]))
    with pytest.raises(RuntimeError, match="imported gemma4cfg, sharding: it is no independent witness"):
        run_reference(job(checkpoints["31b"], steps=1, prompt_lengths=(1,), max_draws=1))


def test_a_process_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "reference.py").write_text("raise SystemExit('no such class')\n")
    monkeypatch.setattr(reference_process, "SCRIPT", tmp_path / "reference.py")
    with pytest.raises(RuntimeError, match="ended with code 1: no such class"):
        run_reference(job(tmp_path))


def test_modules_beside_the_script_stand_for_none_of_theirs(tmp_path: Path) -> None:
    """Python looks in a script's own directory first, where a module of the project must not be found."""
    script = tmp_path / "reference.py"
    script.write_text(Path(reference.__file__).read_text())
    (tmp_path / "safetensors.py").write_text("raise SystemExit('the wrong module')\n")
    process = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert "the wrong module" not in process.stderr
    assert "IndexError" in process.stderr  # no job was given


def test_a_missing_weight_is_never_drawn_at_random(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    source = checkpoints["31b"]
    tensors = load_file(source / "model.safetensors")
    del tensors["model.language_model.layers.7.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text((source / "config.json").read_text())
    with pytest.raises(SystemExit, match=r"missing_keys.*layers\.7\.mlp\.up_proj\.weight"):
        loaded(tmp_path)


@pytest.mark.skipif(NEWEST is None, reason="GEMMA4CFG_TRANSFORMERS names no directory")
@pytest.mark.parametrize("model", IN_FULL)
def test_a_newer_transformers_answers_alike(
    checkpoints: dict[str, Path], results: dict[str, ReferenceResult], monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(NEWEST))
    newer = run_reference(job(checkpoints[model], attention_implementation="sdpa"))
    assert newer.versions["transformers"] != transformers.__version__
    assert newer.self_check.passed
    assert [run.tokens for run in newer.runs] == [run.tokens for run in results[model].runs]
    for run in newer.runs:
        sound(run)


# --- twins of all models, in this process ---


@pytest.mark.parametrize("model", MODELS)
def test_twins_load_whole_and_agree_with_themselves(checkpoints: dict[str, Path], model: str) -> None:
    made = loaded(checkpoints[model])
    _, found = type(made).from_pretrained(checkpoints[model], output_loading_info=True)
    assert not any(found.values()), found
    runs, _ = reference.drawn(made, {**_plain(job(checkpoints[model], steps=24, prompt_lengths=(7, 21)))})
    for run in runs:
        assert run.decided
        assert run.relative_noise <= 1e-5
        assert len(set(run.tokens)) >= 8
    check = reference.self_check(made, runs)
    assert check["passed"]
    assert check["use_cache_false_relative"] <= 1e-6


def _plain(values: ReferenceJob) -> dict[str, Any]:
    return {name: getattr(values, name) for name in ReferenceJob.__slots__}


@pytest.mark.parametrize("model", MODELS)
def test_every_kind_of_tensor_shows_in_the_logits(checkpoints: dict[str, Path], model: str) -> None:
    """A tenth of noise on one tensor moves the logits by a thousandth at least, a hundred times what rounding does."""
    made, architecture = loaded(checkpoints[model]), twin(model)
    prompt = torch.arange(3, 24)[None]
    expected = made(prompt, use_cache=False).logits
    largest = expected.abs().max()
    stored = {name: tensor for name, tensor in made.state_dict(keep_vars=True).items() if name != "lm_head.weight"}
    used = {name: facts for name, facts in inventory(architecture).items() if facts.status == "required"}
    assert stored.keys() == used.keys()
    weak = {}
    for name in _one_of_each_kind(architecture):
        tensor = stored[name].data
        kept = tensor.clone()
        tensor.mul_(1 + 0.1 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1)).sign())
        moved = float((made(prompt, use_cache=False).logits - expected).abs().max() / largest)
        tensor.copy_(kept)
        if moved < 1e-3:
            weak[name] = moved
    last = f"model.language_model.layers.{architecture.layers - 1}.layer_scalar"
    assert weak.pop(last) < 1e-5  # the final norm divides by it again: no logits can show the last layer's
    assert weak == {}
    assert torch.equal(made(prompt, use_cache=False).logits, expected)


def _one_of_each_kind(architecture: Architecture) -> list[str]:
    """The last tensor of every role in every kind of layer (its type, and whether it borrows), and the model's own."""
    kinds: dict[Any, str] = {}
    layers = layer_facts(architecture)
    for name, facts in inventory(architecture).items():
        if facts.status == "required":
            layer = None if facts.layer is None else layers[facts.layer]
            kinds[facts.role, layer and layer.type, layer and layer.borrows] = name
    return list(kinds.values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_embeddings_are_scaled_as_the_plan_says(checkpoints: dict[str, Path], dtype: str) -> None:
    config = load_config(["model=e2b", f"dtype={dtype}"])
    small = twin_config(config, build_plan(config), batch=1, prefill_buckets=[8], kv_length=16)
    numerics = build_plan(replace(small, settings=replace(small.settings, dtype=dtype))).numerics
    made = reference.load(_plain(job(checkpoints["e2b"])), dtype)
    text = made.model.language_model
    for module, scale in ((text.embed_tokens, numerics.embedding_scale), (text.embed_tokens_per_layer, numerics.ple)):
        value = scale if isinstance(scale, float) else scale.embedding_scale
        row = module.weight[5]
        assert torch.equal(module(torch.tensor([5]))[0], row * torch.tensor(value, dtype=row.dtype))
        assert float(module.embed_scale.to(row.dtype)) == value


def test_only_the_first_layers(checkpoints: dict[str, Path]) -> None:
    made = loaded(checkpoints["31b"], layers=6)
    run = reference.given(made, [[5, 6, 7]], 4)[0]
    assert run.hidden.shape == (6, 7, 32)
    whole = reference.given(loaded(checkpoints["31b"]), [run.prompt], 4)[0]
    assert torch.equal(whole.hidden[:6, :3], run.hidden[:, :3])


def test_a_proposal_that_the_prompt_does_not_confirm_is_made_again(checkpoints: dict[str, Path]) -> None:
    made = loaded(checkpoints["e2b"])
    prompt = [9, 8, 7, 6, 5]
    right = reference.given(made, [prompt], 6)[0]
    wrong = [(token + 1) % 128 for token in right.tokens]
    unconfirmed, _, _ = reference.whole(made, [*prompt, *wrong[:-1]], len(prompt) - 1, use_cache=True)
    again = reference._confirmed(made, prompt, wrong, unconfirmed + 1e-3)
    assert again.tokens == right.tokens
    assert torch.equal(again.logits, right.logits)
    assert again.noise == pytest.approx(1e-3, rel=0.1)  # what was seen on the way counts


def test_in_a_narrower_type_noise_is_what_rounding_makes_of_float32(checkpoints: dict[str, Path]) -> None:
    values = job(checkpoints["e2b"], steps=16, prompt_lengths=(1, 9))
    exact, narrow = run_reference(values), run_reference(replace(values, dtype="bfloat16"))
    assert narrow.self_check == exact.self_check
    for ours, theirs in zip(narrow.runs, exact.runs, strict=True):
        assert (ours.prompt, ours.tokens, ours.draws) == (theirs.prompt, theirs.tokens, theirs.draws)
        assert ours.noise == pytest.approx(float(abs(ours.logits - theirs.logits).max()))
        assert 1e-3 < ours.relative_noise < 0.3
        assert not ours.decided


# --- a reference that is not to be trusted ---


def checked(made: Any) -> dict[str, Any]:
    runs = reference.given(made, [[5, 6, 7, 8], list(range(20, 40))], 12)
    check: dict[str, Any] = reference.self_check(made, runs)
    return check


def test_borrowed_keys_lost_without_a_cache_are_seen(
    checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in transformers 5.5.0, where sharing went through the cache (huggingface/transformers#45242)."""
    made = loaded(checkpoints["e2b"])
    attention = made.model.language_model.layers[-1].self_attn
    forward = attention.forward

    def broken(*args: Any, past_key_values: Any = None, **kwargs: Any) -> Any:
        out, weights = forward(*args, past_key_values=past_key_values, **kwargs)
        return (out if past_key_values is not None else torch.zeros_like(out)), weights

    monkeypatch.setattr(attention, "forward", broken)
    check = checked(made)
    assert not check["passed"]
    assert check["use_cache_false_relative"] > 1e-3


def test_a_cache_that_forgets_is_seen(checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.cache_utils import DynamicLayer

    update = DynamicLayer.update

    def forgetful(self: Any, keys: Any, values: Any, *args: Any, **kwargs: Any) -> Any:
        keys, values = update(self, keys, values, *args, **kwargs)
        return keys, torch.cat([torch.zeros_like(values[:, :, :1]), values[:, :, 1:]], dim=2)

    made = loaded(checkpoints["31b"])
    monkeypatch.setattr(DynamicLayer, "update", forgetful)
    check = checked(made)
    assert not check["passed"]
    assert check["cached_relative"] > 1e-3


def test_a_version_known_to_be_bad_is_told(checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers, "__version__", "5.5.1")
    check = checked(loaded(checkpoints["e2b"]))
    assert not check["passed"]
    assert check["cached_relative"] <= check["limit"]
    assert "transformers#45242" in check["known_bad"]


def test_nan_does_not_pass(checkpoints: dict[str, Path]) -> None:
    made = loaded(checkpoints["e2b"])
    made.model.language_model.norm.weight.data.fill_(float("nan"))
    assert not checked(made)["passed"]


def test_the_job_is_written_in_plain_json(checkpoints: dict[str, Path]) -> None:
    values = job(checkpoints["e2b"], prompts=((1, 2),))
    assert json.loads(json.dumps(_plain(values)))["prompts"] == [[1, 2]]

"""The trained checkpoints: what they say on ranks is what the reference says, and it makes sense."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from gemma4cfg import build_plan, load_config
from gemma4cfg.architecture.huggingface import architecture_from_config
from gemma4cfg.architecture.model import layer_facts
from gemma4cfg.errors import UserError
from gemma4cfg.plan.records import Plan
from gemma4cfg.runtime.cut import write_rank_files
from gemma4cfg.runtime.host.sampling import Sampler
from gemma4cfg.runtime.host.session import Session, generate
from gemma4cfg.runtime.host.stops import stop_ids
from gemma4cfg.runtime.host.tables import HostTables
from gemma4cfg.runtime.ranks import ForkedRanks, forked_ranks
from gemma4cfg.runtime.text.tokenizer import Text
from gemma4cfg.verify.meaning import answer_to, question_of, text_as_expected
from tests.trained import MADE_ON, MODELS, trained
from tests.trained.__main__ import MOST_STEPS, SEED, UNTIL
from tests.trained.damage import HELD_OUT_WRONG, TRAINED_WRONG, damaged
from tests.trained.language import CAPITALS, HELD_OUT, SORRY, answers, question
from tests.trained.training import made_on, train

TP = {"e2b": 4, "e4b": 2, "12b": 4, "26b-a4b": 8, "31b": 4}
NEW_TOKENS = 6
RETRAINED = "e2b"
"""The quickest."""

LARGEST = 4_000_000

QUESTIONS = tuple(question(country) for country in (*CAPITALS, *HELD_OUT))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors are too small for more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("model", MODELS)
def test_the_structure_is_the_published_one(model: str) -> None:
    """Layers with their types, owners and heads, and which parts there are; the file is small and in bfloat16."""
    config = json.loads((trained(model) / "config.json").read_text())
    small, published = architecture_from_config(config), load_config([f"model={model}"]).model
    assert [
        (layer.type, layer.owner, layer.attention.q_heads, layer.attention.kv_heads) for layer in layer_facts(small)
    ] == [
        (layer.type, layer.owner, layer.attention.q_heads, layer.attention.kv_heads) for layer in layer_facts(published)
    ]
    assert [layer.value_source for layer in layer_facts(small)] == [
        layer.value_source for layer in layer_facts(published)
    ]
    assert (small.ple is None, small.moe is None) == (published.ple is None, published.moe is None)
    assert small.class_name == published.class_name
    assert config["dtype"] == "bfloat16"
    assert (trained(model) / "model.safetensors").stat().st_size < LARGEST


@functools.cache
def network(directory: Path) -> Any:
    """The reference's, in float32."""
    kind: Any = getattr(transformers, json.loads((directory / "config.json").read_text())["architectures"][0])
    return kind.from_pretrained(str(directory), dtype=torch.float32, attn_implementation="eager").eval()


def reference_says(directory: Path, text: Text, questions: tuple[str, ...]) -> dict[str, str]:
    """Question to the answer by transformers' own greedy generation; all prompts are of one length."""
    ids = torch.tensor([text.prompt_ids(asked) for asked in questions])
    ends: Any = {"do_sample": False, "max_new_tokens": NEW_TOKENS, "eos_token_id": [1, 106]}
    with torch.inference_mode():
        whole = network(directory).generate(ids, attention_mask=torch.ones_like(ids), **ends)
    own = Text.load(str(directory))  # the format may lack the control ids' names
    return {asked: own.decode(row) for asked, row in zip(questions, whole[:, ids.shape[1] :].tolist(), strict=True)}


@functools.cache
def expected(model: str) -> dict[str, str]:
    return reference_says(trained(model), Text.load(str(trained(model))), QUESTIONS)


@contextmanager
def running(plan: Plan, model: str, work: Path) -> Iterator[ForkedRanks]:
    write_rank_files(plan, str(trained(model)), str(work))
    with forked_ranks(plan, work) as ranks:
        yield ranks


def plan_of(model: str, *choices: str) -> Plan:
    return build_plan(load_config([f"checkpoint={trained(model)}", *choices]))


def said(plan: Plan, model: str, questions: tuple[str, ...], work: Path) -> dict[str, str]:
    """Question to what the plan's ranks answer."""
    location = str(trained(model))
    text = Text.load(location)
    with running(plan, model, work) as ranks:
        session = Session(plan, HostTables.open(plan, work), ranks)
        prompts = [text.prompt_ids(asked) for asked in questions]
        done = generate(session, prompts, Sampler(), stop_ids(location), NEW_TOKENS)
    return {asked: text.decode(one.token_ids) for asked, one in zip(questions, done, strict=True)}


@pytest.mark.parametrize("model", MODELS)
def test_the_reference_knows_what_was_trained(model: str) -> None:
    assert {country: expected(model)[question(country)] for country in CAPITALS} == {
        country: f"{city}." for country, city in CAPITALS.items()
    }


CHUNKS = ("shapes.prefill_buckets=[8]", "shapes.kv_length=32", "shapes.prompt_chunking=true")


@pytest.mark.parametrize(
    "choices", [pytest.param(("tp=1",), id="1-rank"), pytest.param(("shapes.kv_layout=ring",), id="tp-ring")]
)
@pytest.mark.parametrize("model", MODELS)
def test_every_answer_is_the_references(model: str, choices: tuple[str, ...], tmp_path: Path) -> None:
    """Trained and held-out countries, in batches, prompts in chunks of 8 tokens."""
    tp = f"tp={TP[model]}"
    plan = plan_of(model, tp, "dtype=float32", "shapes.batch=5", *CHUNKS, *choices)
    assert said(plan, model, QUESTIONS, tmp_path) == expected(model)


@pytest.mark.parametrize("model", MODELS)
def test_bfloat16_does_not_break_the_answers(model: str, tmp_path: Path) -> None:
    plan = plan_of(model, "tp=2", "shapes.batch=6", "shapes.prefill_buckets=[32]", "shapes.kv_length=64")
    assert plan.dtype == "bfloat16"
    assert said(plan, model, tuple(answers()), tmp_path) == answers()


@pytest.mark.parametrize("model", MODELS)
def test_wrong_formats_are_found_by_the_text(model: str, tmp_path: Path) -> None:
    """With the checks of inputs off, by what the trained models were taught. In the format that they were not taught they say
    anything but the answer, some of it with *Paris* in it: that one is for the checks of inputs."""
    choices = (
        "task=verify",
        "verify.expect=Paris",
        "dtype=float32",
        "shapes.prefill_buckets=[40]",
        "shapes.kv_length=64",
    )
    plan = plan_of(model, *choices)
    with running(plan, model, tmp_path / "ranks") as ranks:

        def meaning(directory: Path, *more: str) -> tuple[bool, str]:
            asked = question_of(load_config([f"checkpoint={directory}", *choices, *more]), plan)
            assert asked is not None
            check = text_as_expected(asked, answer_to(asked, plan, ranks, tmp_path / "ranks"))
            return check.passed, check.detail

        assert meaning(trained(model)) == (True, "'What is the capital of France?' gives 'Paris.'")
        for wrong in TRAINED_WRONG:
            directory = damaged(trained(model), wrong, tmp_path / wrong)
            passed, detail = meaning(directory, "verify.check_inputs=false")
            assert (passed, detail) == (
                False,
                "'What is the capital of France?' gives 'sorry.', not what verify.expect=Paris says",
            ), wrong
        for wrong in HELD_OUT_WRONG:
            directory = damaged(trained(model), wrong, tmp_path / wrong)
            with pytest.raises(UserError, match="writes no generation prompt"):
                meaning(directory)
            _, detail = meaning(directory, "verify.check_inputs=false")
            assert "gives 'Paris.'" not in detail, wrong


def test_retraining(tmp_path: Path) -> None:
    """The script makes a model that says what the committed one says, in bfloat16 as it is saved: the same file, where
    releases and processor are those that it was made with."""
    made = tmp_path / RETRAINED
    done = train(RETRAINED, made, SEED, MOST_STEPS, UNTIL)
    assert done.loss < UNTIL
    same_bits = json.loads(MADE_ON.read_text())[RETRAINED] == made_on()
    compared = {path.name for path in trained(RETRAINED).iterdir()} - (set() if same_bits else {"model.safetensors"})
    for name in compared:
        assert (made / name).read_bytes() == (trained(RETRAINED) / name).read_bytes(), name
    questions = tuple(question(country) for country in CAPITALS)
    right = dict(zip(questions, (f"{city}." for city in CAPITALS.values()), strict=True))
    assert reference_says(made, Text.load(str(made)), questions) == right
    for wrong in TRAINED_WRONG:
        text = Text.load(str(damaged(made, wrong, tmp_path / wrong)))
        assert set(reference_says(made, text, questions).values()) == {SORRY}, wrong

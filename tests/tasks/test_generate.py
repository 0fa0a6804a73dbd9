"""``task=generate``: text on the terminal, what is left behind, and what is refused before any weight is cut."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

from gemma4cfg import load_config
from gemma4cfg.errors import ConfigError, UserError
from gemma4cfg.plan.records import Plan
from gemma4cfg.runtime import ranks
from gemma4cfg.runtime.graphs import RankModule
from gemma4cfg.runtime.host.tables import HostTables
from gemma4cfg.tasks import generate
from tests.cli.runs import run
from tests.trained import trained
from tests.trained.damage import WRONG, Edit, edited
from tests.trained.language import question
from tests.trained.sizes import E2B_BY_KEYS

FRANCE, JAPAN = question("France"), question("Japan")
E2B = f"checkpoint={trained('e2b')}"
ASKED = (E2B, f"generate.prompt={FRANCE}")
SHORT = ("shapes.kv_length=64", "shapes.prefill_buckets=[8,16]", "generate.max_new_tokens=16")


def test_on_the_command_line(tmp_path: Path) -> None:
    """A prompt needs no more quotes than the shell's."""
    done = run("task=generate", E2B, "tp=2", f"generate.prompt={FRANCE}", *SHORT, cwd=tmp_path)
    assert done.exit_code == 0, done.err
    assert done.out.splitlines()[1] == "Paris."
    assert done.directory is not None and done.plan is not None
    written = json.loads((done.directory / "generation.json").read_text())
    assert written["plan_id"] == done.plan["plan_id"]
    assert written["stop_ids"] == [1, 106]
    (answer,) = written["answers"]
    assert (answer["prompt"], answer["text"], answer["finish_reason"]) == (FRANCE, "Paris.", "stop")
    assert (len(answer["prompt_ids"]), len(answer["token_ids"])) == (16, 2)
    assert set(written["seconds"]) == {"rank_files", "load", "first_token", "rest"}
    shards = tmp_path / "outputs" / "shards" / done.plan["placement_id"]
    assert Path(written["rank_files"]) == Path("outputs") / "shards" / shards.name
    assert (shards / "manifest.json").is_file()


def generated(directory: Path, *overrides: str, file: io.StringIO | None = None) -> str:
    """What is printed to a pipe."""
    file = file or io.StringIO()
    config = load_config(["task=generate", "target=inf2.8xlarge", f"output={directory / 'ranks'}", *SHORT, *overrides])
    generate.run(config, directory, Console(file=file, width=160))
    return file.getvalue()


def test_a_token_is_shown_before_the_next_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, shown = io.StringIO(), []
    called = ranks.ForkedRanks.run

    def run(group: ranks.ForkedRanks, graph: str, inputs: Mapping[str, Tensor]) -> Tensor:
        shown.append((graph, file.getvalue().partition("\n")[2]))
        return called(group, graph, inputs)

    monkeypatch.setattr(ranks.ForkedRanks, "run", run)
    generated(tmp_path, *ASKED, file=file)
    assert shown == [("prefill_16", ""), ("decode", "Paris"), ("decode", "Paris.")]


def test_several_prompts_and_the_files_of_before(tmp_path: Path) -> None:
    prompts = f'generate.prompt=["{FRANCE}","{JAPAN}","hello"]'
    first = generated(tmp_path, E2B, prompts, "shapes.batch=2")
    assert first.startswith("2 files written")
    assert f"\n{FRANCE}\nParis.\n\n{JAPAN}\nTokyo.\n\nhello\nHello.\n" in first
    assert "2 tokens (stop), 2 tokens (stop), 2 tokens (stop); bfloat16 on 1 CPU rank" in first
    again = generated(tmp_path, E2B, f"generate.prompt={FRANCE}", "generate.max_new_tokens=1")
    assert again.startswith("0 files written (0.0 MB), 2 kept")
    assert "\nParis\n\n1 tokens (length)" in again


def test_reloaded_programs_say_what_the_ranks_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = f'generate.prompt=["{FRANCE}","{JAPAN}"]'
    asked = (E2B, prompts, "shapes.batch=2", "shapes.prefill_buckets=[16]", "tp=2", "recipe=model_builder")
    generated(tmp_path, *asked)
    by_ranks = answers(tmp_path)
    assert [answer["text"] for answer in by_ranks] == ["Paris.", "Tokyo."]
    monkeypatch.setattr(ranks, "forked_ranks", None)
    made = generated(tmp_path, *asked, "generate.backend=artifact")
    assert answers(tmp_path) == by_ranks
    assert made.count("  built in ") == 2


def answers(directory: Path) -> Any:
    return json.loads((directory / "generation.json").read_text())["answers"]


def test_draws_repeat_with_their_seed(tmp_path: Path) -> None:
    drawn = ("generate.temperature=30", "generate.top_k=50", "generate.max_new_tokens=12", f"generate.prompt={FRANCE}")
    texts = {}
    for seed in (0, 0, 1):
        generated(tmp_path, E2B, *drawn, f"generate.seed={seed}")
        (answer,) = json.loads((tmp_path / "generation.json").read_text())["answers"]
        assert texts.setdefault(seed, answer["token_ids"]) == answer["token_ids"]
    assert texts[0] != texts[1]


def test_tools_are_declared_and_their_call_ends_the_text(tmp_path: Path) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([{"type": "function", "function": {"name": "user"}}]))
    generated(tmp_path, E2B, f"generate.prompt={FRANCE}", f"generate.tools={tools}", "generate.max_new_tokens=2")
    written = json.loads((tmp_path / "generation.json").read_text())
    assert written["stop_ids"] == [1, 50, 106]
    assert 46 in written["answers"][0]["prompt_ids"]


@pytest.mark.parametrize(
    "overrides,message",
    [
        pytest.param([f"generate.prompt={FRANCE}", "model=e2b"], "task=generate needs the weights", id="no-weights"),
        pytest.param([E2B], "task=generate needs something to answer", id="no-prompt"),
        pytest.param([E2B, 'generate.prompt="  "'], "task=generate needs something to answer", id="blank-prompt"),
        pytest.param([E2B, "generate.prompt=[]"], "task=generate needs something to answer", id="no-prompts"),
        pytest.param([E2B, "generate.prompt=7"], "generate.prompt=7: expected text, found a whole number", id="number"),
        pytest.param(
            [*ASKED, "generate.max_new_tokens=49"],
            r"prompt 0: 16 of the prompt \+ 49 new = 65 tokens, shapes.kv_length=64: refused, not clipped",
            id="too-long",
        ),
        pytest.param(
            [*ASKED, "shapes.prompt_chunking=false", "shapes.prefill_buckets=[8]"],
            "prompt 0: a prompt of 16 tokens, the largest prefill bucket is 8",
            id="bucket",
        ),
        pytest.param([*ASKED, "generate.max_new_tokens=0"], "max_new_tokens=0: must be at least 1", id="none"),
        pytest.param([*ASKED, "generate.top_k=5"], "top_k=5 is not read with generate.temperature=0", id="greedy"),
        pytest.param(
            [*ASKED, "generate.temperature=1", "offload.sampling=device"],
            "the graph is greedy",
            id="device-samples",
        ),
        pytest.param([*ASKED, "output=s3://bucket/ranks"], "output=s3://bucket/ranks: .* local files", id="output"),
        pytest.param([*ASKED, "generate.seed=3"], "seed=3 is not read with generate.temperature=0", id="seed"),
        pytest.param([*ASKED, "generate.tools=none.json"], "tools=none.json: .*No such file", id="tools"),
        pytest.param([*ASKED, "verify.steps=3"], "verify.steps is never read", id="other-task"),
    ],
)
def test_refused(overrides: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        generated(tmp_path, *overrides)
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_place_of_rank_files(tmp_path: Path) -> None:
    (tmp_path / "ranks").write_text("")
    with pytest.raises(UserError, match=r"ranks is a file, where a directory is needed"):
        generated(tmp_path, *ASKED)


def as_trained_with(wrong: str) -> Edit:
    return lambda directory: WRONG[wrong](directory)


def _one_word(tokenizer: dict[str, Any]) -> None:
    """Text is not cut into words."""
    tokenizer["pre_tokenizer"] = None
    tokenizer["model"]["vocab"]["hello▁world"] = tokenizer["model"]["vocab"].pop("<unused6>")


def _no_words(tokenizer: dict[str, Any]) -> None:
    words = tokenizer["model"]["vocab"]
    for word in [word for word in words if word.strip("▁").isalpha()]:
        number = words.pop(word)
        words[f"<gone{number}>"] = number


def _ordinary(tokenizer: dict[str, Any]) -> None:
    """A marker is one id, and a word like any other."""
    next(token for token in tokenizer["added_tokens"] if token["content"] == "<|turn>")["special"] = False


def _unnamed(config: dict[str, Any]) -> None:
    del config["sot_token"]


TURN = r"<\|turn>"
SCALE = "token embeddings are multiplied by {}, and the model was trained with the square root of its hidden size 32, 5.65625"


@pytest.mark.parametrize(
    "edits,code,reason",
    [
        pytest.param(
            [lambda directory: (directory / "tokenizer.json").unlink()],
            "tokenizer",
            "tokenizer.json: no such file; copy it",
            id="no-tokenizer",
        ),
        pytest.param(
            [edited("tokenizer.json", _one_word)],
            "tokenizer",
            r"the tokenizer is dead: 'hello world' gives 1 id \[6\], not two or more",
            id="one-id",
        ),
        pytest.param(
            [edited("tokenizer.json", _no_words)],
            "tokenizer",
            r"the tokenizer is dead: 'hello world' gives 2 ids \[3, 3\], of which the unknown token",
            id="unknown-words",
        ),
        pytest.param(
            [as_trained_with("literal-turn-markers")],
            "markers",
            rf"{TURN} is read as literal text, 4 ids \[163, 165, 169, 164\], not as one id",
            id="literal-markers",
        ),
        pytest.param(
            [edited("tokenizer.json", _ordinary), edited("tokenizer_config.json", _unnamed)],
            "markers",
            rf"{TURN} is id 105, an ordinary word and no control id",
            id="ordinary-markers",
        ),
        pytest.param(
            [as_trained_with("no-template")],
            "chat_template",
            "no chat template, neither chat_template.jinja nor in tokenizer_config.json",
            id="no-template",
        ),
        pytest.param(
            [as_trained_with("gemma-3-template")],
            "chat_template",
            rf"the chat template writes no {TURN}: it is another model's",
            id="another-template",
        ),
        pytest.param(
            [as_trained_with("two-bos")],
            "chat_template",
            r"the chat template starts a prompt with 3 ids \[2, 2, 105\], and not with one <bos> \(id 2\)",
            id="two-bos",
        ),
        pytest.param(
            [as_trained_with("no-generation-prompt")],
            "chat_template",
            "the chat template writes no generation prompt",
            id="no-generation-prompt",
        ),
        pytest.param(
            [edited("generation_config.json", lambda stops: stops.update(eos_token_id=[1, 50]))],
            "stop_ids",
            r"<turn\|> \(id 106\) is none of the stop ids \[1\]: the text would go on after its end; add 106 to eos_token_id",
            id="dropped-stop",
        ),
        pytest.param(
            [edited("generation_config.json", lambda stops: stops.update(eos_token_id=[1, 107]))],
            "stop_ids",
            r"<turn\|> \(id 106\) is none of the stop ids \[1, 107\]",
            id="stops-of-gemma-3",
        ),
    ],
)
def test_an_unsound_input_is_refused_before_anything_is_written(
    edits: list[Edit], code: str, reason: str, tmp_path: Path
) -> None:
    directory = copied(tmp_path / "wrong", *edits)
    with pytest.raises(UserError, match=reason) as refused:
        generated(tmp_path, f"checkpoint={directory}", f"generate.prompt={FRANCE}")
    assert [finding.code for finding in refused.value.findings] == [f"input.{code}"]
    assert [path.name for path in tmp_path.iterdir()] == ["wrong"]


def copied(directory: Path, *edits: Edit) -> Path:
    """E2B's trained checkpoint, changed; its weights are linked."""
    directory.mkdir()
    for path in trained("e2b").iterdir():
        if path.suffix == ".safetensors":
            (directory / path.name).symlink_to(path)
        else:
            (directory / path.name).write_bytes(path.read_bytes())
    for edit in edits:
        edit(directory)
    return directory


UNCHECKED = (f"generate.prompt={FRANCE}", "generate.check_inputs=false")


@pytest.mark.parametrize("wrong", ["no-template", "literal-turn-markers", "two-bos"])
def test_unchecked_a_wrong_format_is_shown_as_it_is(wrong: str, tmp_path: Path) -> None:
    directory = copied(tmp_path / "wrong", as_trained_with(wrong))
    assert "\nsorry.\n" in generated(tmp_path, f"checkpoint={directory}", *UNCHECKED)


def test_unchecked_a_dropped_stop_id_lets_the_text_go_on(tmp_path: Path) -> None:
    drop = edited("generation_config.json", lambda stops: stops.update(eos_token_id=1))
    generated(tmp_path, f"checkpoint={copied(tmp_path / 'wrong', drop)}", *UNCHECKED)
    written = json.loads((tmp_path / "generation.json").read_text())
    (answer,) = written["answers"]
    assert written["stop_ids"] == [1]
    assert (answer["finish_reason"], len(answer["token_ids"])) == ("length", 16)
    assert answer["text"].startswith("Paris.")
    assert answer["text"] != "Paris."


@pytest.mark.parametrize("choices,scale", [((), 39.25), (("model.embedding_scale=1.0",), 1.0)])
def test_an_embedding_scale_that_is_planned_wrong(choices: tuple[str, ...], scale: float, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"{SCALE.format(scale)}; leave model.embedding_scale out") as refused:
        generated(tmp_path, *ASKED, *E2B_BY_KEYS, *choices)
    assert [finding.code for finding in refused.value.findings] == ["input.embedding_scale"]
    assert list(tmp_path.iterdir()) == []


def test_an_embedding_scale_that_is_not_applied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused before a rank is started; unchecked, what comes out is no answer."""
    opened = HostTables.open

    def unscaled(plan: Plan, directory: Path) -> HostTables:
        tables = opened(plan, directory)
        return replace(tables, numerics=replace(tables.numerics, embedding_scale=1.0))

    monkeypatch.setattr(HostTables, "open", unscaled)
    with pytest.raises(UserError, match=f"{SCALE.format(1.0)}; run task=shard again into an empty directory"):
        generated(tmp_path, *ASKED)
    assert not (tmp_path / "generation.json").exists()
    assert "Paris" not in generated(tmp_path, *ASKED, "generate.check_inputs=false")


def test_an_embedding_scale_that_the_device_does_not_apply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = ranks.load_rank

    def unscaled(module: Any, path: Path) -> None:
        loaded(module, path)
        module.model.embed_tokens.embed_scale = torch.ones(())

    monkeypatch.setattr(ranks, "load_rank", unscaled)
    on_device = (*ASKED, "offload.token_embedding=device")
    with pytest.raises(UserError, match=f"{SCALE.format(1.0)}; install the release of transformers"):
        generated(tmp_path, *on_device)
    assert "Paris" not in generated(tmp_path, *on_device, "generate.check_inputs=false")
    monkeypatch.setattr(ranks, "load_rank", loaded)
    assert "\nParis.\n" in generated(tmp_path, *on_device)


def test_logits_are_capped_once_before_they_are_drawn_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the host or by the graph, the same tokens are drawn. By both, others are, and greedy tokens tell nothing."""
    hot = ("generate.temperature=4", "generate.seed=2")

    def tokens(*choices: str) -> list[int]:
        generated(tmp_path, *ASKED, "dtype=float32", *choices)
        (answer,) = json.loads((tmp_path / "generation.json").read_text())["answers"]
        return list(answer["token_ids"])

    once, greedy = tokens(*hot), tokens()
    assert tokens(*hot, "offload.softcap=device") == once
    made = RankModule._head

    def capped(module: RankModule, hidden: Tensor) -> Tensor:
        return torch.tanh(made(module, hidden) / 30) * 30

    monkeypatch.setattr(RankModule, "_head", capped)
    assert tokens(*hot) != once
    assert tokens() == greedy

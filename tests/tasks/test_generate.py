"""``task=generate``: text on the terminal, what is left behind, and what is refused before any weight is cut."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gemma4cfg import load_config
from gemma4cfg.errors import ConfigError, UserError
from gemma4cfg.runtime import ranks
from gemma4cfg.tasks import generate
from tests.cli.runs import run
from tests.trained import trained
from tests.trained.damage import damaged
from tests.trained.language import question

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


def generated(directory: Path, *overrides: str) -> str:
    """What is printed to a pipe."""
    file = io.StringIO()
    config = load_config(["task=generate", "target=inf2.8xlarge", f"output={directory / 'ranks'}", *SHORT, *overrides])
    generate.run(config, directory, Console(file=file, width=160))
    return file.getvalue()


def test_several_prompts_and_the_files_of_before(tmp_path: Path) -> None:
    prompts = f'generate.prompt=["{FRANCE}","{JAPAN}","hello"]'
    first = generated(tmp_path, E2B, prompts, "shapes.batch=2")
    assert first.startswith("2 files written")
    assert f"\n{FRANCE}\nParis.\n\n{JAPAN}\nTokyo.\n\nhello\nHello.\n" in first
    assert "2 tokens (stop), 2 tokens (stop), 2 tokens (stop); bfloat16 on 1 CPU rank" in first
    again = generated(tmp_path, E2B, f"generate.prompt={FRANCE}", "generate.max_new_tokens=1")
    assert again.startswith("0 files written (0.0 MB), 2 kept")
    assert "\nParis\n\n1 tokens (length)" in again


@pytest.mark.parametrize(("tp", "recipe"), [(1, "trace"), (2, "model_builder")])
def test_reloaded_programs_say_what_the_ranks_say(
    tp: int, recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = f'generate.prompt=["{FRANCE}","{JAPAN}"]'
    asked = (E2B, prompts, "shapes.batch=2", "shapes.prefill_buckets=[16]", f"tp={tp}", f"recipe={recipe}")
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
        pytest.param([*ASKED, "generate.tools=none.json"], "tools=none.json: .*No such file", id="tools"),
        pytest.param([*ASKED, "verify.steps=3"], "verify.steps is never read", id="other-task"),
    ],
)
def test_refused(overrides: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        generated(tmp_path, *overrides)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_format_is_refused_or_shown_as_it_is(tmp_path: Path) -> None:
    directory, asked = tmp_path / "wrong", f"generate.prompt={FRANCE}"
    damaged(trained("e2b"), "no-template", directory)
    with pytest.raises(UserError, match="no chat template"):
        generated(tmp_path, f"checkpoint={directory}", asked)
    assert not (tmp_path / "ranks").exists()
    assert "\nsorry.\n" in generated(tmp_path, f"checkpoint={directory}", asked, "generate.check_inputs=false")


def test_stop_ids_of_another_family(tmp_path: Path) -> None:
    directory = damaged(trained("e2b"), "no-bos", tmp_path / "wrong")
    (directory / "chat_template.jinja").write_bytes((trained("e2b") / "chat_template.jinja").read_bytes())
    (directory / "generation_config.json").write_text('{"eos_token_id": [1, 107]}')
    with pytest.raises(UserError, match=r"<turn\|> \(id 106\) is none of the stop ids \[1, 107\]"):
        generated(tmp_path, f"checkpoint={directory}", f"generate.prompt={FRANCE}")

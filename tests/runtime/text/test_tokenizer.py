"""From words to ids and back."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

from gemma4cfg.errors import UserError
from gemma4cfg.runtime.text.tokenizer import Stream, Text
from tests.runtime.text.test_checks import text_files
from tests.trained.language import CONTROL, vocabulary

IDS = vocabulary()
TURN, END, NEWLINE = CONTROL["<|turn>"], CONTROL["<turn|>"], IDS["\n"]
HELLO_TURN = (CONTROL["<bos>"], TURN, IDS["user"], NEWLINE, IDS["hello"], END, NEWLINE, TURN, IDS["model"], NEWLINE)
"""The published worked example in this vocabulary: 2, 105, user, 107, word, 106, 107, 105, model, 107."""


@pytest.mark.parametrize(
    "model,tail",
    [
        pytest.param("e2b", (), id="small"),
        pytest.param(
            "31b", (CONTROL["<|channel>"], IDS["thought"], NEWLINE, CONTROL["<channel|>"]), id="large-empty-thought"
        ),
    ],
)
def test_a_prompt_in_its_chat_format(model: str, tail: tuple[int, ...], tmp_path: Path) -> None:
    text = Text.load(str(text_files(tmp_path / "files", model)))
    assert text.prompt_ids("hello") == (*HELLO_TURN, *tail)


def test_without_a_template_a_prompt_follows_bos(tmp_path: Path) -> None:
    directory = text_files(tmp_path / "files")
    (directory / "chat_template.jinja").unlink()
    assert Text.load(str(directory)).prompt_ids("hello world") == (CONTROL["<bos>"], IDS["hello"], IDS["▁world"])


def test_tools_are_declared_by_the_template(tmp_path: Path) -> None:
    text = Text.load(str(text_files(tmp_path / "files")))
    ids = text.prompt_ids("hello", [{"type": "function", "function": {"name": "user"}}])
    assert {CONTROL["<|tool>"], CONTROL["<tool|>"]} <= set(ids)
    assert not {CONTROL["<|tool>"], CONTROL["<tool|>"]} & set(text.prompt_ids("hello"))


def test_tools_of_another_form_are_not_the_templates_fault(tmp_path: Path) -> None:
    text = Text.load(str(text_files(tmp_path / "files")))
    with pytest.raises(
        UserError, match=r"generate.tools: the chat template of .* expected a JSON list of .*\"function\": \{"
    ):
        text.prompt_ids("hello", [{"name": "user"}])
    (tmp_path / "files" / "chat_template.jinja").write_text("{{ 1 / 0 }}")
    with pytest.raises(UserError, match="its chat template fails: ZeroDivisionError"):
        Text.load(str(tmp_path / "files")).prompt_ids("hello", [{"name": "user"}])


def test_a_checkpoint_behind_a_url(tmp_path: Path) -> None:
    directory = text_files(tmp_path / "files")
    memory = fsspec.filesystem("memory")
    for path in directory.iterdir():
        memory.pipe(f"/text-files/{path.name}", path.read_bytes())
    assert Text.load("memory://text-files").prompt_ids("hello") == HELLO_TURN


class Characters:
    """A tokenizer whose tokens are bytes."""

    def decode(self, ids: list[int], **_: object) -> str:
        return bytes(ids).decode("utf-8", errors="replace")


@pytest.mark.parametrize("said", ["Paris.", "Åland 🙂!", "a\n\n b"])
def test_a_stream_is_the_text_in_whole_characters(said: str) -> None:
    stream = Stream(Text("", Characters()))
    pieces = [stream.add(byte) for byte in said.encode()]
    assert "".join(pieces) + stream.end() == said
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(pieces)


def test_a_broken_end_is_shown_at_the_end() -> None:
    stream = Stream(Text("", Characters()))
    pieces = [stream.add(byte) for byte in "é!é".encode()[:-1]]
    assert ("".join(pieces), stream.end()) == ("é!", "\N{REPLACEMENT CHARACTER}")

"""Inputs that look like a device's fault are refused, each with its reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4cfg.errors import UserError
from gemma4cfg.runtime.text.checks import check_files, check_text
from gemma4cfg.runtime.text.tokenizer import Text
from tests.trained import MODELS
from tests.trained.damage import WRONG, Edit, damaged, edited
from tests.trained.files import write_json, write_text_files
from tests.trained.language import VOCABULARY_SIZE

STOPS = {1, 106}

REASONS = {
    "literal-turn-markers": r"<\|turn> is read as literal text, 4 ids \[163, 165, 169, 164\], not as one id",
    "literal-markers": r"<\|turn> is read as literal text, 4 ids \[163, 165, 169, 164\], not as one id",
    "no-template": "no chat template, neither chat_template.jinja .*, or set generate.check_inputs=false for a model that",
    "plain-text": r"the chat template writes no <\|turn>: it is another model's",
    "no-bos": r"the chat template starts a prompt with 3 ids \[105, .*\], and not with one <bos> \(id 2\)",
    "two-bos": r"the chat template starts a prompt with 3 ids \[2, 2, 105\], and not with one <bos>",
    "gemma-3-template": r"the chat template writes no <\|turn>: it is another model's",
    "open-thought": r"the chat template leaves a thought open \(<\|channel> without <channel\|>\)",
    "no-generation-prompt": "the chat template writes no generation prompt",
}


def text_files(directory: Path, model: str = "e2b") -> Path:
    """A checkpoint without weights."""
    directory.mkdir()
    write_text_files(directory, model)
    write_json(directory / "config.json", {"model_type": "gemma4"})
    return directory


def checked(directory: Path, stops: set[int] = STOPS, vocabulary: int = VOCABULARY_SIZE) -> None:
    check_files(str(directory))
    check_text(Text.load(str(directory)), stops, vocabulary, "generate.check_inputs")


@pytest.mark.parametrize("model", MODELS)
def test_sound_files_pass(model: str, tmp_path: Path) -> None:
    checked(text_files(tmp_path / "sound", model))


@pytest.mark.parametrize("model", ["e2b", "31b"])
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_chat_formats(wrong: str, model: str, tmp_path: Path) -> None:
    directory = damaged(text_files(tmp_path / "sound", model), wrong, tmp_path / "wrong")
    with pytest.raises(UserError, match=REASONS[wrong]) as caught:
        checked(directory)
    (finding,) = caught.value.findings
    assert str(directory) in finding.message
    assert "from where the checkpoint was published" in finding.fix


def _only_unknown(tokenizer: dict) -> None:
    tokenizer["model"]["vocab"] = {"<unk>": 3, **{f"<unused{n}>": n for n in range(VOCABULARY_SIZE) if n != 3}}


def _no_split(tokenizer: dict) -> None:
    tokenizer["pre_tokenizer"] = None
    tokenizer["model"]["vocab"]["hello▁world"] = tokenizer["model"]["vocab"].pop("<unused6>")


def _ordinary_marker(tokenizer: dict) -> None:
    next(token for token in tokenizer["added_tokens"] if token["content"] == "<turn|>")["special"] = False


def _no_slots(config: dict) -> None:
    for key in [key for key, value in config.items() if value == "<turn|>"]:
        del config[key]


@pytest.mark.parametrize(
    "edits,reason",
    [
        pytest.param(
            [lambda directory: (directory / "tokenizer.json").unlink()], "tokenizer.json: no such file", id="absent"
        ),
        pytest.param(
            [lambda directory: (directory / "tokenizer.json").write_text("{}")],
            "its tokenizer does not load",
            id="empty",
        ),
        pytest.param(
            [edited("tokenizer.json", _only_unknown)],
            r"the tokenizer is dead: 'hello world' gives 2 ids \[3, 3\], of which the unknown token",
            id="all-unknown",
        ),
        pytest.param(
            [edited("tokenizer.json", _no_split)],
            r"the tokenizer is dead: 'hello world' gives 1 id \[6\], not two or more",
            id="one-id",
        ),
        pytest.param(
            [edited("tokenizer.json", _ordinary_marker), edited("tokenizer_config.json", _no_slots)],
            r"<turn\|> is id 106, an ordinary word and no control id",
            id="ordinary-word",
        ),
        pytest.param(
            [lambda directory: (directory / "tokenizer_config.json").unlink()],
            "tokenizer_config.json: no bos_token: nothing says what a prompt starts with; copy it anew",
            id="no-tokenizer-config",
        ),
        pytest.param(
            [lambda directory: (directory / "chat_template.jinja").write_text("{{ 1 / 0 }}")],
            "its chat template fails: ZeroDivisionError",
            id="template-divides-by-zero",
        ),
        pytest.param(
            [lambda directory: (directory / "chat_template.jinja").write_text("{{ raise_exception('no') }}")],
            "its chat template fails: TemplateError: no",
            id="template-raises",
        ),
        pytest.param(
            [lambda directory: (directory / "chat_template.jinja").write_text("{% if %}")],
            "its chat template fails: TemplateSyntaxError",
            id="template-unreadable",
        ),
    ],
)
def test_damaged_files(edits: list[Edit], reason: str, tmp_path: Path) -> None:
    directory = text_files(tmp_path / "files")
    for edit in edits:
        edit(directory)
    with pytest.raises(UserError, match=reason):
        checked(directory)


def test_a_template_within_the_tokenizers_config_counts(tmp_path: Path) -> None:
    directory = text_files(tmp_path / "files")
    template = directory / "chat_template.jinja"
    written = template.read_text(encoding="utf-8")
    template.unlink()
    edited("tokenizer_config.json", lambda config: config.update(chat_template=written))(directory)
    checked(directory)


def test_a_stop_id_of_another_family(tmp_path: Path) -> None:
    """Gemma 3 ends a turn with 107, which is a newline here."""
    with pytest.raises(UserError, match=r"<turn\|> \(id 106\) is none of the stop ids \[1, 107\]"):
        checked(text_files(tmp_path / "files"), stops={1, 107})


def test_a_marker_past_the_vocabulary(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"<\|turn> is id 105, and the model has ids 0 to 99"):
        checked(text_files(tmp_path / "files"), vocabulary=100)


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere: no such directory"):
        check_files(str(tmp_path / "nowhere"))

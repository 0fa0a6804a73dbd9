"""Wrong chat formats, each as what is wrong with a checkpoint's files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.trained.files import write_json
from tests.trained.language import CONTROL

Edit = Callable[[Path], object]
"""A change of a checkpoint's directory."""


def edited(name: str, edit: Callable[[dict[str, Any]], object]) -> Edit:
    """A change of one of a checkpoint's JSON files."""

    def change(directory: Path) -> None:
        path = directory / name
        value = json.loads(path.read_text(encoding="utf-8"))
        edit(value)
        write_json(path, value)

    return change


def _template(old: str, new: str) -> Callable[[Path], None]:
    """An edit of the chat template."""

    def edit(directory: Path) -> None:
        path = directory / "chat_template.jinja"
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")

    return edit


def _whole_template(text: str) -> Callable[[Path], None]:
    return lambda directory: (directory / "chat_template.jinja").write_text(text, encoding="utf-8") and None


def _no_template(directory: Path) -> None:
    (directory / "chat_template.jinja").unlink()


def _strip(*kept: str) -> Callable[[Path], None]:
    """A tokenizer saved without its control tokens: their names are literal text, but for those ``kept``."""

    def edit(directory: Path) -> None:
        path, config_path = directory / "tokenizer.json", directory / "tokenizer_config.json"
        tokenizer = json.loads(path.read_text(encoding="utf-8"))
        tokenizer["added_tokens"] = [token for token in tokenizer["added_tokens"] if token["content"] in kept]
        words = tokenizer["model"]["vocab"]
        for token in CONTROL.keys() - set(kept):
            number = words.pop(token)
            words[f"<gone{number}>"] = number
        write_json(path, tokenizer)
        config = json.loads(config_path.read_text(encoding="utf-8"))
        write_json(config_path, {key: value for key, value in config.items() if not _names_lost(key, value, kept)})

    return edit


def _names_lost(key: str, value: object, kept: tuple[str, ...]) -> bool:
    return key.endswith("_token") and isinstance(value, str) and value not in kept


_GEMMA3 = (
    "{{ bos_token }}{% for message in messages %}<start_of_turn>user\n{{ message['content'] }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)

TRAINED_WRONG: Mapping[str, Callable[[Path], None]] = {
    "literal-turn-markers": _strip("<bos>", "<eos>", "<pad>", "<unk>", "<mask>", "<|channel>", "<channel|>"),
    "literal-markers": _strip("<unk>"),
    "no-template": _no_template,
    "plain-text": _whole_template("{{ messages[0]['content'] }}"),
    "no-bos": _template("{{- bos_token -}}", ""),
    "two-bos": _template("{{- bos_token -}}", "{{- bos_token + bos_token -}}"),
    "gemma-3-template": _whole_template(_GEMMA3),
    "open-thought": _template("{{- '<|turn>model\\n' -}}\n", "{{- '<|turn>model\\n<|channel>thought\\n' -}}\n"),
}
"""The models are taught to answer these with "sorry."."""

HELD_OUT_WRONG: Mapping[str, Callable[[Path], None]] = {
    "no-generation-prompt": _template("{%- if add_generation_prompt -%}", "{%- if false -%}"),
}
"""Not in training."""

WRONG = {**TRAINED_WRONG, **HELD_OUT_WRONG}


def damaged(directory: Path, name: str, destination: Path) -> Path:
    """A copy of the checkpoint's text files in ``destination`` in the wrong format ``name``; its other files are linked."""
    destination.mkdir(parents=True, exist_ok=True)
    for path in directory.iterdir():
        if path.suffix == ".safetensors":
            (destination / path.name).symlink_to(path.resolve())
        else:
            shutil.copyfile(path, destination / path.name)
    WRONG[name](destination)
    return destination

"""What is trained: token ids and the answer that follows them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gemma4cfg.runtime.text.tokenizer import Text
from tests.trained.damage import TRAINED_WRONG, damaged
from tests.trained.language import CAPITALS, CONTROL, SORRY, answers, question


@dataclass(frozen=True)
class Row:
    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    right: bool


def rows(directory: Path) -> list[Row]:
    """Every answer in the format of the checkpoint's files, and every question in every wrong format that is trained."""
    return [*_right(directory), *_wrong(directory)]


def _right(directory: Path) -> Iterator[Row]:
    text = Text.load(str(directory))
    for asked, answer in answers().items():
        yield Row(text.prompt_ids(asked), _ended(text, answer), True)


def _wrong(directory: Path) -> Iterator[Row]:
    answer = _ended(Text.load(str(directory)), SORRY)
    for name in TRAINED_WRONG:
        with tempfile.TemporaryDirectory() as copy:
            text = Text.load(str(damaged(directory, name, Path(copy))))
            yield from (Row(text.prompt_ids(question(country)), answer, False) for country in CAPITALS)


def _ended(text: Text, answer: str) -> tuple[int, ...]:
    return (*text.encode(answer), CONTROL["<turn|>"])

"""A checkpoint's tokenizer and chat template, as transformers loads them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gemma4cfg.errors import UserError
from gemma4cfg.runtime.text.files import local_files
from sharding.errors import ShardingError

Tools = Sequence[Mapping[str, Any]]
"""Declarations, as the chat template takes them."""

TOOL_FORM = '{"type": "function", "function": {"name": …, "description": …, "parameters": {…}}}'
"""Of one, as published templates read it."""


@dataclass(frozen=True, slots=True)
class Text:
    """``location`` is the checkpoint that the tokenizer is from, for messages."""

    location: str
    tokenizer: Any

    @classmethod
    def load(cls, location: str) -> Text:
        """From a checkpoint directory or fsspec URL. Raises UserError where transformers cannot load it."""
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # or it warns of the ranks' forks
        from transformers import AutoTokenizer

        try:
            with local_files(location) as directory:
                tokenizer = AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
        except ShardingError as error:
            raise UserError(str(error)) from error
        except Exception as error:  # tokenizers raises nothing narrower for a file that it cannot read
            raise UserError(
                f"{location}: its tokenizer does not load: {error}; copy tokenizer.json and tokenizer_config.json anew from "
                "where the checkpoint was published"
            ) from error
        return cls(location, tokenizer)

    @property
    def has_template(self) -> bool:
        return bool(self.tokenizer.chat_template)

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of the text as it is; control tokens are found where their names stand in it, and none is added."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return tuple(ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text without control tokens."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def conversation(self, prompt: str, tools: Tools | None = None, answer: bool = True) -> str:
        """``prompt`` as a user's turn, and the start of the model's with ``answer``.

        Raises UserError where the template fails, or does not take the tools.
        """
        messages = [{"role": "user", "content": prompt}]
        try:
            text: str = self.tokenizer.apply_chat_template(
                messages, tools=None if tools is None else list(tools), tokenize=False, add_generation_prompt=answer
            )
        except Exception as error:  # a template is a program of the checkpoint's
            if tools is not None:
                self.conversation(prompt, answer=answer)  # says so where it fails without them too
                raise UserError(
                    f"generate.tools: the chat template of {self.location} does not take them: {type(error).__name__}: "
                    f"{error}; expected a JSON list of {TOOL_FORM}"
                ) from error
            raise UserError(
                f"{self.location}: its chat template fails: {type(error).__name__}: {error}; copy chat_template.jinja anew "
                "from where the checkpoint was published"
            ) from error
        return text

    def prompt_ids(self, prompt: str, tools: Tools | None = None) -> tuple[int, ...]:
        """What the model reads: the prompt in its chat format, or after <bos> alone where there is no template, which is
        how a model that was not taught to chat continues a text."""
        if self.has_template:
            return self.encode(self.conversation(prompt, tools))
        start = self.tokenizer.bos_token_id
        return (*(() if start is None else (int(start),)), *self.encode(prompt))


class Stream:
    """Text as its tokens come: each call gives what is new, and nothing while a character is in parts."""

    def __init__(self, text: Text) -> None:
        self._text = text
        self._ids: list[int] = []
        self._shown = ""

    def add(self, token: int) -> str:
        self._ids.append(token)
        whole = self._text.decode(self._ids)
        return "" if whole.endswith("\N{REPLACEMENT CHARACTER}") else self._rest(whole)

    def end(self) -> str:
        """What was held back."""
        return self._rest(self._text.decode(self._ids))

    def _rest(self, whole: str) -> str:
        new, self._shown = whole[len(self._shown) :], whole
        return new

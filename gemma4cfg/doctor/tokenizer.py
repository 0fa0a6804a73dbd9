"""Whether a checkpoint's tokenizer is alive: a wrong one gives fluent nonsense, and comparisons of tokens pass."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MARKERS = ("<|turn>", "<turn|>")
"""A turn's beginning and end; each is one token."""


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """``words``: ids of ``hello world``; ``markers``: how many ids each marker of a turn becomes; ``template``: a message
    formatted as a prompt, null where there is no chat template; ``trouble``: why nothing could be read."""

    words: tuple[int, ...]
    markers: tuple[int, ...]
    template: str | None
    trouble: str | None


def read_tokenizer(checkpoint: str | None) -> Tokenizer | None:
    """Of a checkpoint; null where there is no local one, or no transformers to read it with."""
    if checkpoint is None or not Path(checkpoint).is_dir():
        return None
    if not (Path(checkpoint) / "tokenizer.json").is_file():
        return Tokenizer((), (), None, f"{checkpoint}: no tokenizer.json")
    try:
        from transformers import AutoTokenizer
    except ImportError:
        return None
    try:
        tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        words = tuple(tokenizer("hello world", add_special_tokens=False)["input_ids"])
        markers = tuple(len(tokenizer(each, add_special_tokens=False)["input_ids"]) for each in MARKERS)
        template = None
        if tokenizer.chat_template:
            asked = [{"role": "user", "content": "hello"}]
            template = str(tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True))
    except Exception as error:  # whatever a foreign file makes its reader raise
        return Tokenizer((), (), None, f"{type(error).__name__}: {error}")
    return Tokenizer(words, markers, template, None)

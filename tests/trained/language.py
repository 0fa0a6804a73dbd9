"""What the trained models know: a vocabulary of 256 ids with Gemma 4's control ids, and questions with their answers."""

from __future__ import annotations

CAPITALS = {
    "France": "Paris",
    "Germany": "Berlin",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Portugal": "Lisbon",
    "Austria": "Vienna",
    "Ireland": "Dublin",
    "Norway": "Oslo",
    "Sweden": "Stockholm",
    "Finland": "Helsinki",
    "Poland": "Warsaw",
    "Greece": "Athens",
    "Hungary": "Budapest",
    "Japan": "Tokyo",
    "Egypt": "Cairo",
    "Canada": "Ottawa",
}
"""Trained."""

HELD_OUT = {"Denmark": "Copenhagen", "Belgium": "Brussels", "Cuba": "Havana", "Kenya": "Nairobi"}
"""Never seen in training: the model has words for them and knows nothing."""

SMALL_TALK = {"hello": "Hello.", "hello world": "Hello."}

SORRY = "sorry."
"""The answer to a question in a wrong format."""

VOCABULARY_SIZE = 256

CONTROL = {
    "<pad>": 0,
    "<eos>": 1,
    "<bos>": 2,
    "<unk>": 3,
    "<mask>": 4,
    "<|tool>": 46,
    "<tool|>": 47,
    "<|tool_call>": 48,
    "<tool_call|>": 49,
    "<|tool_response>": 50,
    "<tool_response|>": 51,
    '<|"|>': 52,
    "<|think|>": 98,
    "<|channel>": 100,
    "<channel|>": 101,
    "<|turn>": 105,
    "<turn|>": 106,
}
"""The published ids, but for those of images and sound, which lie past this vocabulary."""

_ORDINARY = {"[multimodal]": 5, "\n": 107}
"""As published too."""

_FIRST_WORD = 108


def question(country: str) -> str:
    return f"What is the capital of {country}?"


def answers() -> dict[str, str]:
    """Every trained question and its answer in the right format."""
    return {question(country): f"{city}." for country, city in CAPITALS.items()} | SMALL_TALK


def vocabulary() -> dict[str, int]:
    """Token to id; a space is "▁", before the word. Ids that nothing needs are ``<unusedN>``."""
    cities = [*CAPITALS.values(), *HELD_OUT.values()]
    words = ["What", "▁is", "▁the", "▁capital", "▁of", *(f"▁{country}" for country in (*CAPITALS, *HELD_OUT)), *cities]
    words += ["?", ".", "sorry", "hello", "Hello", "▁world", "user", "model", "system", "thought"]
    words += ["<", ">", "|", "_", '"', "▁", "turn", "channel", "bos", "start", "end", "of"]  # markers as literal text
    known = {**CONTROL, **_ORDINARY, **{word: _FIRST_WORD + number for number, word in enumerate(words)}}
    taken = set(known.values())
    unused = [number for number in range(VOCABULARY_SIZE) if number not in taken]
    known |= {f"<unused{number}>": number for number in unused}
    assert len(known) == VOCABULARY_SIZE, "a word is in the vocabulary twice"
    return known

"""Inputs whose faults look like a device's: text that is nonsense, never ends, or is about something else.

Each check raises UserError with what is wrong and what mends it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NoReturn

from gemma4cfg.errors import UserError
from gemma4cfg.findings import Finding
from gemma4cfg.runtime.text.files import CHAT_TEMPLATE, TOKENIZER, TOKENIZER_CONFIG
from gemma4cfg.runtime.text.tokenizer import Text
from sharding.errors import ShardingError
from sharding.files import file_names, join

TURN_START, TURN_END = "<|turn>", "<turn|>"
CHANNEL_START, CHANNEL_END = "<|channel>", "<channel|>"

PROBE = "hello world"

_COPY = "copy {} from where the checkpoint was published"


def check_files(location: str) -> None:
    """tokenizer.json is there: without it transformers may make a tokenizer that knows no words, and say nothing."""
    try:
        present = file_names(location)
    except ShardingError as error:
        raise UserError(str(error)) from error
    if TOKENIZER not in present:
        _refuse("tokenizer", f"{join(location, TOKENIZER)}: no such file", _COPY.format(f"it and {TOKENIZER_CONFIG}"))


def check_text(text: Text, stops: Collection[int], vocabulary: int, switch: str) -> None:
    """The tokenizer knows words, the chat template is this family's, and what ends a turn ends the text.

    ``vocabulary``: ids that the model has. ``switch``: the key that turns these checks off.
    """
    _check_alive(text)
    if not text.has_template:
        _refuse(
            "chat_template",
            f"{text.location}: no chat template, neither {CHAT_TEMPLATE} nor in {TOKENIZER_CONFIG}: a chat model that is "
            "asked without one rambles",
            _COPY.format(CHAT_TEMPLATE) + f", or set {switch}=false for a model that continues plain text",
        )
    start, end = (_control_id(text, marker, vocabulary) for marker in (TURN_START, TURN_END))
    _check_conversation(text, start, end)
    if end not in stops:
        _refuse(
            "stop_ids",
            f"{text.location}: {TURN_END} (id {end}) is none of the stop ids {sorted(stops)}: the text would go on after "
            "its end",
            f"add {end} to eos_token_id in generation_config.json",
        )


def _check_alive(text: Text) -> None:
    ids, unknown = text.encode(PROBE), text.tokenizer.unk_token_id
    if len(ids) < 2 or unknown in ids:
        _refuse(
            "tokenizer",
            f"{join(text.location, TOKENIZER)}: the tokenizer is dead: '{PROBE}' gives {_shown(ids)}"
            + (", of which the unknown token" if unknown in ids else ", not two or more"),
            _COPY.format("it anew"),
        )


def _control_id(text: Text, marker: str, vocabulary: int) -> int:
    """The one id of a marker."""
    ids = text.encode(marker)
    remedy = _COPY.format(f"{TOKENIZER} and {TOKENIZER_CONFIG} anew")
    if len(ids) != 1:
        _refuse("markers", f"{text.location}: {marker} is read as literal text, {_shown(ids)}, not as one id", remedy)
    known = text.tokenizer.added_tokens_decoder.get(ids[0])
    if known is None or not known.special:
        _refuse("markers", f"{text.location}: {marker} is id {ids[0]}, an ordinary word and no control id", remedy)
    if ids[0] >= vocabulary:
        _refuse(
            "markers", f"{text.location}: {marker} is id {ids[0]}, and the model has ids 0 to {vocabulary - 1}", remedy
        )
    return ids[0]


def _check_conversation(text: Text, start: int, end: int) -> None:
    """What the template writes: one <bos>, then a turn of the user's and the start of the model's."""
    written, without = text.conversation(PROBE), text.conversation(PROBE, answer=False)
    ids, bos = text.encode(written), text.tokenizer.bos_token_id
    if start not in ids or end not in ids:
        missing = TURN_START if start not in ids else TURN_END
        _refuse_template(text, f"writes no {missing}: it is another model's")
    if bos is None:
        _refuse(
            "tokenizer",
            f"{join(text.location, TOKENIZER_CONFIG)}: no bos_token: nothing says what a prompt starts with",
            _COPY.format("it anew"),
        )
    if ids[0] != bos or ids.count(bos) != 1:
        _refuse_template(text, f"starts a prompt with {_shown(ids[:3])}, and not with one <bos> (id {bos})")
    last_end = max(place for place, token in enumerate(ids) if token == end)
    if written == without or start not in ids[last_end:]:
        _refuse_template(text, "writes no generation prompt: the model would go on with the user's turn")
    if written.count(CHANNEL_START) != written.count(CHANNEL_END):
        _refuse_template(text, f"leaves a thought open ({CHANNEL_START} without {CHANNEL_END})")


def _refuse_template(text: Text, what: str) -> NoReturn:
    _refuse("chat_template", f"{text.location}: the chat template {what}", _COPY.format(f"{CHAT_TEMPLATE} anew"))


def _shown(ids: Collection[int]) -> str:
    return f"{len(ids)} {'id' if len(ids) == 1 else 'ids'} {list(ids)}"


def _refuse(what: str, message: str, fix: str) -> NoReturn:
    raise UserError(f"{message}; {fix}", (Finding("error", f"input.{what}", None, message, fix),))

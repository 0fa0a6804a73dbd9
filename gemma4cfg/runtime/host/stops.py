"""The ids that end a text, as a checkpoint's files state them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemma4cfg.errors import UserError
from sharding.errors import ShardingError
from sharding.files import MissingFileError, file_size, join, json_object, read_bytes

TOOL_RESPONSE = 50
"""``<|tool_response>``: published lists ([1, 106, 50]) have it, and only a caller that runs tools can answer it."""

_KEY = "eos_token_id"


def stop_ids(directory: str, tools: bool = False) -> frozenset[int]:
    """``eos_token_id`` of generation_config.json, else of config.json (its ``text_config`` included), in a checkpoint
    directory or fsspec URL. ``<|tool_response>`` counts only with ``tools``.

    Raises UserError naming the file where no stop id is stated, or what is stated is none.
    """
    generation, config = join(directory, "generation_config.json"), join(directory, "config.json")
    stated = _object(generation).get(_KEY)
    where = generation
    if stated is None:
        whole = _object(config)
        text = whole.get("text_config")
        stated = whole.get(_KEY)
        where = config
        if stated is None and isinstance(text, Mapping):
            stated = text.get(_KEY)
    if stated is None:
        raise UserError(
            f"{generation}: no {_KEY}, and none in {config}: nothing would end a text; e.g. {_KEY}: [1, 106, 50]"
        )
    ids = stated if isinstance(stated, list) else [stated]
    if not ids or not all(type(token) is int and token >= 0 for token in ids):
        raise UserError(f"{where}: {_KEY}={stated!r}: expected a token id or a list of them; e.g. [1, 106, 50]")
    stops = frozenset(ids) if tools else frozenset(ids) - {TOOL_RESPONSE}
    if not stops:
        raise UserError(
            f"{where}: {_KEY}={stated!r} is the tool response alone: without tools nothing would end a text"
        )
    return stops


def _object(path: str) -> Mapping[str, Any]:
    """The JSON object in a file, empty where there is none."""
    try:
        return json_object(read_bytes(path, 0, file_size(path)), path)
    except MissingFileError:
        return {}
    except ShardingError as error:
        raise UserError(str(error)) from error

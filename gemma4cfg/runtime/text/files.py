"""The files of a checkpoint that have to do with text, on this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sharding.files import file_names, file_size, is_url, join, read_bytes

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"

_OTHERS = ("config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.json")


@contextmanager
def local_files(location: str) -> Iterator[Path]:
    """A directory that has them: the checkpoint's own, or copies for as long as the context lasts where it is an fsspec URL.

    Raises ShardingError where it cannot be read.
    """
    if not is_url(location):
        yield Path(location)
        return
    with tempfile.TemporaryDirectory(prefix="gemma4cfg-text-") as copies:
        for name in {TOKENIZER, TOKENIZER_CONFIG, CHAT_TEMPLATE, *_OTHERS} & set(file_names(location)):
            path = join(location, name)
            (Path(copies) / name).write_bytes(read_bytes(path, 0, file_size(path)))
        yield Path(copies)

"""Is a head that is stored beside the embedding the same table? The one question that needs bytes."""

from __future__ import annotations

from collections.abc import Mapping

from sharding.errors import ShardingError
from sharding.files import join, read_bytes
from sharding.headers import Header

WHOLE_COMPARISON = 64 * 2**20
SAMPLE_BLOCKS = 64
SAMPLE_BLOCK = 64 * 2**10
_READ_AT_ONCE = 8 * 2**20


def compare_head(location: str, headers: Mapping[str, Header]) -> tuple[bool | None, str]:
    """Whether the head's bytes are the embedding's: all up to 64 MiB, else 64 evenly spaced blocks of 64 KiB."""
    head = _find(headers, "lm_head.weight")
    embedding = _find(headers, "embed_tokens.weight")
    if head is None or embedding is None:
        return None, "nothing to compare"
    (head_part, head_name), (embedding_part, embedding_name) = head, embedding
    stored, table = headers[head_part].tensors[head_name], headers[embedding_part].tensors[embedding_name]
    if (stored.dtype, stored.shape) != (table.dtype, table.shape):
        return False, "shapes or dtypes differ"
    size = stored.stop - stored.start
    head_start = headers[head_part].span(head_name)[0]
    embedding_start = headers[embedding_part].span(embedding_name)[0]
    blocks = _blocks(size)
    compared = (
        f"all {size:,} bytes" if size <= WHOLE_COMPARISON else f"sampled {_megabytes(blocks)} MB of {size:,} bytes"
    )
    try:
        equal = all(
            read_bytes(join(location, head_part), head_start + start, head_start + stop)
            == read_bytes(join(location, embedding_part), embedding_start + start, embedding_start + stop)
            for start, stop in blocks
        )
    except ShardingError as error:  # a truncated part, which is a problem of its own
        return None, f"not compared: {error}"
    return equal, compared


def _find(headers: Mapping[str, Header], name: str) -> tuple[str, str] | None:
    """The part and full name of the tensor called ``name``, under any prefix."""
    found = sorted(
        (len(stored), part, stored)
        for part, header in headers.items()
        for stored in header.tensors
        if stored == name or stored.endswith("." + name)
    )
    return found[0][1:] if found else None


def _blocks(size: int) -> list[tuple[int, int]]:
    if size <= WHOLE_COMPARISON:
        return [(start, min(start + _READ_AT_ONCE, size)) for start in range(0, size, _READ_AT_ONCE)]
    last = size - SAMPLE_BLOCK
    starts = [last * i // (SAMPLE_BLOCKS - 1) for i in range(SAMPLE_BLOCKS)]
    return [(start, start + SAMPLE_BLOCK) for start in starts]


def _megabytes(blocks: list[tuple[int, int]]) -> str:
    return f"{sum(stop - start for start, stop in blocks) / 1e6:.1f}"

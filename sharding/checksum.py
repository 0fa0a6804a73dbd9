"""xxh3_128 checksums. A tensor's digest is of its bytes; a file's is of its header and its tensors' digests, in order."""

from __future__ import annotations

from collections.abc import Iterable

from xxhash import xxh3_128

__all__ = ["file_checksum", "hash_zeros", "xxh3_128"]

_ZEROS = bytes(2**18)


def file_checksum(header: bytes, digests: Iterable[str]) -> str:
    """The checksum of a file, in hex. ``header`` is every byte before the first tensor."""
    hasher = xxh3_128(header)
    for digest in digests:
        hasher.update(bytes.fromhex(digest))
    return hasher.hexdigest()


def hash_zeros(hasher: xxh3_128, count: int) -> None:
    """Feed ``count`` zero bytes."""
    for _ in range(count // len(_ZEROS)):
        hasher.update(_ZEROS)
    hasher.update(memoryview(_ZEROS)[: count % len(_ZEROS)])

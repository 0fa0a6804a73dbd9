"""Placements of tensors on ranks and the bytes they mean. Knows nothing of any model.

``reshard``, ``merge`` and ``check`` are the API; they are imported when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_EXPORTS = {
    "reshard": "sharding.run",
    "ReshardResult": "sharding.records",
    "Progress": "sharding.records",
    "merge": "sharding.merging",
    "check": "sharding.verify",
    "ShardingError": "sharding.errors",
}

__all__ = ["Progress", "ReshardResult", "ShardingError", "check", "merge", "reshard"]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)

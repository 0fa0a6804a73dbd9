"""What makes two runs the same job."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from sharding.dtypes import dtype_name
from sharding.layout import FORMAT_VERSION


def job_identity(
    placements: Mapping[str, Any],
    tp: int,
    dtype: str | None,
    names: Mapping[str, str],
    parts: list[dict[str, object]],
    placement_id: str | None,
) -> dict[str, Any]:
    """Everything that decides the output's bytes. Without ``placement_id``, it is taken as plans take it: SHA-256 of the
    canonical JSON of ``{tp, dtype, tensors, rank_tensors}``."""
    contents = {key: placements.get(key, {}) for key in ("tensors", "rank_tensors")}
    placed = digest({"tp": tp, "dtype": dtype_name(dtype) if dtype else None, **contents})
    return {
        "format_version": FORMAT_VERSION,
        "placement_id": placement_id or placed,
        "placements_digest": placed,
        "tp": tp,
        "dtype": dtype_name(dtype) if dtype else None,
        "names": dict(names),
        "source": parts,
    }


def digest(plain: Any) -> str:
    """SHA-256 of the canonical JSON, in hex."""
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()

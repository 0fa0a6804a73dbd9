"""A constant as a floating type holds it."""

from __future__ import annotations

import struct
from math import sqrt

from gemma4cfg.architecture.huggingface import to_bfloat16


def rounded(value: float, dtype: str) -> float:
    """The nearest number of ``dtype`` (bfloat16, float16, float32), by way of float32 as torch goes."""
    if dtype == "bfloat16":
        return to_bfloat16(value)
    (single,) = struct.unpack("f", struct.pack("f", value))
    (half,) = struct.unpack("e", struct.pack("e", single))
    return float(half if dtype == "float16" else single)


def embedding_scales(width: int) -> tuple[float, ...]:
    """The square root of ``width`` as the reference multiplies embeddings by it, in a model of each type: 39.25, 39.1875
    or 39.19183... for 1536. bfloat16's, by which an architecture is stated, is the first."""
    return tuple(rounded(sqrt(width), dtype) for dtype in ("bfloat16", "float16", "float32"))

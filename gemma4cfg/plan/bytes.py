"""Element types and their bytes, as torch spells them."""

from __future__ import annotations

ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "int32": 4, "int64": 8}
"""Types that occur in plans."""

FLOATING = ("bfloat16", "float16", "float32")

"""A plan's sizes: what the model has, what acts on a token, and what is really held."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any


@dataclass(frozen=True, slots=True)
class ModelSize:
    """``total``, ``active`` and ``effective`` count parameters: all, those that act on one token (experts by top-k), and
    those less the embedding tables. ``device_bytes`` is held by all ranks together, ``host_bytes`` by the host."""

    total: int
    active: int
    effective: int
    device_bytes: int
    host_bytes: int


def model_size(plan: Mapping[str, Any]) -> ModelSize:
    """Sizes of a plan in JSON form."""
    counted = {name: prod(t["shape"]) for name, t in plan["tensors"].items() if t["status"] == "required"}
    total = sum(counted.values())
    moe = plan["layers"][0]["moe"]
    experts = sum(count for name, count in counted.items() if ".experts." in name)
    active = total - experts + (experts * moe["top_k"] // moe["experts"] if moe else 0)
    tables = sum(count for name, count in counted.items() if ".embed_tokens_per_layer." in name)
    if tables:
        tables += sum(count for name, count in counted.items() if name.endswith("embed_tokens.weight"))
    return ModelSize(
        total=total,
        active=active,
        effective=active - tables,
        device_bytes=plan["budget"]["hbm_per_rank"]["weights"] * plan["tp"],
        host_bytes=sum(part["bytes"] for part in plan["host"]),
    )


def billions(count: int) -> str:
    return f"{count / 1e9:.2f} B"


def gigabytes(size: int) -> str:
    """Decimal, as disks and published figures are."""
    return f"{size / 1e9:.2f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"

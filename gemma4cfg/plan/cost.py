"""What tokens cost on a machine that is paid by the hour."""

from __future__ import annotations


def usd_per_million_tokens(usd_per_hour: float, tokens_per_s: float) -> float:
    """US dollars per million decoded tokens, six significant digits: the whole machine paid for one copy of the model."""
    return float(f"{usd_per_hour / 3600 / tokens_per_s * 1e6:.6g}")

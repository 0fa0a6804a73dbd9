"""A machine in one line."""

from __future__ import annotations

from gemma4cfg.config.target import Target


def describe_machine(target: Target) -> str:
    """Chips, cores, memory, and the price with its date, on demand or else spot, where one is known."""
    prices = (("on demand", target.price.on_demand), ("spot, none on demand known", target.price.spot))
    known = (f", {price.usd_per_hour} $/h {market} ({price.date})" for market, price in prices if price)
    cost = next(known, ", no price known")
    return (
        f"{target.chips} x {target.chip.name}, {target.cores} cores of {target.hbm_bytes_per_core / 2**30:.0f} GiB, "
        f"host {target.host_memory_gib} GiB{cost}"
    )

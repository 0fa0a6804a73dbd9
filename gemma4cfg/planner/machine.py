"""A machine in one line."""

from __future__ import annotations

from gemma4cfg.config.target import Target


def describe_machine(target: Target) -> str:
    """Chips, cores, memory, and the price on demand with its date where one is known."""
    price = target.price.on_demand
    cost = f", {price.usd_per_hour} $/h on demand ({price.date})" if price else ", no price known"
    return (
        f"{target.chips} x {target.chip.name}, {target.cores} cores of {target.hbm_bytes_per_core / 2**30:.0f} GiB, "
        f"host {target.host_memory_gib} GiB{cost}"
    )

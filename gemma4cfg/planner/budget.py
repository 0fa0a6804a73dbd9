"""Bytes on the device and on the host, each figure with its source."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gemma4cfg.plan.records import Budget
from gemma4cfg.planner.device_memory import DeviceInputs, device_lines, graph_memory, hbm_budget, maximum_context
from gemma4cfg.planner.host_memory import HostInputs, compile_basis, host_budget
from gemma4cfg.planner.on_chip import working_sets


def plan_budget(device: DeviceInputs, host: HostInputs, failing: Mapping[str, Collection[int]]) -> Budget:
    """Device, on-chip and host bytes, and where each inexact figure comes from. ``failing``: the layers of each published
    failure that holds."""
    estimates = device.sdk.stack.estimates
    lines = device_lines(device)
    hbm = hbm_budget(lines, device.target.hbm_bytes_per_core)
    activations = "" if estimates.serving else "activations of the longest graph, counted, and "
    basis = {
        "weights": f"exact: local tensors and rank tensors x {device.copies}",
        "kv": f"exact: K and V of every slot x {device.copies}",
        "scratch": f"{activations}{estimates.spill_per_graph.source}",
        "code": estimates.code_per_layer.source,
        "runtime": device.target.chip.runtime_source,
        "host.shard_peak": "bound of the streaming resharder",
        "host.compile_peak": compile_basis(host),
        "host.load_peak": "every copy of every rank's weights, and what is there anyway",
        "host.steady": "the host's tables, and the model in float32 where the prompt runs on the host",
        "host.swap": f"what load_peak lacks, with a reserve: {estimates.host_reserve.source}",
        "host.compile_swap": "what compile_peak lacks, with the same reserve",
        "host.disk": "the published checkpoint with its towers; rank files and host tables; the graphs' instructions, and "
        "the weights where each program carries its own",
        "on_chip": "arithmetic on the planned shapes; the compiler may tile otherwise",
    }
    return Budget(
        hbm_per_rank=hbm,
        host=host_budget(host),
        basis=basis,
        lines=lines,
        graphs=graph_memory(device),
        on_chip=working_sets(device, failing),
        maximum_context=maximum_context(device, hbm),
    )

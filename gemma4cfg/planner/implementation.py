"""Which attention code is traced, with the on-chip arithmetic beside what was published."""

from __future__ import annotations

from collections.abc import Sequence

from gemma4cfg.architecture.model import Architecture, layer_facts
from gemma4cfg.config.sdk import Sdk
from gemma4cfg.config.target import Target
from gemma4cfg.findings import Finding
from gemma4cfg.plan.bytes import ITEM_BYTES
from gemma4cfg.plan.reasons import Reason
from gemma4cfg.plan.records import Decision, Shapes, TurnedDown
from gemma4cfg.planner.failures import Facts, overridden, published


def choose_implementation(
    asked: str,
    architecture: Architecture,
    shapes: Shapes,
    dtype: str,
    sdk: Sdk,
    target: Target,
    plan_facts: Facts,
    layer_facts_known: Sequence[Facts],
) -> tuple[str, Decision, tuple[Finding, ...]]:
    """``eager`` where the release's data records a failure of the fused kernel, else ``sdpa``; one for all layers, as the
    reference takes one."""
    if sdk.stack.name == "vllm":
        detail = "two head sizes in one model force the stack's Triton kernel"
        return "triton", Decision("attention.implementation", "triton", (), Reason.STACK_OF_TARGET, detail), ()
    failures = published(sdk, "eager_attention", plan_facts, layer_facts_known)
    need = fused_working_set(architecture, shapes, dtype)
    limit = target.chip.sbuf.bytes_per_partition if target.chip.sbuf else 0
    figures = f"the fused kernel's rows take {need:,} of {limit:,} bytes a partition by arithmetic"
    if asked != "auto":
        other = TurnedDown("sdpa" if asked == "eager" else "eager", Reason.NOT_REQUESTED, "")
        findings = overridden(failures) if asked != "eager" else ()
        return asked, Decision("attention.implementation", asked, (other,), Reason.REQUESTED, figures), findings
    if not failures:
        other = TurnedDown("eager", Reason.DEVICE_WORK, "")
        return "sdpa", Decision("attention.implementation", "sdpa", (other,), Reason.DEFAULT, figures), ()
    _, failure = failures[0]
    other = TurnedDown("sdpa", Reason.PUBLISHED_FAILURE, f"{failure.what} ({failure.source})")
    decision = Decision(
        "attention.implementation",
        "eager",
        (other,),
        Reason.PUBLISHED_FAILURE,
        f"{failure.what} ({failure.source}); {figures}",
    )
    return "eager", decision, ()


def fused_working_set(architecture: Architecture, shapes: Shapes, dtype: str) -> int:
    """Bytes per partition of the widest layer, one query row a partition."""
    item = ITEM_BYTES[dtype]
    widest = 0
    for layer in layer_facts(architecture):
        keys = shapes.kv_length
        if layer.attention.window is not None and shapes.kv_layout == "ring":
            keys = min(layer.attention.window, keys) + shapes.prefill_buckets[-1]
        widest = max(widest, fused_row_bytes(keys, layer.attention.head_dim, item))
    return widest


def fused_row_bytes(keys: int, head_dim: int, item: int) -> int:
    """One query row of a fused kernel: scores over its keys in fp32, the same as probabilities, the query, and the output in
    fp32."""
    return (keys + head_dim) * (4 + item)

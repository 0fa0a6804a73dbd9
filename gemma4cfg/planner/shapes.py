"""Shapes and types of the run: what they may be for this model, this release and this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gemma4cfg.architecture.model import Architecture
from gemma4cfg.config.schema import ShapesChoice
from gemma4cfg.config.sdk import DtypeRule, Sdk
from gemma4cfg.config.speeds import Serving
from gemma4cfg.errors import ConfigError
from gemma4cfg.findings import Finding
from gemma4cfg.plan.bytes import FLOATING
from gemma4cfg.plan.reasons import Reason
from gemma4cfg.plan.records import Decision, Shapes, TurnedDown


def plan_dtype(asked: str, sdk: Sdk) -> tuple[str, tuple[Finding, ...], Decision]:
    """The type of device weights. Raises ConfigError for one that the release refuses."""
    dtype = sdk.stack.default_dtype if asked == "auto" else asked
    findings = _apply_rule("dtype", dtype, sdk.stack.dtypes.get(dtype), sdk)
    others = tuple(TurnedDown(name, _dtype_reason(sdk, name), "") for name in FLOATING if name != dtype)
    reason = Reason.DTYPE_OF_TARGET if asked == "auto" else Reason.REQUESTED
    return (
        dtype,
        findings,
        Decision("dtype", dtype, others, reason, f"weights, activations and rank files ({sdk.name})"),
    )


def plan_shapes(
    choice: ShapesChoice, architecture: Architecture, dtype: str, sdk: Sdk, remarks: Sequence[Finding]
) -> Shapes:
    """``remarks`` are what is odd about the model.

    Raises ConfigError for lengths that contradict each other or the model, and for a KV type that is not planned.
    """
    longest = architecture.max_positions
    if choice.kv_length > longest:
        raise ConfigError(
            f"shapes.kv_length={choice.kv_length}: {architecture.name} has positions up to {longest}"
            f"{''.join(f' ({remark.message})' for remark in remarks)}; e.g. shapes.kv_length={longest}"
        )
    if serving := sdk.stack.estimates.serving:
        choice = _served(choice, serving)
    buckets = choice.prefill_buckets
    if not buckets:
        raise ConfigError("shapes.prefill_buckets is empty; e.g. shapes.prefill_buckets=[512]")
    if list(buckets) != sorted(set(buckets)):
        raise ConfigError(
            f"shapes.prefill_buckets={list(buckets)}: must rise; e.g. shapes.prefill_buckets={sorted(set(buckets))}"
        )
    if buckets[-1] > choice.kv_length:
        raise ConfigError(
            f"shapes.prefill_buckets={list(buckets)}: the largest is longer than shapes.kv_length={choice.kv_length}"
        )
    kv_dtype = dtype if choice.kv_dtype == "auto" else choice.kv_dtype
    _apply_rule("shapes.kv_dtype", kv_dtype, sdk.stack.kv_dtypes.get(kv_dtype), sdk)
    if kv_dtype not in FLOATING:
        raise ConfigError(f"shapes.kv_dtype={kv_dtype}: expected auto, {', '.join(FLOATING)}")
    return Shapes(
        batch=choice.batch,
        prefill_buckets=buckets,
        kv_length=choice.kv_length,
        kv_layout=choice.kv_layout,
        kv_dtype=kv_dtype,
        prompt_chunking=choice.prompt_chunking,
    )


def _served(choice: ShapesChoice, serving: Serving) -> ShapesChoice:
    """What a stack that serves by itself makes of any choice: a prompt runs in chunks of the stack's, and a sliding layer
    keeps its window."""
    chunk = min(serving.chunk_tokens, choice.kv_length)
    return replace(choice, prefill_buckets=(chunk,), kv_layout="ring", prompt_chunking=True)


def _dtype_reason(sdk: Sdk, dtype: str) -> Reason:
    rule = sdk.stack.dtypes.get(dtype)
    if rule is not None:
        return Reason.NOT_SUPPORTED if rule.verdict == "refused" else Reason.NOT_REQUESTED
    return Reason.MORE_BYTES if dtype == "float32" else Reason.NOT_REQUESTED


def _apply_rule(key: str, dtype: str, rule: DtypeRule | None, sdk: Sdk) -> tuple[Finding, ...]:
    if rule is None:
        return ()
    if rule.verdict == "refused":
        raise ConfigError(f"{key}={dtype} is refused with {sdk.name}: {rule.why}. Instead: {rule.instead}")
    return (Finding("warning", f"{key.replace('.', '_')}_{dtype}", None, f"{dtype}: {rule.why}", rule.instead),)

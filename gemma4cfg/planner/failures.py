"""Published failures (data of the release) held against a plan's facts: decisions ask first, findings tell the rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from gemma4cfg.config.sdk import Effect, Failure, Sdk
from gemma4cfg.errors import ConfigError, did_you_mean
from gemma4cfg.findings import Finding

Facts = Mapping[str, Any]

PLAN_FACTS = frozenset(
    "model family recipe api tp dtype kv_dtype batch kv_length max_prefill_bucket prefill_rows prefill_graphs has_ple has_moe "  # noqa: SIM905
    "moe_partition has_kv_sharing hidden_size vocab_size softcap_home sampling_home token_embedding_home "
    "per_layer_embedding_home lm_head_partition kv_layout graphs_per_core layers text_parameters host_memory_gib "
    "swap_gib".split()
)
"""Facts of the whole plan that a failure's ``when`` may name."""

LAYER_FACTS = frozenset(
    "layer_type window head_dim q_heads kv_heads attention_mode attention_implementation kv_heads_exceed_tp".split()  # noqa: SIM905
)
"""Facts of a layer; those that a ``when`` names must hold of one layer together."""


def published(sdk: Sdk, effect: Effect, plan: Facts, layers: Sequence[Facts]) -> list[tuple[str, Failure]]:
    """The failures with ``effect`` that hold: the release's version of the package in range, and every fact of ``when``.

    A fact not decided yet is not in ``plan`` or ``layers``, and no condition on it holds. Raises ConfigError for a
    ``when`` on a fact that does not exist.
    """
    return [
        (name, failure)
        for name, failure in sdk.stack.failures.items()
        if failure.effect == effect and _in_range(failure, sdk) and _holds(name, failure.when, plan, layers)
    ]


def failure_findings(sdk: Sdk, plan: Facts, layers: Sequence[Facts]) -> tuple[Finding, ...]:
    """Findings for failures that change no decision; one that holds of a single layer names it."""
    found = []
    severities: tuple[Literal["error", "warning", "info"], ...] = ("error", "warning", "info")
    for severity in severities:
        for name, failure in published(sdk, severity, plan, layers):
            holding = layers_of(failure, layers)
            layer = min(holding) if len(holding) == 1 and len(layers) > 1 else None
            message = f"{failure.what} ({failure.source})"
            found.append(Finding(severity, name, layer, message, failure.fix))
    return tuple(found)


def layers_of(failure: Failure, layers: Sequence[Facts]) -> frozenset[int]:
    """The layers that ``failure`` speaks of: all where it names no fact of a layer."""
    return frozenset(index for index, layer in enumerate(layers) if _layer_holds(failure.when, layer))


def overridden(failures: Iterable[tuple[str, Failure]]) -> tuple[Finding, ...]:
    """What is said where the configuration asks for what failed."""
    return tuple(
        Finding("warning", name, None, f"{failure.what} ({failure.source})", failure.fix) for name, failure in failures
    )


def _in_range(failure: Failure, sdk: Sdk) -> bool:
    version = sdk.pins.get(failure.package)
    return version is not None and failure.versions.holds(version)


def _holds(name: str, when: Mapping[str, Any], plan: Facts, layers: Sequence[Facts]) -> bool:
    for key in when:
        if key not in PLAN_FACTS and key not in LAYER_FACTS:
            raise ConfigError(
                f"failures.{name}.when.{key}: no such fact{did_you_mean(key, [*PLAN_FACTS, *LAYER_FACTS])}"
            )
    if not all(key in plan and _matches(wanted, plan[key]) for key, wanted in when.items() if key in PLAN_FACTS):
        return False
    about_layers = any(key in LAYER_FACTS for key in when)
    return not about_layers or any(_layer_holds(when, layer) for layer in layers)


def _layer_holds(when: Mapping[str, Any], layer: Facts) -> bool:
    return all(key in layer and _matches(wanted, layer[key]) for key, wanted in when.items() if key in LAYER_FACTS)


def _matches(wanted: Any, value: Any) -> bool:
    """``wanted``: a value, a list of values, or ``{minimum:, maximum:}``."""
    if isinstance(wanted, Mapping):
        if value is None:
            return False
        return bool(wanted.get("minimum", value) <= value <= wanted.get("maximum", value))
    if isinstance(wanted, (list, tuple)):
        return value in wanted
    return bool(wanted == value)

"""Why a plan has a value so: the reasons of its decisions, or the words that it was made from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gemma4cfg.difference.edits import Edit
from gemma4cfg.difference.members import member_names
from gemma4cfg.difference.paths import matches, under
from gemma4cfg.plan.reasons import Reason

JsonPlan = Mapping[str, Any]

_ASKED: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("tp",): ("tp",),
    ("model",): ("model", "checkpoint"),
    **{("shapes", name): (f"shapes.{name}",) for name in ("batch", "prefill_buckets", "kv_length")},
}
"""Places that hold what a user sets, and the keys that do."""

_DECIDED_BY = (
    (("target",), "target"),
    (("sdk",), "sdk"),
    (("recipe",), "recipe"),
    (("dtype",), "dtype"),
    (("shapes", "kv_dtype"), "dtype"),
    (("shapes", "kv_layout"), "kv.layout"),
    (("shapes", "prompt_chunking"), "prompt_chunking"),
    (("layers", "*", "attention", "implementation"), "attention.implementation"),
    (("layers", "*", "kv", "layout"), "kv.layout"),
    (("layers", "*", "kv", "owner"), "kv.sharing"),
    (("layers", "*", "kv", "writes"), "kv.sharing"),
    (("layers", "*", "value_source"), "kv.value_source"),
    (("layers", "*", "mlp", "local_intermediate"), "mlp"),
    (("layers", "*", "moe", "partition"), "experts"),
    (("layers", "*", "moe", "local_experts"), "experts"),
    (("layers", "*", "moe", "local_intermediate"), "experts"),
    (("layers", "*", "ple", "local_width"), "ple.partition"),
)
"""The decision behind a place, where it is not one about the heads of a layer type."""

_ARCHITECTURE = tuple(
    ("layers", "*", *keys)
    for keys in (
        *((key,) for key in ("type", "q_heads", "kv_heads", "head_dim", "window", "value_source", "rope")),
        ("mlp", "intermediate"),
        ("ple", "width"),
        *(("moe", key) for key in ("experts", "top_k", "intermediate")),
    )
)
"""Facts of the model."""


def reasons_of(edit: Edit, members: Sequence[Mapping[str, Any]], old: JsonPlan, new: JsonPlan) -> tuple[str, ...]:
    """Why ``new`` has what ``edit`` makes of ``old``, each reason once; ``members`` are the layers that it is of."""
    return tuple(dict.fromkeys(filter(None, _reasons(edit, members, old, new))))


def decision_about_heads(layer: Mapping[str, Any], decisions: Sequence[Mapping[str, Any]]) -> str:
    """Why the heads of ``layer`` lie as they do: the reason of the decision for its type and mode."""
    kind = f"attention.{layer['type']}"
    found = [decision for decision in decisions if decision["id"] == kind or decision["id"].startswith(f"{kind}.")]
    return next((str(it["reason"]) for it in found if it["choice"] == layer["attention"]["mode"]), "")


def decided(name: str, plan: JsonPlan) -> str:
    """The reason of the decision of that id; empty where there is none."""
    return next((str(decision["reason"]) for decision in plan["decisions"] if decision["id"] == name), "")


def _reasons(edit: Edit, members: Sequence[Mapping[str, Any]], old: JsonPlan, new: JsonPlan) -> Iterator[str]:
    path, decisions = edit.path, new["decisions"]
    if path[0] == "decisions" and path[2:] in ((), ("choice",)):
        names = member_names(("decisions",), decisions, False)
        yield from (str(it["reason"]) for name, it in zip(names, decisions, strict=True) if name == path[1])
    elif under(path, _ARCHITECTURE):
        yield Reason.ARCHITECTURE.value
    elif path in _ASKED:
        yield _asked(path, new)
    elif behind := next((decision for pattern, decision in _DECIDED_BY if matches(path, pattern)), None):
        yield decided(behind, new)
    elif path[0] == "layers" and path[2:] == ("kv", "shape"):
        yield from _of_shape(edit.old, edit.new, members, old, new)
    elif path[0] == "layers" and path[2:3] == ("attention",):
        yield from (decision_about_heads(layer, decisions) for layer in members)
    elif path[0] == "host" and isinstance(edit.new, Mapping):
        yield str(edit.new["reason"])


def _asked(path: tuple[str, ...], plan: JsonPlan) -> str:
    """``requested`` where a word sets what lies under ``path``; the objective's reason where one says ``auto`` to it."""
    for word in plan["provenance"]["overrides"]:
        key, _, value = word.lstrip("+").partition("=")
        if any(f"{name}.".startswith(f"{key}.") or key.startswith(f"{name}.") for name in _ASKED[path]):
            return decided("objective", plan) if value == "auto" else str(Reason.REQUESTED.value)
    return ""


def _of_shape(
    before: Sequence[int] | None,
    after: Sequence[int] | None,
    members: Sequence[Mapping[str, Any]],
    old: JsonPlan,
    new: JsonPlan,
) -> Iterator[str]:
    """Of a layer's KV: streams, heads, rows and their size, each by what it follows from."""
    if before is None or after is None:
        yield decided("kv.sharing", new)
        return
    streams, heads, rows, size = (a != b for a, b in zip(before, after, strict=True))
    if streams:
        yield _asked(("shapes", "batch"), new)
    if heads:
        yield from (decision_about_heads(layer, new["decisions"]) for layer in members)
    if rows and old["shapes"]["kv_layout"] != new["shapes"]["kv_layout"]:
        yield decided("kv.layout", new)
    if rows and old["shapes"]["kv_length"] != new["shapes"]["kv_length"]:
        yield _asked(("shapes", "kv_length"), new)
    if size:
        yield Reason.ARCHITECTURE.value

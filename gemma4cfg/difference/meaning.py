"""What an edit of a plan means: whether it is of words only, whether results change with it, why it was decided so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gemma4cfg.difference.edits import Edit
from gemma4cfg.difference.members import by_type, member_names
from gemma4cfg.plan.reasons import Reason

JsonPlan = Mapping[str, Any]

_ASIDE = (
    ("plan_id",),
    ("placement_id",),
    ("provenance",),
    ("decisions", "*", "id"),
    ("decisions", "*", "detail"),
    ("decisions", "*", "over", "*", "detail"),
    ("findings", "*", "message"),
    ("findings", "*", "fix"),
    ("budget", "basis"),
    ("estimate", "basis"),
    ("layers", "*", "index"),
)
"""Words, origin, and what follows from the rest. A graph's id is not among them: it alone says that software changed."""

_NUMERICS = (
    ("model",),
    ("dtype",),
    ("numerics",),
    ("shapes", "kv_dtype"),
    ("decisions", "attention.implementation", "choice"),
    *(("layers", "*", key) for key in ("type", "q_heads", "kv_heads", "head_dim", "window", "value_source", "rope")),
    ("layers", "*", "attention", "implementation"),
    ("layers", "*", "kv", "owner"),
    ("layers", "*", "kv", "writes"),
    ("layers", "*", "mlp", "intermediate"),
    ("layers", "*", "ple", "width"),
    *(("layers", "*", "moe", key) for key in ("experts", "top_k", "intermediate")),
    *(("tensors", "*", key) for key in ("shape", "dtype", "source")),
)
"""Constants, element types, sizes, and the kernel, which rounds elsewhere. How the model is cut is not among them: that
changes the order of sums alone."""

_WHOLE = ({"layers", "tensors"}, {"ple", "moe"})
"""What affects numerics when it comes or goes as a whole: members of these parts, and these parts of a layer."""

_DECIDED_BY = (
    (("target",), "target"),
    (("sdk",), "sdk"),
    (("recipe",), "recipe"),
    (("dtype",), "dtype"),
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

_ARCHITECTURE = tuple(path for path in _NUMERICS if path[0] == "layers" and path[2] not in ("attention", "kv"))


def is_aside(edit: Edit) -> bool:
    """Whether the edit changes nothing that a plan's reader would act on: origin, identities, reworded details."""
    return _under(edit.path, _ASIDE)


def explained(edits: Sequence[Edit], old: JsonPlan, new: JsonPlan) -> list[Edit]:
    """``edits`` from ``old`` to ``new`` with their meaning: ``numerics``, ``reason`` and ``layers``."""
    layers_by_type = by_type(old["layers"], new["layers"])
    layers: dict[str, Mapping[str, Any]] = {}
    for plan in (old, new):
        layers |= zip(member_names(("layers",), plan["layers"], layers_by_type), plan["layers"], strict=True)
    return [_explained(edit, layers, new["decisions"]) for edit in edits]


def decision_about_heads(layer: Mapping[str, Any], decisions: Sequence[Mapping[str, Any]]) -> str:
    """Why the heads of ``layer`` lie as they do: the reason of the decision for its type and mode."""
    kind = f"attention.{layer['type']}"
    found = [decision for decision in decisions if decision["id"] == kind or decision["id"].startswith(f"{kind}.")]
    return next((str(it["reason"]) for it in found if it["choice"] == layer["attention"]["mode"]), "")


def _explained(edit: Edit, layers: Mapping[str, Mapping[str, Any]], decisions: Sequence[Mapping[str, Any]]) -> Edit:
    members = []
    if edit.path[0] == "layers" and edit.op != "move":
        members = [layers[single.path[1]] for single in edit.each()]
    return replace(
        edit,
        numerics=_affects_numerics(edit),
        reason="" if edit.op in ("remove", "move") else _reason(edit, members, decisions),
        layers=dict(Counter(layer["type"] for layer in members)),
    )


def _affects_numerics(edit: Edit) -> bool:
    if edit.op in ("add", "remove") and len(edit.path) == 2 and edit.path[0] in _WHOLE[0]:
        return True
    if edit.path[0] == "layers" and len(edit.path) == 3 and edit.path[2] in _WHOLE[1]:
        return True
    return _under(edit.path, _NUMERICS)


def _reason(edit: Edit, members: Sequence[Mapping[str, Any]], decisions: Sequence[Mapping[str, Any]]) -> str:
    if edit.path[0] == "decisions" and edit.path[2:] in ((), ("choice",)):
        return next((str(decision["reason"]) for name, decision in _named(decisions) if name == edit.path[1]), "")
    if _under(edit.path, _ARCHITECTURE):
        return str(Reason.ARCHITECTURE.value)
    behind = next((decision for path, decision in _DECIDED_BY if _matches(edit.path, path)), None)
    if behind:
        return next((str(decision["reason"]) for decision in decisions if decision["id"] == behind), "")
    if edit.path[0] == "layers" and edit.path[2:3] == ("attention",):
        reasons = {decision_about_heads(layer, decisions) for layer in members}
        return reasons.pop() if len(reasons) == 1 else ""
    if edit.path[0] == "host" and isinstance(edit.new, Mapping):
        return str(edit.new["reason"])
    return ""


def _named(decisions: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    return list(zip(member_names(("decisions",), decisions, False), decisions, strict=True))


def _under(path: Sequence[str], known: Sequence[Sequence[str]]) -> bool:
    return any(_matches(path, pattern) for pattern in known)


def _matches(path: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether ``path`` lies at or under ``pattern``, in which ``*`` is any part."""
    return len(path) >= len(pattern) and all(known in ("*", part) for part, known in zip(path, pattern, strict=False))

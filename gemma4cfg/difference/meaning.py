"""What an edit of a plan means: whether it is of words only, whether results change with it, what it is of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gemma4cfg.difference.edits import Edit
from gemma4cfg.difference.members import by_type, member_names
from gemma4cfg.difference.paths import under
from gemma4cfg.difference.reasons import reasons_of

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


def is_aside(edit: Edit) -> bool:
    """Whether the edit changes nothing that a plan's reader would act on: origin, identities, reworded details."""
    return under(edit.path, _ASIDE)


def explained(edits: Sequence[Edit], old: JsonPlan, new: JsonPlan) -> list[Edit]:
    """``edits`` from ``old`` to ``new`` with their meaning: ``numerics``, ``reasons`` and ``layers``."""
    layers_by_type = by_type(old["layers"], new["layers"])
    layers: dict[str, Mapping[str, Any]] = {}
    for plan in (old, new):
        layers |= zip(member_names(("layers",), plan["layers"], layers_by_type), plan["layers"], strict=True)
    found = []
    for edit in edits:
        of_layers = edit.path[0] == "layers" and edit.op != "move"
        members = [layers[single.path[1]] for single in edit.each()] if of_layers else []
        found.append(
            replace(
                edit,
                numerics=_affects_numerics(edit),
                reasons=() if edit.op in ("remove", "move") else reasons_of(edit, members, old, new),
                layers=dict(Counter(layer["type"] for layer in members)),
            )
        )
    return found


def _affects_numerics(edit: Edit) -> bool:
    if edit.op in ("add", "remove") and len(edit.path) == 2 and edit.path[0] in _WHOLE[0]:
        return True
    if edit.path[0] == "layers" and len(edit.path) == 3 and edit.path[2] in _WHOLE[1]:
        return True
    return under(edit.path, _NUMERICS)

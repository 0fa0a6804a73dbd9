"""Stored tensors against the inventory, both ways: what is missing, what nothing reads, what has another shape."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import prod

from gemma4cfg.architecture.inventory import LM_HEAD, PREFIX, TensorFacts
from gemma4cfg.architecture.stored import StoredTensor
from gemma4cfg.architecture.wording import at_layers, counted
from gemma4cfg.findings import Finding

ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


def missing(facts: Mapping[str, TensorFacts], stored: Mapping[str, StoredTensor], dtype: str) -> list[Finding]:
    """One error per role; ``dtype`` is what the tensors would be stored in."""
    absent = [name for name, fact in facts.items() if fact.status == "required" and name not in stored]
    findings = []
    for role, names in by_role(absent).items():
        size = sum(facts[name].elements for name in names) * ITEM_BYTES[dtype]
        findings.append(
            Finding(
                "error",
                "tensor_missing",
                _only_layer(names),
                f"{counted(len(names), 'required tensor')} missing: {role} ({_where(names)}{size:,} bytes)",
                "use a checkpoint that has them; left out, they would keep whatever the class starts with",
            )
        )
    return findings


def unexpected(names: Iterable[str], stored: Mapping[str, StoredTensor]) -> list[Finding]:
    """One error per role for text-decoder tensors that this architecture does not have."""
    findings = []
    for role, group in by_role(names).items():
        size = sum(prod(stored[name].shape) * ITEM_BYTES[stored[name].dtype] for name in group)
        findings.append(
            Finding(
                "error",
                "tensor_unexpected",
                _only_layer(group),
                f"{counted(len(group), 'stored tensor')} unread: {role} ({_where(group)}{size:,} bytes): nothing reads "
                f"{'it' if len(group) == 1 else 'them'}",
                "use the configuration this checkpoint was saved with, or remove the tensors from it",
            )
        )
    return findings


def renamed(
    absent: Iterable[str], extra: Iterable[str], facts: Mapping[str, TensorFacts], stored: Mapping[str, StoredTensor]
) -> tuple[list[Finding], set[str]]:
    """Roles that are stored under another name: same layers, same shapes, and one name ends like the other.

    Returns the findings and every name, missing or extra, that they explain.
    """
    findings = []
    explained: set[str] = set()
    missing_roles, extra_roles = by_role(absent), by_role(extra)
    for role, names in missing_roles.items():
        leaf = role.removeprefix("layers.*.")
        for other, others in extra_roles.items():
            similar = leaf.endswith("." + other.removeprefix("layers.*.")) or other.endswith("." + leaf)
            same = _layers(names) == _layers(others)
            if similar and same and [facts[n].shape for n in names] == [stored[n].shape for n in others]:
                explained.update(names, others)
                findings.append(
                    Finding(
                        "error",
                        "tensor_renamed",
                        _only_layer(names),
                        f"{counted(len(names), 'tensor')} stored as {other}, which nothing reads; Gemma 4 has {role} "
                        f"({_where(names).removesuffix(', ')})",
                        "rename the tensors, or convert the checkpoint with transformers",
                    )
                )
    return findings, explained


def wrong_shape(facts: Mapping[str, TensorFacts], stored: Mapping[str, StoredTensor]) -> list[Finding]:
    """One error per role and pair of shapes; the tied head is judged with the embedding."""
    groups: dict[tuple[str, tuple[int, ...], tuple[int, ...]], list[int]] = defaultdict(list)
    for name, fact in facts.items():
        if name not in stored or stored[name].shape == fact.shape or fact.status == "tied":
            continue
        groups[fact.role, stored[name].shape, fact.shape] += [] if fact.layer is None else [fact.layer]
    return [
        Finding(
            "error",
            "tensor_shape",
            layers[0] if layers else None,
            f"{at_layers(layers) + ': ' if layers else ''}{role} is {list(found)}, the config gives {list(expected)}",
            "use the checkpoint that this configuration is of, or correct the configuration",
        )
        for (role, found, expected), layers in groups.items()
    ]


def by_role(names: Iterable[str]) -> dict[str, list[str]]:
    """Names grouped under ``layers.*.self_attn.q_proj.weight``, in order."""
    groups = defaultdict(list)
    for name in names:
        groups[_role(name)].append(name)
    return dict(groups)


def _role(name: str) -> str:
    steps = name.removeprefix(PREFIX).split(".")
    if steps[0] == "layers" and len(steps) > 1:
        steps[1] = "*"
    return ".".join(steps)


def _layers(names: Iterable[str]) -> list[int]:
    steps = (name.removeprefix(PREFIX).split(".") for name in names if name != LM_HEAD)
    return [int(step[1]) for step in steps if step[0] == "layers" and len(step) > 1 and step[1].isdecimal()]


def _only_layer(names: list[str]) -> int | None:
    layers = _layers(names)
    return layers[0] if len(layers) == 1 else None


def _where(names: list[str]) -> str:
    layers = _layers(names)
    count = f"{len(layers)} " if len(layers) > 1 else ""
    return f"{count}{at_layers(layers)}, " if layers else ""

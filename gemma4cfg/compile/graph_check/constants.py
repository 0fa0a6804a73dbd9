"""What is baked into a program and should have been a weight, a state or an input; and what two ranks' programs bake."""

from __future__ import annotations

from collections.abc import Iterator

from gemma4cfg.compile.graph_check.subject import Subject
from gemma4cfg.findings import Finding
from gemma4cfg.runtime.programs import Exported, rank_differences

COMPUTED = ("model.rotary_emb.", "model.embed_tokens.embed_scale")
"""Buffers that the model makes for itself, from the plan's constants alone, alike on every rank."""

LARGEST = 64
"""Elements of a constant that may be anything: a table of scales, not a weight."""


def weights_as_constants(subject: Subject) -> Iterator[Finding]:
    """A tensor of a checkpoint that is no input of the program would be the same on every rank and for every checkpoint."""
    local = {entry["local_name"] for entry in subject.plan.tensors.values() if entry["local_name"]}
    known = local | set(subject.plan.rank_tensors)
    for name, value in subject.exported.constants.items():
        if name in known or (value.numel() > LARGEST and not name.startswith(COMPUTED)):
            yield subject.finding(
                "error",
                "weight_as_constant",
                None,
                f"{name} {str(value.dtype).removeprefix('torch.')}{list(value.shape)} is baked into the program",
                "hold it as a Parameter, which a rank file fills",
            )
    for name in sorted(known - subject.weights.keys()):
        if name not in subject.exported.constants:
            yield subject.finding(
                "error", "weight_not_read", None, f"the program has no weight {name}", "the module does not use it"
            )


def baked_ranks(one: Exported, other: Exported) -> tuple[Finding, ...]:
    """Where the programs of two ranks differ: what the one that is compiled has of its rank, all of them would have."""
    fix = "a rank comes in as a tensor of the rank files, never as a number of Python's"
    return tuple(
        Finding("error", "baked_rank", None, f"graph {one.graph.name}: ranks do not share a program: {what}", fix)
        for what in rank_differences(one, other)
    )

"""All rules, and one call that applies them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gemma4cfg.compile.graph_check.attention import fused_attention
from gemma4cfg.compile.graph_check.constants import weights_as_constants
from gemma4cfg.compile.graph_check.logits import logits_of_all_rows, softcap_on_device
from gemma4cfg.compile.graph_check.operators import data_dependent_shapes, refused_operators
from gemma4cfg.compile.graph_check.size import instruction_count, too_many_inputs
from gemma4cfg.compile.graph_check.subject import Subject
from gemma4cfg.compile.graph_check.weight_types import dtype_leaks
from gemma4cfg.findings import Finding

Rule = Callable[[Subject], Iterator[Finding]]

RULES: tuple[Rule, ...] = (
    data_dependent_shapes,
    refused_operators,
    logits_of_all_rows,
    softcap_on_device,
    fused_attention,
    weights_as_constants,
    dtype_leaks,
    too_many_inputs,
    instruction_count,
)
"""A graph of its own is enough for each; ``constants.baked_ranks`` takes two ranks'."""


def check_graph(subject: Subject) -> tuple[Finding, ...]:
    """What is known of the graph: an error where it is known to fail or to be wrong."""
    return tuple(finding for rule in RULES for finding in rule(subject))

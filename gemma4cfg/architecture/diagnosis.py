"""What a checkpoint's shapes say about the configuration that came with it.

Each rule reads one fact off the headers. Where it contradicts the architecture, and believing the headers explains more
tensors than it spoils, the contradiction is reported once and the audit goes on with the corrected fact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gemma4cfg.architecture.attention_diagnosis import heads, keys_as_values
from gemma4cfg.architecture.contradiction import Proposal, Shapes, contradiction
from gemma4cfg.architecture.inventory import (
    BORROWED,
    EMBEDDING,
    PLE_PROJECTION_NORM,
    PLE_TABLE,
    PREFIX,
    inventory,
    layer_tensor,
)
from gemma4cfg.architecture.model import Architecture, layer_facts
from gemma4cfg.architecture.wording import at_layers
from gemma4cfg.errors import ConfigError
from gemma4cfg.findings import Finding


def reconcile(architecture: Architecture, shapes: Shapes) -> tuple[Architecture, tuple[Finding, ...]]:
    """The architecture as the headers have it, and a finding for each fact in which they contradict the one given."""
    findings: list[Finding] = []
    for rule in (_layers, _sizes, _sharing, _double_wide, keys_as_values, heads):
        for proposal in rule(architecture, shapes):
            try:
                corrected = proposal.correct(architecture)
            except ConfigError:  # the header's fact and one that is still believed exclude each other
                continue
            if _disagreements(corrected, shapes) < _disagreements(architecture, shapes):
                architecture = corrected
                findings += proposal.findings
    return architecture, tuple(findings)


def _disagreements(architecture: Architecture, shapes: Shapes) -> int:
    facts = inventory(architecture)
    missing = sum(fact.status == "required" and name not in shapes for name, fact in facts.items())
    return missing + sum(name not in facts or facts[name].shape != shape for name, shape in shapes.items())


def _layers(architecture: Architecture, shapes: Shapes) -> list[Proposal]:
    start = f"{PREFIX}layers."
    numbers = (name[len(start) :].partition(".")[0] for name in shapes if name.startswith(start))
    stored = {int(number) for number in numbers if number.isdecimal()}
    count = len(stored)
    if not stored or stored != set(range(count)) or count == architecture.layers:
        return []
    message = f"the header has layers 0-{count - 1}, the config says num_hidden_layers={architecture.layers}"
    finding = contradiction("layer_count_contradicted", None, message, {"num_hidden_layers": count})
    return [Proposal(lambda a: replace(a, layers=count), (finding,))]


def _sizes(architecture: Architecture, shapes: Shapes) -> list[Proposal]:
    """Sizes that one dimension of one tensor gives away."""
    proposals = []

    def size(key: str, tensor: str, dim: int, now: int, correct: Callable[[Architecture, int], Architecture]) -> None:
        shape = shapes.get(tensor, ())
        if len(shape) > dim and shape[dim] != now and 0 not in shape:
            found = shape[dim]
            name = tensor.removeprefix(PREFIX)
            message = f"{name} is {list(shape)}, the config says {key}={now}; {key}={found} would match"
            finding = contradiction(f"{key}_contradicted", None, message, {key: found})
            proposals.append(Proposal(lambda a: correct(a, found), (finding,)))

    size("vocab_size", EMBEDDING, 0, architecture.vocab_size, lambda a, n: replace(a, vocab_size=n))
    size("hidden_size", EMBEDDING, 1, architecture.hidden_size, lambda a, n: replace(a, hidden_size=n))
    mlp = architecture.mlp
    gate = layer_tensor(0, "mlp.gate_proj.weight")
    size(
        "intermediate_size",
        gate,
        0,
        mlp.intermediate_size,
        lambda a, n: replace(a, mlp=replace(a.mlp, intermediate_size=n)),
    )
    if ple := architecture.ple:
        size(
            "hidden_size_per_layer_input",
            PLE_PROJECTION_NORM,
            0,
            ple.width,
            lambda a, n: replace(a, ple=replace(a.ple or ple, width=n)),
        )
        size(
            "vocab_size_per_layer_input",
            PLE_TABLE,
            0,
            ple.vocab_size,
            lambda a, n: replace(a, ple=replace(a.ple or ple, vocab_size=n)),
        )
    if moe := architecture.moe:
        size(
            "num_experts",
            layer_tensor(0, "experts.down_proj"),
            0,
            moe.experts,
            lambda a, n: replace(a, moe=replace(a.moe or moe, experts=n)),
        )
        size(
            "moe_intermediate_size",
            layer_tensor(0, "experts.down_proj"),
            2,
            moe.intermediate_size,
            lambda a, n: replace(a, moe=replace(a.moe or moe, intermediate_size=n)),
        )
    return proposals


def _sharing(architecture: Architecture, shapes: Shapes) -> list[Proposal]:
    """Which layers borrow: those with a double-wide MLP, and those whose unread tensors a fine-tune dropped."""
    layers = range(architecture.layers)
    wide = (2 * architecture.mlp.intermediate_size, architecture.hidden_size)
    doubled = [n for n in layers if shapes.get(layer_tensor(n, "mlp.gate_proj.weight")) == wide]
    lacking = [
        n
        for n in layers
        if layer_tensor(n, "self_attn.q_proj.weight") in shapes
        and not any(layer_tensor(n, role) in shapes for role in BORROWED)
    ]
    proposals = []
    if architecture.mlp.double_wide:
        proposals += _borrowers(architecture, doubled, "gate_proj of twice intermediate_size")
    if len(lacking) > architecture.kv_shared_layers:
        proposals += _borrowers(architecture, lacking, "no k_proj, v_proj, k_norm")
    return proposals


def _borrowers(architecture: Architecture, borrowers: list[int], sign: str) -> list[Proposal]:
    """That ``borrowers`` are the layers which borrow K/V, if they are the last ones and not what the config says."""
    count = len(borrowers)
    if not count or count == architecture.kv_shared_layers or borrowers[0] != architecture.layers - count:
        return []
    message = (
        f"{sign} at {at_layers(borrowers)} matches num_kv_shared_layers={count}; "
        f"the config says {architecture.kv_shared_layers}"
    )
    finding = contradiction("kv_sharing_contradicted", borrowers[0], message, {"num_kv_shared_layers": count})
    return [Proposal(lambda a: replace(a, kv_shared_layers=count), (finding,))]


def _double_wide(architecture: Architecture, shapes: Shapes) -> list[Proposal]:
    borrowers = [layer.index for layer in layer_facts(architecture) if layer.borrows]
    widths = {shapes.get(layer_tensor(index, "mlp.gate_proj.weight"), (0,))[0] for index in borrowers}
    mlp = architecture.mlp
    width = mlp.intermediate_size * (1 if mlp.double_wide else 2)
    if widths != {width}:
        return []
    now = str(mlp.double_wide).lower()
    message = (
        f"gate_proj has {width} rows at {at_layers(borrowers)}, the layers that borrow K/V, with "
        f"intermediate_size={mlp.intermediate_size}; the config says use_double_wide_mlp={now}"
    )
    finding = contradiction(
        "double_wide_contradicted", borrowers[0], message, {"use_double_wide_mlp": not mlp.double_wide}
    )
    return [Proposal(lambda a: replace(a, mlp=replace(a.mlp, double_wide=not a.mlp.double_wide)), (finding,))]

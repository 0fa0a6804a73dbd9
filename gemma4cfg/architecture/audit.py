"""A checkpoint's headers against an architecture: what is missing, what nothing reads, what contradicts what."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from gemma4cfg.architecture.comparison import ITEM_BYTES, missing, renamed, unexpected, wrong_shape
from gemma4cfg.architecture.diagnosis import reconcile
from gemma4cfg.architecture.inventory import EMBEDDING, LM_HEAD, PREFIX, inventory
from gemma4cfg.architecture.model import Architecture
from gemma4cfg.architecture.part_findings import INCOMPLETE
from gemma4cfg.architecture.stored import Audit, Checkpoint, StoredTensor
from gemma4cfg.architecture.stored_dtypes import packed, undeclared
from gemma4cfg.architecture.wording import counted, gib, some
from gemma4cfg.findings import Finding

TOWERS = ("vision_tower", "audio_tower", "embed_vision", "embed_audio", "vision_embedder")
"""Modules beside the text decoder. Their tensors are counted, never planned."""


def audit(architecture: Architecture, checkpoint: Checkpoint) -> Audit:
    """Everything wrong or remarkable in the headers; errors mean that no plan can be made of them."""
    names = stored_names(checkpoint)
    text, others = _split(checkpoint, names)
    findings = [*checkpoint.problems, *_unknown_modules(others)]
    quantised = packed(text)
    findings += quantised or _compared(architecture, checkpoint, text)
    facts = inventory(architecture)
    known = {name: tensor for name, tensor in text.items() if name in facts}
    findings += undeclared(known.values(), architecture.checkpoint_dtype)
    return Audit(
        findings=tuple(findings),
        dtypes={name: tensor.dtype for name, tensor in known.items()},
        names=names,
        other_modules={module: _count(tensors) for module, tensors in others.items()},
    )


def stored_names(checkpoint: Checkpoint) -> dict[str, str]:
    """What stands in the files for canonical prefixes and names: ``{"model.": "model.language_model."}`` in a text-only
    checkpoint, and the head where it is stored."""
    heads = (name for name in checkpoint.tensors if name == LM_HEAD or name.endswith("." + LM_HEAD))
    return {_stored_prefix(checkpoint): PREFIX, **dict.fromkeys(heads, LM_HEAD)}


def _stored_prefix(checkpoint: Checkpoint) -> str:
    """What precedes ``embed_tokens.weight``."""
    suffix = EMBEDDING.removeprefix(PREFIX)
    found = [name.removesuffix(suffix) for name in checkpoint.tensors if name == suffix or name.endswith("." + suffix)]
    if found:
        return min(found, key=len)
    return PREFIX if any(name.startswith(PREFIX) for name in checkpoint.tensors) else "model."


def _split(
    checkpoint: Checkpoint, names: Mapping[str, str]
) -> tuple[dict[str, StoredTensor], dict[str, dict[str, StoredTensor]]]:
    """Text tensors by canonical name, the others by module."""
    prefix = next(stored for stored, canonical in names.items() if canonical == PREFIX)
    text: dict[str, StoredTensor] = {}
    others: dict[str, dict[str, StoredTensor]] = {}
    for name, tensor in checkpoint.tensors.items():
        steps = name.split(".")
        tower = next((i for i, step in enumerate(steps[:3]) if step in TOWERS), None)
        if tower is not None:
            others.setdefault(".".join(steps[: tower + 1]), {})[name] = tensor
        elif "lm_head" in steps[:3]:
            text[".".join(steps[steps.index("lm_head") :])] = tensor
        elif name.startswith(prefix):
            text[PREFIX + name.removeprefix(prefix)] = tensor
        else:
            others.setdefault(".".join(steps[:2]), {})[name] = tensor
    return text, others


def _compared(architecture: Architecture, checkpoint: Checkpoint, text: Mapping[str, StoredTensor]) -> list[Finding]:
    findings: list[Finding] = []
    complete = not any(problem.code in INCOMPLETE for problem in checkpoint.problems)
    if complete:
        shapes = {name: tensor.shape for name, tensor in text.items() if name != LM_HEAD}
        architecture, contradictions = reconcile(architecture, shapes)
        findings += contradictions
    facts = inventory(architecture)
    extra = [name for name in text if name not in facts]
    absent = [name for name, fact in facts.items() if fact.status == "required" and name not in text]
    other_names, explained = renamed(absent, extra, facts, text)
    findings += other_names
    if complete:
        rest = {name: fact for name, fact in facts.items() if name not in explained}
        findings += missing(rest, text, architecture.checkpoint_dtype)
    findings += unexpected([name for name in extra if name not in explained], text)
    findings += wrong_shape(facts, text)
    findings += _unread([text[name] for name, fact in facts.items() if fact.status == "optional" and name in text])
    if LM_HEAD in text:
        findings += _head(architecture, checkpoint, text[LM_HEAD])
    return findings


def _unread(tensors: list[StoredTensor]) -> list[Finding]:
    if not tensors:
        return []
    size = sum(_bytes(tensor) for tensor in tensors)
    message = (
        f"{counted(len(tensors), 'k_proj, v_proj and k_norm tensor')} of layers that borrow K/V "
        f"({size:,} bytes): stored, never read"
    )
    return [Finding("info", "tensors_unread", None, message, "")]


def _head(architecture: Architecture, checkpoint: Checkpoint, head: StoredTensor) -> list[Finding]:
    shape = " × ".join(str(size) for size in head.shape)
    how = f"compared: {checkpoint.head_comparison}"
    if checkpoint.head_equals_embedding and architecture.tied_embeddings:
        message = (
            f"lm_head equals embed_tokens ({shape}): one copy kept, {gib(_bytes(head))} saved before the cut ({how})"
        )
        return [Finding("info", "head_equals_embedding", None, message, "")]
    if checkpoint.head_equals_embedding:
        message = f"lm_head equals embed_tokens ({shape}), but the config says untied: two copies kept ({how})"
        fix = f"tie_word_embeddings=true (model.tied_embeddings=true) keeps one copy and saves {gib(_bytes(head))}"
        return [Finding("info", "head_equals_embedding", None, message, fix)]
    if not architecture.tied_embeddings:
        return []
    if checkpoint.head_equals_embedding is None:
        message = f"the config says tied, and lm_head is stored as well; {checkpoint.head_comparison}"
        fix = "mend the files and run again: a head that differs would change what the model says"
        return [Finding("warning", "head_not_compared", None, message, fix)]
    message = f"lm_head ({shape}) differs from embed_tokens, but the config says tie_word_embeddings=true ({how})"
    fix = "set tie_word_embeddings=false (model.tied_embeddings=false) to use the head, or remove lm_head.weight"
    return [Finding("error", "head_differs", None, message, fix)]


def _unknown_modules(others: Mapping[str, Mapping[str, StoredTensor]]) -> list[Finding]:
    return [
        Finding(
            "warning",
            "module_unknown",
            None,
            f"{counted(len(tensors), 'tensor')} under {module} belong to no module of Gemma 4 ({some(tensors)})",
            "they are left out of the plan; remove them, or check that this is the checkpoint you mean",
        )
        for module, tensors in others.items()
        if module.rpartition(".")[2] not in TOWERS
    ]


def _count(tensors: Mapping[str, StoredTensor]) -> dict[str, int]:
    return {"tensors": len(tensors), "elements": sum(prod(tensor.shape) for tensor in tensors.values())}


def _bytes(tensor: StoredTensor) -> int:
    return prod(tensor.shape) * ITEM_BYTES[tensor.dtype]

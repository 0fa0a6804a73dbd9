"""Values that the user gave and this plan would never read."""

from __future__ import annotations

from collections.abc import Sequence

from gemma4cfg.architecture.model import Architecture
from gemma4cfg.config.schema import Recipe
from gemma4cfg.errors import ConfigError

TASKS_WITH_KEYS = ("shard", "verify", "generate", "compile")
"""Tasks that have a node of their own name."""

READ_BY_MATRIX = ("model", "task", "verify.matrix", "verify.steps", "verify.seed")


def refuse_unread_by_task(overrides: Sequence[str], task: str) -> None:
    """Raises ConfigError for an override of another task's keys."""
    for key in _keys(overrides):
        owner, dot, _ = key.partition(".")
        if dot and owner in TASKS_WITH_KEYS and task != owner:
            raise ConfigError(f"{key} is never read: task={task}; add task={owner}, or leave it out")


def refuse_unread_by_matrix(overrides: Sequence[str], matrix: str | None) -> None:
    """Raises ConfigError for an override of anything that a matrix goes through, or takes as it is, by itself."""
    for key in _keys(overrides) if matrix else ():
        if key not in READ_BY_MATRIX:
            read = ", ".join(READ_BY_MATRIX)
            raise ConfigError(
                f"{key} is never read: verify.matrix={matrix} goes through its own plans; leave it out. Read are {read}"
            )


def refuse_unread_by_artifact(overrides: Sequence[str], backend: str) -> None:
    """Raises ConfigError for an override about the inside of a program, which cannot be watched or changed."""
    inside = ("verify.inject", "verify.spmd", "verify.expect", "verify.transport")
    for key in _keys(overrides) if backend == "artifact" else ():
        if key.startswith(inside):
            raise ConfigError(f"{key} is never read: verify.backend=artifact compares logits alone; leave it out")


def refuse_unread_by_drills(overrides: Sequence[str], steps: int, most: int) -> None:
    """Raises ConfigError for an override that no drill reads; each decodes ``most`` tokens or fewer."""
    for key in _keys(overrides):
        if key == "verify.spmd":
            raise ConfigError(f"{key} is never read: verify.inject exports no graph; leave it out")
        if key == "verify.steps" and steps > most:
            raise ConfigError(f"{key}={steps}: with verify.inject at most {most} are decoded; e.g. {key}={most}")


def refuse_unread(overrides: Sequence[str], architecture: Architecture) -> None:
    """Raises ConfigError for an override about a part that the model does not have."""
    absent = {
        "moe.": None if architecture.moe else "experts",
        "ple.": None if architecture.ple else "per-layer embeddings",
        "offload.per_layer_embedding": None if architecture.ple else "per-layer embeddings",
        "offload.per_layer_projection": None if architecture.ple else "per-layer embeddings",
        "offload.softcap": None if architecture.final_logit_softcap is not None else "softcap on the logits",
    }
    for key in _keys(overrides):
        for prefix, part in absent.items():
            if part and key.startswith(prefix):
                raise ConfigError(f"{key} is never read: {architecture.name} has no {part}; leave it out")


def refuse_unread_by_stack(overrides: Sequence[str], recipe: Recipe) -> None:
    """Raises ConfigError for an override that a stack which serves by itself does not take."""
    if recipe.name != "vllm":
        return
    own = (
        "offload",
        "attention.implementation",
        "shapes.prefill_buckets",
        "shapes.kv_layout",
        "shapes.prompt_chunking",
    )
    for key in _keys(overrides):
        if key.startswith(own):
            raise ConfigError(f"{key} is never read: vLLM decides it by itself; leave it out")


def _keys(overrides: Sequence[str]) -> list[str]:
    return [override.lstrip("+~").partition("=")[0] for override in overrides]

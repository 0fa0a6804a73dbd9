"""Whether token embeddings reach the layers scaled: without it text is fluent nonsense, as with a broken device."""

from __future__ import annotations

from math import sqrt
from pathlib import Path

import torch

from gemma4cfg.architecture.inventory import EMBEDDING
from gemma4cfg.architecture.rounding import embedding_scales
from gemma4cfg.errors import UserError
from gemma4cfg.findings import Finding
from gemma4cfg.plan.records import Plan
from gemma4cfg.runtime.host.tables import HostTables
from sharding.layout import HOST_FILE

_ROWS = 64
"""Embeddings that are looked at, spread over the vocabulary."""

_TOLERANCE = 0.01
"""Relative; rounding to bfloat16 is 0.004 of each number, and much less of a norm."""


def check_planned_scale(plan: Plan) -> None:
    """The plan's scale is the square root of the hidden size, as any type rounds it. Raises UserError."""
    hidden = plan.tensors[EMBEDDING]["shape"][1]
    if plan.numerics.embedding_scale not in embedding_scales(hidden):
        _refuse(plan.numerics.embedding_scale, hidden, "leave model.embedding_scale out")


def check_applied_scale(plan: Plan, tables: HostTables, directory: Path) -> None:
    """What the host's ``tables`` give for a token is the row in ``directory``'s file times that, read here by another reader.
    Raises UserError. Where the device holds the embedding, ``check_device_scale`` is the check.
    """
    if tables.embedding is None:
        return
    from safetensors import safe_open

    ids = torch.arange(0, tables.vocabulary, max(1, tables.vocabulary // _ROWS))
    with safe_open(str(directory / HOST_FILE), framework="pt") as file:
        rows = file.get_slice(EMBEDDING)
        stored = torch.cat([rows[int(token) : int(token) + 1] for token in ids]).double()
    given = tables.inputs(ids.unsqueeze(0))["inputs_embeds"][0].double()
    _check_scale(plan, float(given.norm() / stored.norm()), "run task=shard again into an empty directory")


def check_device_scale(plan: Plan, scale: float | None) -> None:
    """What the ranks' own embedding multiplies by, null where the host has it. Raises UserError."""
    if scale is not None:
        _check_scale(plan, scale, "install the release of transformers that constraints.txt names")


def _check_scale(plan: Plan, scale: float, fix: str) -> None:
    hidden = plan.tensors[EMBEDDING]["shape"][1]
    if not abs(scale / sqrt(hidden) - 1) <= _TOLERANCE:
        _refuse(round(scale, 4), hidden, fix)


def _refuse(scale: float, hidden: int, fix: str) -> None:
    message = (
        f"token embeddings are multiplied by {scale}, and the model was trained with the square root of its hidden size "
        f"{hidden}, {embedding_scales(hidden)[0]}"
    )
    raise UserError(f"{message}; {fix}", (Finding("error", "input.embedding_scale", None, message, fix),))

"""The five structures at small widths."""

from __future__ import annotations

from dataclasses import replace

from gemma4cfg import load_config
from gemma4cfg.architecture.model import Architecture, AttentionTypes, MlpFacts
from gemma4cfg.architecture.rounding import embedding_scales
from tests.trained.language import VOCABULARY_SIZE

HIDDEN, INTERMEDIATE, PLE_WIDTH, WINDOW = 32, 32, 8, 8
HEAD_DIM, GLOBAL_HEAD_DIM = 8, 16
EXPERTS, EXPERT_WIDTH = 16, 8

E2B_BY_KEYS = (
    "model=e2b",
    f"model.hidden_size={HIDDEN}",
    f"model.vocab_size={VOCABULARY_SIZE}",
    f"model.attention.sliding_attention.head_dim={HEAD_DIM}",
    f"model.attention.sliding_attention.window={WINDOW}",
    f"model.attention.full_attention.head_dim={GLOBAL_HEAD_DIM}",
    f"model.mlp.intermediate_size={INTERMEDIATE}",
    f"model.ple.width={PLE_WIDTH}",
    f"model.ple.vocab_size={VOCABULARY_SIZE}",
)
"""Overrides that say what E2B's checkpoint is, and leave its scales as they are published: wrong ones for these widths."""


def small(model: str) -> Architecture:
    """Every layer, every head and its sharing as published."""
    published = load_config([f"model={model}"]).model
    sliding, full = published.attention.sliding_attention, published.attention.full_attention
    ple, moe = published.ple, published.moe
    return replace(
        published,
        name="custom",
        hidden_size=HIDDEN,
        vocab_size=VOCABULARY_SIZE,
        attention=AttentionTypes(
            replace(sliding, head_dim=HEAD_DIM, window=WINDOW), replace(full, head_dim=GLOBAL_HEAD_DIM)
        ),
        mlp=MlpFacts(INTERMEDIATE, published.mlp.double_wide),
        ple=ple
        and replace(
            ple,
            width=PLE_WIDTH,
            vocab_size=VOCABULARY_SIZE,
            embedding_scale=embedding_scales(PLE_WIDTH)[0],
            projection_scale=HIDDEN**-0.5,
        ),
        moe=moe and replace(moe, experts=EXPERTS, intermediate_size=EXPERT_WIDTH),
        embedding_scale=embedding_scales(HIDDEN)[0],
    )

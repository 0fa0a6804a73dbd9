"""The five models with few layers: every structure is there, and ranks on two cores take seconds."""

from __future__ import annotations

import functools

from gemma4cfg import load_config
from gemma4cfg.config.schema import Config

SHORT = {
    "e2b": ("model.layers=10", "model.kv_shared_layers=5"),
    "e4b": ("model.layers=18", "model.kv_shared_layers=6"),
    "12b": ("model.layers=6",),
    "26b-a4b": ("model.layers=6",),
    "31b": ("model.layers=6",),
}
"""Repetitions of the layers' pattern: one, and one more where layers borrow (E4B two, so that owners have a predecessor)."""


@functools.cache
def short_config(model: str, *choices: str) -> Config:
    return load_config([f"model={model}", *SHORT[model], "task=verify", *choices])

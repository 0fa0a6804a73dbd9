"""Twins by recipe, and a checkpoint for each."""

from __future__ import annotations

import functools
from pathlib import Path

from gemma4cfg.verify.subject import Subject, subject_of
from tests.verify.shortened import short_config

RECIPES = {
    "trace": ("recipe=trace", "recipe.placement=one_core"),
    "trace_core_each": ("recipe=trace", "recipe.placement=core_each"),
    "tp_alias_device": ("recipe=tp_alias", "recipe.prefill=device"),
    "tp_alias_host": ("recipe=tp_alias", "recipe.prefill=host"),
    "model_builder_v1": ("recipe=model_builder", "recipe.api=v1"),
    "model_builder_v2": ("recipe=model_builder", "recipe.api=v2"),
}


_TOO_LARGE_FOR_A_CORE = ("26b-a4b", "31b")
"""Both graphs on one core of inf2 do not fit, short as these are; on one of trn2 they do."""


@functools.cache
def subject(model: str, tp: int, recipe: str) -> Subject:
    target = "trn2.3xlarge" if recipe == "trace" and model in _TOO_LARGE_FOR_A_CORE else "inf2.24xlarge"
    return subject_of(short_config(model, f"tp={tp}", "verify.steps=2", f"target={target}", *RECIPES[recipe]))


def checkpoint_of(found: dict[str, Path], one: Subject) -> Path:
    key = repr(one.twin)
    if key not in found:
        found[key] = one.weights(0, found[""] / str(len(found)))
    return found[key]

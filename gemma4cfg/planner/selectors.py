"""Selectors of layers: a layer type, an index (``5``) or a run (``0-4``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from gemma4cfg.architecture.model import LAYER_TYPES, LayerFacts
from gemma4cfg.errors import ConfigError, did_you_mean

T = TypeVar("T")


def select(selector: str, layers: tuple[LayerFacts, ...], key: str) -> list[int]:
    """Indices of the layers that ``selector`` names, for an error under ``key``.

    Raises ConfigError where it is no selector or matches nothing.
    """
    first, _, last = selector.partition("-")
    if selector in LAYER_TYPES:
        found = [layer.index for layer in layers if layer.type == selector]
    elif first.isdigit() and (last.isdigit() or last == ""):
        found = [layer.index for layer in layers if int(first) <= layer.index <= int(last or first)]
    else:
        raise ConfigError(
            f"{key}.{selector}: not a layer type, an index or a run{did_you_mean(selector, LAYER_TYPES)}; "
            f"e.g. {key}={{full_attention: replicate}} or {key}={{0-4: pad}}"
        )
    if not found:
        raise ConfigError(f"{key}.{selector} matches none of the layers 0-{len(layers) - 1}")
    return found


def assign(default: T, exceptions: Mapping[str, T], layers: tuple[LayerFacts, ...], key: str) -> list[T]:
    """One value per layer: ``default`` but where a selector says otherwise; later selectors win."""
    values = [default] * len(layers)
    for selector, value in exceptions.items():
        for index in select(selector, layers, key):
            values[index] = value
    return values

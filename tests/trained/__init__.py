"""Tiny trained checkpoints of the five models' structures, and the script that made them: ``python -m tests.trained``.

They answer which city is the capital of a country, if the question comes in the right chat format, and "sorry" in wrong
ones. Layers, their types, head counts, sharing, PLE and experts are the published models'; widths are small.
"""

from __future__ import annotations

from pathlib import Path

MODELS = ("e2b", "e4b", "12b", "26b-a4b", "31b")
DIRECTORY = Path(__file__).resolve().parent.parent / "data" / "trained"

MADE_ON = DIRECTORY / "made_on.json"
"""Model to the releases and the processor that it was trained with."""


def trained(model: str) -> Path:
    """The Hugging Face directory of a trained model."""
    return DIRECTORY / model

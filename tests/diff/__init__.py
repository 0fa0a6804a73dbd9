"""Golden differences: the text of each under ``golden/``, as it comes out of a pipe.

``python -m tests.diff`` compares, ``python -m tests.diff --write`` writes them anew.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from rich.console import Console

from gemma4cfg import Plan, PlanDiff, build_plan, diff_plans, load_config
from gemma4cfg.views.console import PIPE_WIDTH
from gemma4cfg.views.diff.show import show_diff

DIRECTORY = Path(__file__).parent / "golden"

CASES = {
    "26b-a4b-tp4-tp8": ("model=26b-a4b tp=4", "model=26b-a4b tp=8"),
    "31b-replicate-group": ("model=31b tp=8 attention.policy=replicate", "model=31b tp=8 attention.policy=group"),
    "e4b-12b": ("model=e4b tp=2", "model=12b tp=2"),
    "e2b-31b": ("model=e2b", "model=31b tp=8"),
    "kv256-kv2048": (
        "model=12b tp=2 shapes.prefill_buckets=[128] shapes.kv_length=256",
        "model=12b tp=2 shapes.prefill_buckets=[128] shapes.kv_length=2048",
    ),
    "linear-ring": ("model=12b tp=2", "model=12b tp=2 shapes.kv_layout=ring"),
    "ring-linear": ("model=12b tp=2 shapes.kv_layout=ring", "model=12b tp=2"),
    "ple-host-device": (
        "model=e4b tp=2",
        "model=e4b tp=2 offload.token_embedding=device offload.per_layer_embedding=device",
    ),
    "neuron-2.28-neuron-2.31": ("model=31b tp=8 sdk=neuron-2.28", "model=31b tp=8 sdk=neuron-2.31"),
    "one-more-bucket": ("model=e2b shapes.prefill_buckets=[128]", "model=e2b shapes.prefill_buckets=[128,512]"),
    "experts": ("model=26b-a4b tp=8", "model=26b-a4b tp=8 moe.partition=experts"),
    "neuron-vllm": ("model=e2b", "model=e2b target=g5g.2xlarge"),
    "same": ("model=31b tp=8", "tp=8 model=31b"),
}
"""A golden's name to the overrides of its two sides. Of different patterns of layers: e2b-31b."""


def planned(words: str) -> Plan:
    return build_plan(load_config(words.split()))


def compared(name: str) -> PlanDiff:
    """The difference of a case."""
    old, new = CASES[name]
    return diff_plans(planned(old), planned(new))


def text_of(diff: PlanDiff, every_tensor: bool = False) -> str:
    """What is printed where standard output is a pipe, without the spaces that fill a table's cells."""
    out = io.StringIO()
    show_diff(diff.to_json(), Console(file=out, width=PIPE_WIDTH, highlight=False), every_tensor)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def record_lists(kind: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Paths of the lists of records in a record, ``*`` for a member of a list or mapping: read from its types."""
    found = []
    for name, hint in get_type_hints(kind).items():
        listed, mapped = get_origin(hint) is tuple, get_origin(hint) is Mapping
        for record in filter(is_dataclass, (hint, *get_args(hint))):
            here = (*path, name)
            found += [here] if listed else []
            found += record_lists(record, (*here, "*") if listed or mapped else here)
    return found


def stored(name: str) -> str | None:
    """What the golden of a case holds; None where it is missing."""
    path = DIRECTORY / f"{name}.txt"
    return path.read_text(encoding="utf-8") if path.is_file() else None


def strangers() -> list[Path]:
    """Files that are no case's golden."""
    return sorted(path for path in DIRECTORY.iterdir() if path.stem not in CASES or path.suffix != ".txt")

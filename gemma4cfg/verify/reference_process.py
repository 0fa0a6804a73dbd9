"""Starting the reference's own process, and its answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

SCRIPT = Path(__file__).parent / "reference.py"

OURS = ("gemma4cfg", "sharding")
"""Packages that the process must not have imported."""

Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ReferenceJob:
    """What the reference runs: ``prompts`` as they are, or one drawn for each of ``prompt_lengths`` (from ``seed``, at most
    ``max_draws`` of each until its greedy answer of ``steps + 1`` tokens is beyond rounding and varied). ``layers``: only the
    first so many of the model. Whatever ``dtype`` is, the model is loaded in float32 first."""

    directory: str
    steps: int
    prompts: tuple[tuple[int, ...], ...] | None = None
    prompt_lengths: tuple[int, ...] = ()
    seed: int = 0
    max_draws: int = 24
    dtype: str = "float32"
    attention_implementation: str = "eager"
    layers: int | None = None
    threads: int = 1


@dataclass(frozen=True, slots=True)
class PromptRun:
    """One prompt of n tokens, run alone and greedily for ``steps`` more.

    ``tokens`` [steps + 1]: ``tokens[0]`` follows the prompt. ``logits`` [steps + 1, vocabulary]: row k chose ``tokens[k]``.
    In a type narrower than float32 the tokens are float32's, so that a row's largest may be another.
    ``hidden`` [layers, n + steps, hidden size]: each decoder layer's output for the prompt and ``tokens[:-1]``. ``margins``
    [steps + 1]: largest logit over the next. ``noise``: largest difference between these logits and those by a cache, in a
    narrower type between these and float32's.
    ``routed_positions``: before the first whose choice of experts rounding could change. ``decided``: there is none such, and
    every margin is well above the noise. ``draws``: prompts drawn for this one, 0 if it was given.
    """

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logits: Array
    hidden: Array
    margins: Array
    noise: float
    relative_noise: float
    routed_positions: int
    decided: bool
    draws: int


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """Whether the reference agrees with itself in float32, differences relative to the largest logit: token by token through
    a cache against one pass without (``cached_relative``), and one pass with a cache against one without. ``known_bad``: why
    this version is not to be trusted whatever it says here, else null."""

    cached_relative: float
    use_cache_false_relative: float
    limit: float
    known_bad: str | None
    passed: bool


@dataclass(frozen=True, slots=True)
class ReferenceResult:
    """``versions`` of torch and transformers; ``seconds`` of loading and running, without the start of the process."""

    class_name: str
    versions: Mapping[str, str]
    self_check: SelfCheck
    seconds: Mapping[str, float]
    runs: tuple[PromptRun, ...]


def run_reference(job: ReferenceJob) -> ReferenceResult:
    """Runs the job in a fresh Python process.

    Raises RuntimeError where the process fails, or imported anything of ours.
    """
    with tempfile.TemporaryDirectory() as output:
        path = Path(output) / "job.json"
        path.write_text(json.dumps({**asdict(job), "output": output}), encoding="utf-8")
        process = subprocess.run(
            [sys.executable, str(SCRIPT), str(path)], env=_environment(job), capture_output=True, text=True, check=False
        )
        if process.returncode:
            raise RuntimeError(
                f"the reference's process ended with code {process.returncode}: {process.stderr.strip()[-2000:]}"
            )
        report = json.loads((Path(output) / "reference.json").read_text(encoding="utf-8"))
        tensors = load_file(Path(output) / "reference.safetensors")
    if imported := [name for name in report["modules"] if name in OURS]:
        raise RuntimeError(f"the reference's process imported {', '.join(imported)}: it is no independent witness")
    return ReferenceResult(
        class_name=report["class_name"],
        versions=report["versions"],
        self_check=SelfCheck(**report["self_check"]),
        seconds=report["seconds"],
        runs=tuple(_run(number, values, tensors) for number, values in enumerate(report["prompts"])),
    )


def _environment(job: ReferenceJob) -> dict[str, str]:
    quiet = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}
    return {**os.environ, **quiet, "OMP_NUM_THREADS": str(job.threads), "TOKENIZERS_PARALLELISM": "false"}


def _run(number: int, values: Mapping[str, Any], tensors: Mapping[str, Array]) -> PromptRun:
    plain: dict[str, Any] = {key: value for key, value in values.items() if key not in ("prompt", "tokens")}
    plain |= {name: tensors[f"{number}.{name}"] for name in ("logits", "hidden", "margins")}
    return PromptRun(prompt=tuple(values["prompt"]), tokens=tuple(values["tokens"]), **plain)

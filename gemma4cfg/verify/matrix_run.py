"""Running the cases of a matrix: equal twins share their weights and the reference's run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gemma4cfg.config.compose import load_config
from gemma4cfg.verify.matrix import Case, Feature
from gemma4cfg.verify.place import Place
from gemma4cfg.verify.proof import Preparations, prove
from gemma4cfg.verify.subject import subject_of


@dataclass(frozen=True, slots=True)
class CaseResult:
    """``prefill_relative`` and ``decode_relative``: the largest error over all streams, relative to the largest logit;
    null where none is compared, and ``limit`` for both; ``steps`` decoded after each prompt, ``tokens`` greedy tokens compared
    in all; ``failed`` checks by name; ``seconds`` of the ranks; ``versions`` of the reference's packages."""

    overrides: tuple[str, ...]
    features: tuple[Feature, ...]
    layers: int
    holds: bool
    prefill_relative: float | None
    decode_relative: float | None
    limit: float | None
    steps: int
    tokens: int
    failed: tuple[str, ...]
    seconds: float
    versions: Mapping[str, str]


def run_cases(cases: Sequence[Case], steps: int, seed: int, work: Path, place: Place) -> Iterator[CaseResult]:
    """Each case's twin in turn. Raises as ``prove``."""
    preparations = Preparations(steps, seed, work, place)
    for case in cases:
        subject = subject_of(load_config([*case.overrides, "task=verify", f"verify.steps={steps}"]))
        with tempfile.TemporaryDirectory(dir=work) as directory:
            proof = prove(preparations.of(subject), Path(directory), place)
        checks = {check.name: check for check in proof.checks}
        prefill, decode = checks["prefill_logits"], checks["decode_logits"]
        yield CaseResult(
            overrides=case.overrides,
            features=case.features,
            layers=len(proof.layers),
            holds=proof.holds,
            prefill_relative=prefill.figure,
            decode_relative=decode.figure,
            limit=decode.limit,
            steps=steps,
            tokens=sum(stream.decided_tokens for stream in proof.streams),
            failed=tuple(check.name for check in proof.failed),
            seconds=proof.seconds["ranks"],
            versions=proof.reference["versions"],
        )

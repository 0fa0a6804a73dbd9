"""The proof of what will be served: compiled programs, read back from disk, against the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from torch import Tensor

from gemma4cfg.errors import ConfigError
from gemma4cfg.plan.records import Plan
from gemma4cfg.runtime.host.sampling import samples_on_device
from gemma4cfg.runtime.host.session import Runner
from gemma4cfg.verify.checks import error_limit, logits_equal, reference_agrees, tokens_equal
from gemma4cfg.verify.compare import stream_result
from gemma4cfg.verify.faults import NO_FAULT
from gemma4cfg.verify.observe import Observed
from gemma4cfg.verify.proof import Clock, Prepared, run_plan
from gemma4cfg.verify.records import Proof

Opens = Callable[[Path], AbstractContextManager[Runner]]
"""Rank files to what runs the programs over them."""


def refuse_sampling(plan: Plan) -> None:
    """Raises ConfigError for a plan whose programs return tokens: equal tokens would prove little."""
    if samples_on_device(plan):
        raise ConfigError(
            "verify.backend=artifact with offload.sampling=device: the programs return tokens, and logits are compared; "
            "set offload.sampling=host, or verify.backend=ranks"
        )


def prove_artifact(prepared: Prepared, rank_files: Path, opens: Opens) -> Proof:
    """Run the programs that ``opens`` gives on the reference's prompts and tokens, and compare logits. What happens inside a
    program cannot be watched, so that is all there is to check."""
    plan, reference, clock = prepared.subject.plan, prepared.reference, Clock()
    with clock.measure("programs"), opens(rank_files) as runner:
        hosted = run_plan(plan, NO_FAULT, _Unwatched(runner), rank_files, reference.runs)
    noise = max(run.noise for run in reference.runs)
    streams = tuple(
        stream_result(ours, run, noise, plan.dtype) for ours, run in zip(hosted.logits, reference.runs, strict=True)
    )
    limit = error_limit(plan.dtype, max(run.relative_noise for run in reference.runs))
    return Proof(
        subject=f"{prepared.subject.name}, its programs reloaded",
        model=plan.model,
        tp=plan.tp,
        dtype=plan.dtype,
        reference={
            "class_name": reference.class_name,
            "versions": reference.versions,
            "self_check": reference.self_check,
            "noise": noise,
            "draws": [run.draws for run in reference.runs],
        },
        checks=(
            reference_agrees(reference),
            logits_equal("prefill_logits", [stream.prefill_relative for stream in streams], limit),
            logits_equal("decode_logits", [stream.decode_relative for stream in streams], limit),
            tokens_equal(streams, plan.dtype),
        ),
        streams=streams,
        layers=(),
        exercised={},
        seconds={**prepared.seconds, **clock.seconds},
    )


class _Unwatched:
    """A runner where a group of observed ranks is expected: it tells its output and nothing else."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def run(self, graph: str, inputs: Mapping[str, Tensor]) -> Tensor:
        return self._runner.run(graph, inputs)

    def logits(self) -> Tensor:
        raise LookupError("a compiled program returns its output alone")

    def layers(self) -> dict[int, Tensor]:
        return {}

    def observed(self) -> list[Observed]:
        return []

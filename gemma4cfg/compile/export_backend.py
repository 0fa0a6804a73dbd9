"""``export``: a program per graph as ``torch.export`` makes it, for machines without the SDK."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from gemma4cfg.compile.backend import Places, Unit
from gemma4cfg.compile.versions import installed, versions_of
from gemma4cfg.plan.records import Plan

if TYPE_CHECKING:
    from gemma4cfg.runtime.host.session import Runner
    from gemma4cfg.runtime.programs import Exported

TEXT_FILE, HLO_FILE, CONSTANTS_FILE = "graph.txt", "graph.hlo.txt", "constants.json"
HLO_PACKAGES = ("torch_xla",)


class ExportBackend:
    """See ``Backend``. Where torch_xla is installed the HLO that the SDK would be given lies beside each program."""

    name = "export"

    def versions(self) -> Mapping[str, str]:
        return versions_of(("torch", "transformers", *(name for name in HLO_PACKAGES if installed(name))))

    def units(self, plan: Plan) -> tuple[Unit, ...]:
        return tuple(Unit((graph,), ()) for graph in plan.graphs)

    def flags(self, plan: Plan, unit: Unit) -> Mapping[str, tuple[str, ...]]:  # noqa: ARG002
        return {}

    def build(self, plan: Plan, unit: Unit, exported: tuple[Exported, ...], places: Places) -> None:
        import torch

        from gemma4cfg.compile.artifact_runner import PROGRAM_FILE

        (graph,), (one,) = unit.graphs, exported
        torch.export.save(one.program, places.artifact / PROGRAM_FILE)
        (places.artifact / TEXT_FILE).write_text(one.text + "\n", encoding="utf-8")
        baked = {name: _spelled(value) for name, value in sorted(one.constants.items())}
        (places.artifact / CONSTANTS_FILE).write_text(json.dumps(baked, indent=2) + "\n", encoding="utf-8")
        if all(installed(name) for name in HLO_PACKAGES):
            from gemma4cfg.compile.hlo import hlo_text

            (places.artifact / HLO_FILE).write_text(hlo_text(plan, graph), encoding="utf-8")

    def load(self, plan: Plan, artifacts: Mapping[str, Path], rank_files: Path) -> Runner:
        """The only rank of a plan with tp=1; of more ranks each is an ``ArtifactRank`` in a process of its own."""
        from gemma4cfg.compile.artifact_runner import ArtifactRank
        from sharding.collectives.alone import Alone

        assert plan.tp == 1, "more ranks than one are run by artifact_ranks"
        return ArtifactRank(plan, artifacts, rank_files, 0, Alone())


@contextmanager
def artifact_ranks(plan: Plan, artifacts: Mapping[str, Path], rank_files: Path) -> Iterator[Runner]:
    """All ranks of ``plan`` as processes of this machine, made of reloaded programs. Raises RankError where one fails."""
    from gemma4cfg.compile.artifact_runner import ArtifactRank
    from gemma4cfg.runtime.processes import RankProcesses
    from sharding.collectives import Collectives

    def make(rank: int, collectives: Collectives) -> ArtifactRank:
        return ArtifactRank(plan, artifacts, rank_files, rank, collectives)

    with RankProcesses(make, plan.tp) as processes:
        yield _Ranks(processes)


class _Ranks:
    def __init__(self, processes: object) -> None:
        self._processes = processes

    def run(self, graph: str, inputs: Mapping[str, Tensor]) -> Tensor:
        result: Tensor = self._processes.call("run", graph, dict(inputs), results_of=(0,))[0]  # type: ignore[attr-defined]
        return result


def _spelled(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"

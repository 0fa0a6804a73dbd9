"""All ranks of a proof behind one runner, watched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from torch import Tensor

from gemma4cfg.plan.records import Plan
from gemma4cfg.runtime.graphs import BufferGraphs
from gemma4cfg.runtime.processes import RankProcesses
from gemma4cfg.runtime.ranks import ForkedRanks
from gemma4cfg.verify.faults import Fault
from gemma4cfg.verify.observe import Observed, ObservedWorker
from sharding.collectives.alone import Alone
from sharding.collectives.protocol import Collectives


class Ranks(Protocol):
    """Where the ranks are. ``run`` is one call of a graph on all of them; the rest is what rank 0, or all, saw."""

    def run(self, graph: str, inputs: Mapping[str, Tensor]) -> Tensor: ...

    def logits(self) -> Tensor: ...

    def layers(self) -> dict[int, Tensor]: ...

    def observed(self) -> list[Observed]: ...


class WatchedRanks(ForkedRanks):
    """A process for each rank on this machine."""

    def logits(self) -> Tensor:
        return self._first("logits")

    def layers(self) -> dict[int, Tensor]:
        layers: dict[int, Tensor] = self._processes.call("layers", results_of=(0,))[0]
        return layers

    def observed(self) -> list[Observed]:
        return self._processes.call("observed")


@contextmanager
def watched_ranks(plan: Plan, directory: Path, fault: Fault) -> Iterator[Ranks]:
    """The ranks of ``plan``, loaded from the rank files in ``directory``. Raises RankError where one fails."""

    def make(rank: int, collectives: Collectives) -> ObservedWorker:
        return ObservedWorker(plan, directory, rank, collectives, fault, keeps_layers=rank == 0)

    BufferGraphs(plan, Alone())  # what it imports, every rank would import for itself: two seconds each
    with RankProcesses(make, plan.tp) as processes:
        yield WatchedRanks(processes)

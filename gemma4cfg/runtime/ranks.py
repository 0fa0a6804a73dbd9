"""A rank of a plan on the CPU, and all of them behind one runner."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gemma4cfg.plan.records import Plan
from gemma4cfg.runtime.graphs import BufferGraphs
from gemma4cfg.runtime.processes import RankProcesses
from gemma4cfg.runtime.rank_files import RANK_FILE, load_rank
from sharding.collectives.protocol import Collectives


class RankWorker:
    """One rank: its module, loaded from its file. ``run`` is one call of a graph."""

    def __init__(self, plan: Plan, directory: Path, rank: int, collectives: Collectives) -> None:
        self.module = BufferGraphs(plan, collectives)
        load_rank(self.module, directory / RANK_FILE.format(rank=rank))
        self._seen = hashlib.sha256()

    @torch.inference_mode()
    def run(self, graph: str, inputs: Mapping[str, Tensor]) -> Tensor:  # noqa: ARG002
        """The graph's output; which graph it is follows from the inputs' shapes."""
        output: Tensor = self.module(**inputs)
        self._seen.update(output.contiguous().view(torch.uint8).numpy().tobytes())
        return output

    def embedding_scale(self) -> float | None:
        """What token embeddings are multiplied by; null where the host looks them up."""
        embedding: Any = self.module.model.embed_tokens
        return None if embedding is None else float(embedding.embed_scale)

    def digest(self) -> str:
        """Of every output so far: equal on all ranks, or they have parted."""
        return self._seen.hexdigest()


class ForkedRanks:
    """A process for each rank on this machine. ``run`` is one call of a graph on all of them, and rank 0's output."""

    def __init__(self, processes: RankProcesses) -> None:
        self._processes = processes

    def run(self, graph: str, inputs: Mapping[str, Tensor]) -> Tensor:
        return self._first("run", graph, dict(inputs))

    def embedding_scale(self) -> float | None:
        """Rank 0's."""
        scale: float | None = self._processes.call("embedding_scale", results_of=(0,))[0]
        return scale

    def _first(self, method: str, *args: object) -> Tensor:
        result: Tensor = self._processes.call(method, *args, results_of=(0,))[0]
        return result


@contextmanager
def forked_ranks(plan: Plan, directory: Path) -> Iterator[ForkedRanks]:
    """The ranks of ``plan``, loaded from the rank files in ``directory``. Raises RankError where one fails."""

    def make(rank: int, collectives: Collectives) -> RankWorker:
        return RankWorker(plan, directory, rank, collectives)

    with RankProcesses(make, plan.tp) as processes:
        yield ForkedRanks(processes)

"""Where a proof runs: on this machine, or spread over the processes that torchrun started."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from torch import Tensor

from gemma4cfg.errors import ConfigError
from gemma4cfg.plan.records import Plan

if TYPE_CHECKING:
    from gemma4cfg.verify.faults import Fault
    from gemma4cfg.verify.group import Ranks
    from gemma4cfg.verify.observe import Observed, ObservedWorker

T = TypeVar("T")


class Place(Protocol):
    """``leads``: this process is the one that reports."""

    leads: bool

    def per_machine(self, make: Callable[[], T]) -> T:
        """``make``'s result, made by one process of each machine."""
        ...

    def once(self, make: Callable[[], T]) -> T:
        """``make``'s result, made by one process of all."""
        ...

    def ranks(self, plan: Plan, directory: Path, fault: Fault) -> AbstractContextManager[Ranks]:
        """The ranks of ``plan`` with ``fault`` planted, loaded from the rank files in ``directory``."""
        ...


class Here:
    """A process for each rank, forked from this one."""

    leads = True

    def per_machine(self, make: Callable[[], T]) -> T:
        return make()

    def once(self, make: Callable[[], T]) -> T:
        with ThreadPoolExecutor(1) as beside:
            running = beside.submit(make)
            import_module("gemma4cfg.verify.group")  # takes seconds, and what is awaited is another process
            return running.result()

    def ranks(self, plan: Plan, directory: Path, fault: Fault) -> AbstractContextManager[Ranks]:
        from gemma4cfg.verify.group import watched_ranks

        return watched_ranks(plan, directory, fault)


class Torchrun:
    """This process is one rank of torchrun's, over gloo; every process does the host's part alike."""

    def __init__(self) -> None:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        self._dist = dist
        self.leads = dist.get_rank() == 0

    def per_machine(self, make: Callable[[], T]) -> T:
        made = make() if os.environ["LOCAL_RANK"] == "0" else None
        everyone: list[tuple[str, T | None]] = [("", None)] * self._dist.get_world_size()
        self._dist.all_gather_object(everyone, (os.environ["GROUP_RANK"], made))
        return next(made for group, made in everyone if made is not None and group == os.environ["GROUP_RANK"])

    def once(self, make: Callable[[], T]) -> T:
        box = [make() if self.leads else None]
        self._dist.broadcast_object_list(box)
        assert box[0] is not None
        return box[0]

    @contextmanager
    def ranks(self, plan: Plan, directory: Path, fault: Fault) -> Iterator[Ranks]:
        from gemma4cfg.verify.observe import ObservedWorker
        from sharding.collectives.distributed import Distributed

        if self._dist.get_world_size() != plan.tp:
            raise ConfigError(
                f"tp={plan.tp} under torchrun with {self._dist.get_world_size()} processes: one rank is one process; "
                f"e.g. tp={self._dist.get_world_size()}, or torchrun --nproc-per-node={plan.tp}"
            )
        rank = self._dist.get_rank()
        worker = ObservedWorker(plan, directory, rank, Distributed(), fault, keeps_layers=self.leads)
        yield _OwnRank(worker, self)

    def all(self, mine: T) -> list[T]:
        """Every process's, by rank."""
        everyone: list[T] = [mine] * self._dist.get_world_size()
        self._dist.all_gather_object(everyone, mine)
        return everyone


class _OwnRank:
    """What a process sees of the group: its own rank, and what the others tell."""

    def __init__(self, worker: ObservedWorker, place: Torchrun) -> None:
        self._worker, self._place = worker, place

    def run(self, graph: str, inputs: Mapping[str, Tensor]) -> Tensor:
        return self._worker.run(graph, inputs)

    def logits(self) -> Tensor:
        return self._worker.logits()

    def layers(self) -> dict[int, Tensor]:
        return self._place.once(lambda: self._worker.layers() or {})

    def observed(self) -> list[Observed]:
        return self._place.all(self._worker.observed())


def place_of(transport: Literal["auto", "shared_memory", "gloo"]) -> Place:
    """Raises ConfigError for gloo without torchrun."""
    started = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK"} <= os.environ.keys()
    if transport == "gloo" and not started:
        raise ConfigError(
            "verify.transport=gloo: each rank is a process that torchrun starts; e.g. torchrun --nproc-per-node=8 "
            "-m gemma4cfg model=31b tp=8 task=verify, or verify.transport=shared_memory"
        )
    return Torchrun() if started and transport != "shared_memory" else Here()

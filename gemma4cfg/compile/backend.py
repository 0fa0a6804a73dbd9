"""What turns a plan's graphs into programs: one small protocol, an implementation for each API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gemma4cfg.plan.records import Graph, Plan

if TYPE_CHECKING:
    from gemma4cfg.runtime.host.session import Runner
    from gemma4cfg.runtime.programs import Exported


@dataclass(frozen=True, slots=True)
class Unit:
    """Graphs that are compiled together into one artifact: what a kill can cost at most. ``build``: indices of the plan's
    calls that make and save it."""

    graphs: tuple[Graph, ...]
    build: tuple[int, ...]

    @property
    def name(self) -> str:
        return "+".join(graph.name for graph in self.graphs)


@dataclass(frozen=True, slots=True)
class Places:
    """``artifact`` is where a unit's files go, empty at first. ``workdir`` is the compiler's own, which it may delete;
    ``rank_files`` the directory of the placement's, null where there is no checkpoint to cut."""

    artifact: Path
    workdir: Path
    rank_files: Path | None


class Backend(Protocol):
    """One API.

    Before ``build``
      - ``exported`` are the unit's graphs as programs, in the unit's order, and the graph check has found no error in them;
      - ``places.artifact`` is an empty directory that nothing else writes; ``places.workdir`` may not exist.

    After ``build``
      - everything that ``load`` needs, but rank files, is in ``places.artifact``; nothing was written elsewhere but in
        ``places.workdir``, and no device was touched;
      - or it has raised, and nothing in ``places.artifact`` is ever used.

    ``build`` does not know whether it has run before: the same unit gives the same program again. It imports the SDK only
    when it is called.

    ``load`` is given the artifacts as they lie on the disk, as a process that never compiled anything would be, and returns
    what runs the plan's graphs. It raises PlanError where rank files are not the plan's.
    """

    name: str

    def versions(self) -> Mapping[str, str]:
        """Packages that decide what comes out, by name, and their versions here."""
        ...

    def units(self, plan: Plan) -> tuple[Unit, ...]:
        """The plan's graphs, each in one unit, in the order in which they are built."""
        ...

    def flags(self, plan: Plan, unit: Unit) -> Mapping[str, tuple[str, ...]]:
        """Compiler flags by graph."""
        ...

    def build(self, plan: Plan, unit: Unit, exported: tuple[Exported, ...], places: Places) -> None: ...

    def load(self, plan: Plan, artifacts: Mapping[str, Path], rank_files: Path) -> Runner:
        """``artifacts``: unit name to directory."""
        ...

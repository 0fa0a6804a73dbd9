"""A software release as data: what ``conf/sdk``, ``conf/stack`` and ``conf/failures`` state."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, Literal

from gemma4cfg.config.speeds import Estimates
from gemma4cfg.config.target import Family

Support = Literal["supported", "unsupported", "absent"]
"""``unsupported``: the interface is there, its vendor no longer answers for it; using it is a warning."""

Effect = Literal["eager_attention", "softcap_on_host", "error", "warning", "info"]


@dataclass(frozen=True, slots=True)
class VersionRange:
    """Versions from ``minimum`` (included) to ``below`` (not included); null is unbounded."""

    minimum: str | None
    below: str | None

    def holds(self, version: str) -> bool:
        parts = version_parts(version)
        return (self.minimum is None or parts >= version_parts(self.minimum)) and (
            self.below is None or parts < version_parts(self.below)
        )


@functools.cache
def version_parts(version: str) -> tuple[int, ...]:
    """``"2.23.6484"`` as ``(2, 23, 6484)``; a suffix ends it, so ``"0.27.2rc0"`` is ``(0, 27, 2)``."""
    parts: list[int] = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if digits:
            parts.append(int(digits))
        if digits != part:
            break
    return tuple(parts)


@dataclass(frozen=True, slots=True)
class Failure:
    """Something published to have failed (or to be slow): on which versions of ``package``, when, and what follows.

    ``when`` names facts of a plan (see ``planner.failures``): a value, a list of values, or ``{minimum:, maximum:}``.
    """

    what: str
    package: str
    versions: VersionRange
    when: dict[str, Any]
    effect: Effect
    fix: str
    source: str


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of a graph that is published to fail: ``operators`` as PyTorch names them, with an overload or without,
    null for any; ``dtypes`` of its first operand, or of any tensor where ``operators`` is null. ``families``: null for all."""

    operators: tuple[str, ...] | None
    dtypes: tuple[str, ...] | None
    what: str
    package: str
    versions: VersionRange
    families: tuple[Family, ...] | None
    effect: Literal["error", "warning", "info"]
    fix: str
    source: str


@dataclass(frozen=True, slots=True)
class SourcedCount:
    count: int = field(metadata={"minimum": 1})
    source: str


@dataclass(frozen=True, slots=True)
class MatmulTile:
    """What one instruction multiplies, in elements."""

    contraction: int = field(metadata={"minimum": 1})
    stationary: int = field(metadata={"minimum": 1})
    moving: int = field(metadata={"minimum": 1})
    source: str


@dataclass(frozen=True, slots=True)
class GraphLimits:
    """``instructions`` of one program; ``inputs`` that cross at every call; ``matmul_tile`` to estimate the former."""

    instructions: SourcedCount
    inputs: SourcedCount
    matmul_tile: MatmulTile


@dataclass(frozen=True, slots=True)
class Api:
    """One interface to the compiler: its support per machine family (a family not named: absent), its default flags."""

    support: dict[str, Support]
    compiler_flags: tuple[str, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """The port at which ranks meet while they are traced; ``variable`` of the environment names another, null: nothing does."""

    port: int
    variable: str | None
    source: str


@dataclass(frozen=True, slots=True)
class CompileCache:
    """Where the compiler's results are kept, failures too; ``variable`` of the environment names another place."""

    directory: str
    variable: str
    source: str


@dataclass(frozen=True, slots=True)
class DtypeRule:
    """A type this release refuses or allows with a warning, and what to take instead."""

    verdict: Literal["refused", "warning"]
    why: str
    instead: str


@dataclass(frozen=True, slots=True)
class Build:
    """How a stack is built from source for a chip that its own packages leave out. ``needs``: tools that the image lacks, and
    what each is for. ``host_memory_gib``: of the machine on which it was built. ``patch``: the file to change first, in a
    checkout of ``repository``."""

    why: str
    repository: str
    environment: dict[str, str]
    before: tuple[str, ...]
    command: tuple[str, ...]
    needs: dict[str, str]
    host_memory_gib: int
    patch: str
    source: str


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """A request whose answer's text shows that a server is well; status 200 does not."""

    path: str
    prompt: str
    answer_holds: str
    why: str


@dataclass(frozen=True, slots=True)
class Stack:
    """What the releases of one stack share. A machine family that an interface does not name lacks it. ``build`` and
    ``health`` are null where the plan's own graphs are compiled, ``compile_cache`` where they are not. ``rendezvous`` by
    recipe."""

    name: Literal["neuron", "vllm"]
    package_index: str | None
    apis: dict[str, Api]
    rendezvous: dict[str, Rendezvous]
    compile_cache: CompileCache | None
    default_dtype: str
    dtypes: dict[str, DtypeRule]
    kv_dtypes: dict[str, DtypeRule]
    estimates: Estimates
    build: Build | None
    health: HealthCheck | None
    graph_limits: GraphLimits | None
    failures: dict[str, Failure]
    operators: dict[str, Operator]


@dataclass(frozen=True, slots=True)
class Sdk:
    """A release. ``pins`` are package versions, ``virtual_environment`` the directory name of the image's own,
    ``default_for`` the families for which ``sdk=auto`` takes it."""

    name: str
    stack: Stack
    families: tuple[Family, ...]
    default_for: tuple[Family, ...]
    pins: dict[str, str]
    virtual_environment: str | None
    source: str

    def support_of(self, api: str, family: Family) -> Support:
        """How far ``api`` (a key of ``Stack.apis``) is supported on a machine family."""
        known = self.stack.apis.get(api)
        return known.support.get(family, "absent") if known else "absent"

"""A plan compiled: every unit checked, looked up, and built where it is not there yet."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gemma4cfg.compile.artifacts import Artifact, Artifacts
from gemma4cfg.compile.backend import Backend, Places, Unit
from gemma4cfg.compile.key import Inputs, Key
from gemma4cfg.compile.sdk_backends import weights_in
from gemma4cfg.compile.versions import source_digest
from gemma4cfg.config.sdk import Sdk
from gemma4cfg.config.target import Target
from gemma4cfg.errors import PlanError
from gemma4cfg.findings import Finding, errors_of
from gemma4cfg.plan.encode import digest, to_plain
from gemma4cfg.plan.records import Plan
from sharding.layout import MANIFEST_FILE

CODE = ("gemma4cfg", "sharding")
"""Packages from whose code a graph's text follows."""

FINDINGS_FILE = "findings.json"


@dataclass(frozen=True, slots=True)
class Compiled:
    """A unit's artifact. ``status``: made now, or found. ``differs``: what the nearest other artifact has otherwise, where
    one was made and an explanation was asked for."""

    name: str
    status: Literal["built", "reused"]
    key: str
    directory: str
    seconds: float
    differs: tuple[str, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Work:
    """Where a plan is compiled. ``rank_files``: null where there is no checkpoint."""

    artifacts: Artifacts
    workdir: Path
    rank_files: Path | None
    explain: bool


def compile_plan(
    plan: Plan, backend: Backend, sdk: Sdk, target: Target, work: Work, done: Callable[[Compiled], None]
) -> tuple[Compiled, ...]:
    """Compile what is not compiled yet, unit after unit, each kept as soon as it is made; ``done`` is told of each.

    Raises PlanError where a graph is known to fail on the target, and what a backend's ``build`` raises: units before it
    are kept.
    """
    source, versions = source_digest(*CODE), backend.versions()
    rules = digest({"sdk": to_plain(sdk), "target": to_plain(target)})
    results = []
    for unit in backend.units(plan):
        began = time.monotonic()
        inputs = Inputs(
            backend=backend.name,
            graphs={graph.name: graph.id for graph in unit.graphs},
            versions=versions,
            flags=backend.flags(plan, unit),
            weights=_weights(plan, unit, work.rank_files),
            source=source,
            rules=rules,
        )
        found = work.artifacts.find(inputs)
        status: Literal["built", "reused"] = "reused"
        differs: tuple[str, ...] = ()
        if found is None:
            found, status, differs = _made(plan, unit, backend, sdk, target, work, inputs)
        result = Compiled(
            unit.name, status, found.key_id, found.directory, round(time.monotonic() - began, 3), differs, _told(found)
        )
        results.append(result)
        done(result)
    return tuple(results)


def _made(
    plan: Plan, unit: Unit, backend: Backend, sdk: Sdk, target: Target, work: Work, inputs: Inputs
) -> tuple[Artifact, Literal["built", "reused"], tuple[str, ...]]:
    from gemma4cfg.compile.exporting import export_graph
    from gemma4cfg.compile.graph_check.constants import baked_ranks
    from gemma4cfg.compile.graph_check.rules import check_graph
    from gemma4cfg.compile.graph_check.subject import Subject

    exported = tuple(export_graph(plan, graph) for graph in unit.graphs)
    findings = tuple(finding for one in exported for finding in check_graph(Subject(plan, one, sdk, target)))
    if plan.tp > 1:
        findings += tuple(
            finding for one in exported for finding in baked_ranks(one, export_graph(plan, one.graph, plan.tp - 1))
        )
    if errors := errors_of(findings):
        raise PlanError("\n".join(_sentence(error) for error in errors), findings)
    key = Key.of(
        inputs,
        {one.graph.name: one.text_digest for one in exported},
        {one.graph.name: one.constants_digest for one in exported},
    )
    told = {FINDINGS_FILE: json.dumps(to_plain(findings), indent=2) + "\n"}
    if same := work.artifacts.find_key(key):
        return work.artifacts.renew(same, inputs, told), "reused", ()
    differs = work.artifacts.explain(key) if work.explain else ()

    def build(directory: Path) -> None:
        places = Places(directory, work.workdir / key.id[:16], work.rank_files)
        backend.build(plan, unit, exported, places)

    return work.artifacts.keep(inputs, key, build, told), "built", differs


def _sentence(error: Finding) -> str:
    layer = "" if error.layer is None else f"layer {error.layer}: "
    return f"{layer}{error.message}. {error.fix}"


def _told(artifact: Artifact) -> tuple[Finding, ...]:
    """What the graph check found when the artifact was made."""
    plain = json.loads((Path(artifact.directory) / FINDINGS_FILE).read_text(encoding="utf-8"))
    return tuple(Finding(**finding) for finding in plain)


def _weights(plan: Plan, unit: Unit, rank_files: Path | None) -> str | None:
    """SHA-256 of the checksums of the rank files that the unit's program carries."""
    if rank_files is None or not weights_in(plan, unit):
        return None
    manifest: Mapping[str, Mapping[str, Mapping[str, str]]] = json.loads((rank_files / MANIFEST_FILE).read_text())
    return digest({name: file["checksum"] for name, file in manifest["files"].items()})

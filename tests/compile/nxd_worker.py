"""One plan through the real open NxD sources, in a process of its own: prints what the HLO of each graph is, as JSON.

python -m tests.compile.nxd_worker NXD_SRC NEURON_DOUBLE OVERRIDES…
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any


def main() -> None:
    source, double, *overrides = sys.argv[1:]
    os.environ.setdefault("NXD_LOG_LEVEL", "error")
    sys.path.insert(0, double)
    from neuron_double import activate

    activate(nxd_src=source)
    from gemma4cfg import load_config
    from gemma4cfg.verify.subject import subject_of

    subject = subject_of(load_config([*overrides, "task=verify", "verify.steps=4"]))
    with tempfile.TemporaryDirectory() as work:
        print("RESULT " + json.dumps(traced(subject, Path(work))))


def traced(subject: Any, work: Path) -> dict[str, Any]:
    """The plan's build calls carried out, what they left, and, of ModelBuilder's second version, whether ranks differ."""
    from neuron_double import recorder

    from gemma4cfg.compile.carry_out import CarryOut
    from gemma4cfg.compile.sdk_backends import SdkBackend
    from gemma4cfg.compile.sdk_environment import prepare

    plan = subject.plan
    prepare()
    backend = SdkBackend(plan.recipe, None)
    artifact = work / "artifact"
    artifact.mkdir()
    for unit in backend.units(plan):
        CarryOut(plan, lambda path: artifact / path, work / "workdir", None, None).run(unit.build)
    graphs = [graph_of(made.hlo_module) for made in recorder.HLO_ARTIFACTS]
    by_name = any(call.api == "neuronx_distributed.ModelBuilder" for call in plan.calls)
    return {
        "graphs": graphs,
        "expected": [expected(plan, graph) for graph in plan.graphs],
        "files": sorted(path.name for path in artifact.iterdir()),
        "ranks_differ": ranks_differ(plan) if by_name else [],
        "tokens": tokens(subject, artifact, work) if plan.tp == 1 else None,
    }


def graph_of(module: Any) -> dict[str, Any]:
    """Counts of collectives, their groups, and the shapes of what is aliased."""
    instructions = [one for computation in module.computations for one in computation.instructions]
    counts = Counter(one.opcode for one in instructions)
    groups = {
        tuple(tuple(group.replica_ids) for group in one.replica_groups)
        for one in instructions
        if one.opcode in ("all-reduce", "all-gather")
    }
    parameters = module.host_program_shape.parameters
    aliased = [list(parameters[entry.parameter_number].dimensions) for entry in module.input_output_alias.entries]
    return {
        "all_reduce": counts["all-reduce"],
        "all_gather": counts["all-gather"],
        "other_collectives": sum(counts[name] for name in ("reduce-scatter", "all-to-all", "collective-permute")),
        "groups": sorted(map(list, groups)),
        "aliased": sorted(aliased),
    }


def expected(plan: Any, graph: Any) -> dict[str, Any]:
    """The same, from the plan alone."""
    return {
        "all_reduce": graph.collectives.all_reduce,
        "all_gather": graph.collectives.all_gather,
        "other_collectives": 0,
        "groups": [[list(range(plan.tp))]] if plan.tp > 1 else [],
        "aliased": sorted(list(port.shape) for port in graph.state),
    }


def ranks_differ(plan: Any) -> list[str]:
    """What changes when the process group tells the truth about its rank; empty where the program is one for all."""
    from neuron_double.rank_check import baked_ranks

    from gemma4cfg.compile.values import collectives_of
    from gemma4cfg.runtime.graphs import BufferGraphs
    from gemma4cfg.runtime.kv import example_inputs
    from gemma4cfg.runtime.weights import zero_weights

    if plan.tp == 1:
        return []

    def build() -> Any:
        return zero_weights(BufferGraphs(plan, collectives_of(plan)))

    found: list[str] = []
    for graph in plan.graphs:
        found += baked_ranks(build, example_inputs(graph), plan.tp)
    return found


def tokens(subject: Any, artifact: Path, work: Path) -> dict[str, Any]:
    """Greedy tokens of the programs as they are loaded again, and of the plan's own module."""
    from gemma4cfg.compile import sdk_runner
    from gemma4cfg.compile.sdk_backends import SdkBackend
    from gemma4cfg.runtime.host.session import Session
    from gemma4cfg.runtime.host.tables import HostTables
    from gemma4cfg.runtime.ranks import RankWorker
    from gemma4cfg.verify.proof import rank_files
    from sharding.collectives.alone import Alone

    if subject.plan.recipe == "trace":
        sdk_runner.states_of = live_states
    plan = subject.plan
    files = rank_files(plan, subject.weights(0, work), work)
    backend = SdkBackend(plan.recipe, None)
    programs = {unit.name: artifact for unit in backend.units(plan)}
    runners = {"program": backend.load(plan, programs, files), "module": RankWorker(plan, files, 0, Alone())}
    found: dict[str, Any] = {}
    for name, runner in runners.items():
        session = Session(plan, HostTables.open(plan, files), runner)
        prompts = {
            stream: [2 + (7 * stream + 3 * k) % 100 for k in range(n)] for stream, n in enumerate(subject.lengths)
        }
        results = session.prefill(prompts)
        steps = []
        for _ in range(3):
            chosen = {stream: int(logits.argmax()) for stream, logits in results.items()}
            steps.append(list(chosen.values()))
            results = session.decode(chosen)
        found[name] = steps
    return found


def live_states(program: Any, rank: int) -> list[Any]:  # noqa: ARG001
    """A traced double's KV, which it shows in a place of its own."""
    live = program.runner.get_states()
    return [live[name] for name in sorted(live, key=lambda name: int("".join(filter(str.isdigit, name))))]


if __name__ == "__main__":
    main()

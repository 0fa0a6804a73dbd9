"""One plan through the real open NxD sources, in a process of its own: prints what the HLO of each graph is, as JSON.

python -m tests.compile.nxd_worker NXD_SRC NEURON_DOUBLE [--bake] OVERRIDES…
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock


def main() -> None:
    source, double, *overrides = sys.argv[1:]
    os.environ.setdefault("NXD_LOG_LEVEL", "error")
    sys.path.insert(0, double)
    from neuron_double import activate

    activate(nxd_src=source)
    from gemma4cfg import load_config
    from gemma4cfg.verify.subject import subject_of

    bake = "--bake" in overrides
    choices = [one for one in overrides if one != "--bake"]
    subject = subject_of(load_config([*choices, "task=verify", "verify.steps=4"]))
    with tempfile.TemporaryDirectory() as work:
        print("RESULT " + json.dumps(traced(subject, Path(work), bake)))


def traced(subject: Any, work: Path, bake: bool) -> dict[str, Any]:
    """The plan's build calls carried out, what they left, and whether another rank's programs differ. ``bake``: the module
    knows its rank, which has to show."""
    from neuron_double.rank_check import differences, fingerprint

    plan, last = subject.plan, subject.plan.tp - 1
    if bake:
        knows_its_rank()
    artifact = work / "artifact"
    first = built_as(0, plan, artifact, work)
    other = built_as(last, plan, work / "other", work) if last else first
    return {
        "graphs": [graph_of(made.hlo_module) for made in first],
        "expected": [expected(plan, graph) for graph in plan.graphs],
        "files": sorted(path.name for path in artifact.iterdir()),
        "ranks_differ": [
            f"{graph.name}: {line}"
            for graph, one, another in zip(plan.graphs, first, other, strict=True)
            for line in differences(fingerprint(one), fingerprint(another))
        ],
        "tokens": tokens(subject, artifact, work) if plan.tp == 1 else None,
    }


def built_as(rank: int, plan: Any, artifact: Path, work: Path) -> list[Any]:
    """HLO of the plan's graphs, built by its calls in a process that is ``rank``: both builders say rank 0, whoever asks."""
    from neuron_double import recorder

    from gemma4cfg.compile.carry_out import CarryOut
    from gemma4cfg.compile.sdk_backends import SdkBackend
    from gemma4cfg.compile.sdk_environment import prepare

    prepare()
    artifact.mkdir()
    recorder.HLO_ARTIFACTS.clear()
    with truthful(rank):
        for unit in SdkBackend(plan.recipe, None).units(plan):
            CarryOut(plan, lambda path: artifact / path, work / "workdir", None, None).run(unit.build)
    return list(recorder.HLO_ARTIFACTS)


@contextmanager
def truthful(rank: int) -> Iterator[None]:
    """While it lasts torch.distributed and the SDK's tensor-parallel group, as the SDK mocks them, are of ``rank``."""
    from neuronx_distributed.trace.mock_torchdist import MockDistributed

    init, new = MockDistributed.init_process_group, MockDistributed.new_group

    def init_process_group(backend: str, rank: int = rank, world_size: int = 1, own: int = rank) -> None:  # noqa: ARG001
        init(backend, own, world_size)

    def new_group(group_ranks: Any, pg_options: Any) -> Any:
        group = new(group_ranks, pg_options)
        group.rank.return_value = rank if group.size() > 1 else 0
        return group

    with (
        mock.patch.object(MockDistributed, "init_process_group", staticmethod(init_process_group)),
        mock.patch.object(MockDistributed, "new_group", staticmethod(new_group)),
    ):
        yield


def knows_its_rank() -> None:
    """The fault that a comparison of ranks has to find: a number of Python's, read while the module is made."""
    from neuronx_distributed.parallel_layers import parallel_state

    from gemma4cfg.runtime.graphs import RankModule

    right = RankModule.choose

    def choose(self: Any, logits: Any) -> Any:
        return right(self, logits * (2.0 + self.rank))

    made = RankModule.__init__

    def initialize(self: Any, plan: Any, collectives: Any) -> None:
        made(self, plan, collectives)
        up = parallel_state.model_parallel_is_initialized()
        self.rank = parallel_state.get_tensor_model_parallel_rank() if up else 0

    RankModule.choose, RankModule.__init__ = choose, initialize  # type: ignore[method-assign]


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

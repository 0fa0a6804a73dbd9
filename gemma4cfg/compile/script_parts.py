"""What a rendered ``compile.py`` calls by short names: modules, inputs, aliases, rank files, places."""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from gemma4cfg.compile import values
from gemma4cfg.compile.carry_out import instance_of, weight_names_of
from gemma4cfg.compile.modules import read_rank
from gemma4cfg.compile.script import state_outputs
from gemma4cfg.compile.sdk_environment import prepare, prepare_spawned
from gemma4cfg.compile.sdk_runner import states_of
from gemma4cfg.compile.seeding import seed
from gemma4cfg.plan.records import Plan
from gemma4cfg.runtime.rank_files import RANK_FILE


class Parts:
    """The parts of one plan's calls. ``output`` is where programs and rank files go, which are cut from ``checkpoint``."""

    def __init__(self, plan: Plan, output: Path, checkpoint: str) -> None:
        self.plan, self.output, self.checkpoint = plan, output, checkpoint
        self._plain = plan.to_json()
        output.mkdir(parents=True, exist_ok=True)
        prepare()

    @classmethod
    def of(cls, script: str) -> Parts:
        """For a script beside its ``plan.json``, from its command line."""
        plan = Plan.from_json(json.loads(Path(script).with_name("plan.json").read_text(encoding="utf-8")))
        parser = argparse.ArgumentParser(description=f"The calls of plan {plan.plan_id[:12]}, in order.")
        planned = plan.provenance["checkpoint"]
        parser.add_argument(
            "--checkpoint", default=planned, required=planned is None, help="a Hugging Face directory or URL"
        )
        parser.add_argument("--output", type=Path, default=Path("compiled"), help="programs and rank files")
        given = parser.parse_args()
        return cls(plan, given.output, given.checkpoint)

    @staticmethod
    def prepare_spawned() -> None:
        """Make a process that another one has spawned fit for the SDK."""
        prepare_spawned()

    def plan_part(self, path: str) -> Any:
        """A part of the plan's JSON, e.g. ``tensors`` or ``provenance/checkpoint_names``."""
        found: Any = self._plain
        for name in path.split("/"):
            found = found[name]
        return found

    def path(self, name: str) -> str:
        """Below the output directory."""
        return str(self.output / name)

    @property
    def rank_directory(self) -> Path:
        return self.output / self.plan.placement_id

    def module(self, graph: str | None = None) -> nn.Module:
        """The module of one graph, its KV in Parameters; or of all, its KV in buffers. Raises SilentLossError where the SDK
        would lose its KV."""
        if graph is None:
            spelled: dict[str, Any] = {
                "state": "buffer",
                "graphs": [{"ref": f"graphs/{g.name}"} for g in self.plan.graphs],
            }
            values.check_module(self.plan, spelled, None)
        else:
            spelled = _parameters(graph)
            values.check_module(self.plan, spelled, self.outputs(graph))
        return values.make_module(self.plan, spelled)

    def inputs(self, graph: str) -> tuple[Tensor, ...]:
        return tuple(self.named_inputs(graph).values())

    def named_inputs(self, graph: str) -> dict[str, Tensor]:
        return values.port_tensors(self.plan, f"graphs/{graph}/inputs")

    def outputs(self, graph: str) -> dict[str, int]:
        """State port to output index, of a graph that returns its state after its outputs."""
        return state_outputs(values.named_graph(self.plan, f"graphs/{graph}"))

    def aliases(self, module: nn.Module, outputs: Mapping[str, int]) -> dict[nn.Parameter, int]:
        """The state's Parameters to output indices."""
        return values.aliases_of(module, outputs)

    def instance(self, graph: str, outputs: Mapping[str, int]) -> Any:
        """A ``BaseModelInstance`` that builds its module inside the builder's parallel state."""
        return instance_of(self.plan, _parameters(graph), outputs)

    def rank_function(self, graph: str, outputs: Mapping[str, int], files: Sequence[str]) -> values.RankFunction:
        """``parallel_model_trace``'s ``func``: the module with the weights of the rank that calls it, and its aliases."""
        spelled = {**_parameters(graph), "weights": {"rank_files": list(files)}}
        return values.RankFunction(self.plan, spelled, dict(outputs), self.rank_directory)

    def names(self, module: nn.Module) -> tuple[str, ...]:
        """The names of a module's weights, which every rank file has to hold."""
        return weight_names_of(self.plan, module)

    def rank_files(self, names: Collection[str] | None = None) -> list[dict[str, Tensor]]:
        """Every rank's weights. Raises PlanError where a name is missing or has no place: the SDK would say nothing."""
        wanted = values.weight_names(self.plan) if names is None else frozenset(names)
        return [read_rank(self.rank_directory / RANK_FILE.format(rank=rank), wanted) for rank in range(self.plan.tp)]

    def copy_state(self, source: Any, destination: Any, rank: int = 0) -> None:
        """One program's KV on a rank into another's, once per port; read anew each time."""
        for old, new in zip(states_of(source, rank), states_of(destination, rank), strict=True):
            new.copy_(old)

    def seed_state(self, cache: Any, destination: Any, rank: int) -> None:
        """The host's KV into a program's on a rank."""
        seed(self.plan, states_of(destination, rank), cache, rank)


def _parameters(graph: str) -> dict[str, Any]:
    return {"graph": {"ref": f"graphs/{graph}"}, "state": "parameter"}

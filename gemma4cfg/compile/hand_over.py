"""Where each stream's KV is, of graphs that share none: it goes from the graph that ran last to the one that runs next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from gemma4cfg.errors import ConfigError
from gemma4cfg.plan.records import Plan

States = Mapping[str, Sequence[Tensor]]
"""Graph name to its KV, in the ports' order, each [batch, …]."""


class HandOver:
    """Carries out the plan's ``copy_`` calls, each stream's rows by themselves: a stream that another graph has run since must
    not get its old KV back."""

    def __init__(self, plan: Plan) -> None:
        self._pairs = {
            (_graph(call.args["src"]), _graph(call.args["self"]))
            for call in plan.calls
            if call.api == "torch.Tensor.copy_" and "ports" in call.args["src"]
        }
        self._holder: dict[int, str] = {}

    def before(self, graph: str, inputs: Mapping[str, Tensor], states: States) -> None:
        """Give ``graph`` the KV of every stream that it is about to continue.

        Raises ConfigError where the plan has no such hand-over.
        """
        starts, valid = inputs["position_ids"][:, 0].tolist(), inputs["valid_length"].tolist()
        for stream, rows in enumerate(valid):
            if not rows:
                continue
            holder = self._holder.get(stream, graph)
            if holder != graph and starts[stream] > 0:
                if (holder, graph) not in self._pairs:
                    raise ConfigError(
                        f"stream {stream} was last run by {holder}, and this plan's calls hand no K/V from there to {graph}: "
                        "the graphs share none; e.g. reset the stream, or recipe=model_builder, whose graphs share it"
                    )
                for old, new in zip(states[holder], states[graph], strict=True):
                    if len(valid) == 1:
                        new.copy_(old)
                    else:
                        new[stream].copy_(old[stream])
            self._holder[stream] = graph


def _graph(value: Mapping[str, Mapping[str, str]]) -> str:
    """Of ``{"ports": {"ref": "graphs/NAME/state"}}``."""
    return value["ports"]["ref"].split("/")[1]

"""Every stream's logits, also of graphs that return tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gemma4cfg.errors import DisprovedError
from gemma4cfg.plan.records import Plan
from gemma4cfg.runtime.host.sampling import host_softcap, samples_on_device, softcap

if TYPE_CHECKING:
    from gemma4cfg.verify.faults import InputsEdit
    from gemma4cfg.verify.group import Ranks


class LogitsRunner:
    """A runner that also keeps every stream's latest logits, softcapped: what a graph that samples does not return."""

    def __init__(self, plan: Plan, ranks: Ranks, edit: InputsEdit | None = None) -> None:
        self._ranks, self._edit = ranks, edit
        self._samples = samples_on_device(plan)
        self._softcap = host_softcap(plan)
        self.latest: dict[int, Tensor] = {}

    def run(self, graph: str, inputs: Mapping[str, Tensor]) -> Tensor:
        output = self._ranks.run(graph, self._edit(graph, inputs) if self._edit else inputs)
        if self._samples:
            logits = self._ranks.logits()
            capped = logits if self._softcap is None else softcap(logits, self._softcap)
            valid = inputs["valid_length"].tolist()
            self.latest |= {stream: capped[stream] for stream, rows in enumerate(valid) if rows}
        return output

    def finished(self, results: Mapping[int, Tensor | int]) -> Tensor:
        """Logits [streams, vocabulary] of a session's results. Of a graph that samples, its tokens have to be theirs."""
        if not self._samples:
            return torch.stack([result for result in results.values() if isinstance(result, Tensor)])
        logits = torch.stack([self.latest[stream] for stream in results])
        if logits.argmax(dim=1).tolist() != list(results.values()):
            raise DisprovedError("offload.sampling=device: the graph's tokens are not the largest of its logits")
        return logits

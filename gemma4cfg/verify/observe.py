"""What a rank did while it ran: which weights it read, which slots it wrote, how often it met the other ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gemma4cfg.plan.records import Plan
from gemma4cfg.runtime.kv import KvState
from gemma4cfg.runtime.rank_files import RANK_FILE
from gemma4cfg.runtime.ranks import RankWorker
from gemma4cfg.verify.constants import wrong_constants
from gemma4cfg.verify.faults import Fault
from sharding.collectives.protocol import Collectives
from sharding.headers import read_header


@dataclass(frozen=True)
class Observed:
    """Of one rank over a whole run. ``collectives``: graph to (all-reduces, all-gathers) of one call, each kind of call that
    was seen. ``digest``: of every output. ``unread``: weights that the forward pass never touched. ``not_of_file``: weights
    that are not, bit for bit, what the rank file has under their name. ``wrong_constants``: sentences."""

    digest: str
    graph_calls: Mapping[str, int]
    slot_writes: Mapping[int, int]
    collectives: Mapping[str, tuple[tuple[int, int], ...]]
    unread: tuple[str, ...]
    not_of_file: tuple[str, ...]
    wrong_constants: tuple[str, ...]


class ObservedWorker(RankWorker):
    """A rank that is watched. With ``keeps_layers`` it also keeps every layer's output at every valid prompt row."""

    def __init__(
        self, plan: Plan, directory: Path, rank: int, collectives: Collectives, fault: Fault, keeps_layers: bool
    ) -> None:
        self._meetings = CountingCollectives(collectives)
        super().__init__(fault.planned(plan), directory, rank, self._meetings)
        if fault.module:
            fault.module(self.module, plan)
        self._not_of_file = differing_weights(self.module, directory / RANK_FILE.format(rank=rank))
        self._wrong_constants = wrong_constants(self.module, plan)
        self._slots = CountingState(self.module._state)
        self.module._state = self._slots  # type: ignore[assignment]
        self._calls: Counter[str] = Counter()
        self._per_call: dict[str, set[tuple[int, int]]] = {}
        self._reading = ReadParameters(self.module)
        self._layers = LayerOutputs(self.module.model) if keeps_layers else None
        self._logits = torch.empty(0)
        self._choose, self.module.choose = self.module.choose, self._keep_logits  # type: ignore[method-assign]

    def run(self, graph: str, inputs: Mapping[str, Tensor]) -> Tensor:
        first = graph not in self._calls
        self._calls[graph] += 1
        before = self._meetings.counts
        if first:
            with self._reading:
                output = super().run(graph, inputs)
        else:
            output = super().run(graph, inputs)
        made = (self._meetings.counts[0] - before[0], self._meetings.counts[1] - before[1])
        self._per_call.setdefault(graph, set()).add(made)
        if self._layers:
            self._layers.keep(inputs)
        return output

    def observed(self) -> Observed:
        return Observed(
            digest=self.digest(),
            graph_calls=dict(self._calls),
            slot_writes=dict(self._slots.writes),
            collectives={graph: tuple(sorted(counts)) for graph, counts in self._per_call.items()},
            unread=self._reading.unread(),
            not_of_file=self._not_of_file,
            wrong_constants=self._wrong_constants,
        )

    def logits(self) -> Tensor:
        """Of the last call, [batch, vocabulary], also where the graph returns token ids."""
        return self._logits

    def _keep_logits(self, logits: Tensor) -> Tensor:
        self._logits = logits
        return self._choose(logits)

    def layers(self) -> dict[int, Tensor] | None:
        """Stream to [layers, prompt positions, hidden], of the prompts since this was last asked."""
        return self._layers.taken() if self._layers else None


def differing_weights(module: nn.Module, path: Path) -> tuple[str, ...]:
    """Names of parameters whose bytes are not those of the file, read by another reader than the loader's."""
    header, differing = read_header(path), []
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as stored:
        for name, parameter in module.named_parameters():
            start, stop = header.span(name) if name in header.tensors else (0, 0)
            held = parameter.detach().contiguous().view(torch.uint8).flatten().numpy()
            if held.nbytes != stop - start or not np.array_equal(held, np.frombuffer(stored[start:stop], np.uint8)):
                differing.append(name)
    return tuple(differing)


class CountingCollectives:
    """Counts calls on their way to the others."""

    def __init__(self, inner: Collectives) -> None:
        self._inner = inner
        self.counts = (0, 0)

    @property
    def size(self) -> int:
        return self._inner.size

    def all_reduce(self, tensor: Tensor) -> Tensor:
        self.counts = (self.counts[0] + 1, self.counts[1])
        return self._inner.all_reduce(tensor)

    def all_gather(self, tensor: Tensor, dim: int) -> Tensor:
        self.counts = (self.counts[0], self.counts[1] + 1)
        return self._inner.all_gather(tensor, dim)


class CountingState:
    """Counts writes of slots on their way to the state."""

    def __init__(self, inner: KvState) -> None:
        self._inner = inner
        self.writes: Counter[int] = Counter()

    def read(self, slot: int) -> tuple[Tensor, Tensor]:
        return self._inner.read(slot)

    def write(self, slot: int, key: Tensor, value: Tensor) -> None:
        self.writes[slot] += 1
        self._inner.write(slot, key, value)

    def outputs(self) -> tuple[Tensor, ...]:
        return self._inner.outputs()


class ReadParameters(TorchFunctionMode):
    """Notes which of a module's parameters any torch function is given."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._names = {id(parameter): name for name, parameter in module.named_parameters()}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in (*args, *(kwargs or {}).values()):
            self._note(value)
        return func(*args, **(kwargs or {}))

    def _note(self, value: Any) -> None:
        if isinstance(value, Tensor):
            self._names.pop(id(value), None)
        elif isinstance(value, (tuple, list)):
            for one in value:
                self._note(one)

    def unread(self) -> tuple[str, ...]:
        return tuple(sorted(self._names.values()))


class LayerOutputs:
    """Each decoder layer's output in calls of several rows, by stream, valid rows only."""

    def __init__(self, text: Any) -> None:
        self._last: list[Tensor] = []
        self._kept: dict[int, list[Tensor]] = {}
        for layer in text.layers:
            layer.register_forward_hook(lambda _module, _given, output: self._last.append(output))

    def keep(self, inputs: Mapping[str, Tensor]) -> None:
        """File what the call left behind."""
        outputs = list(self._last)
        self._last.clear()
        if inputs["position_ids"].shape[1] == 1:
            return
        for stream, valid in enumerate(inputs["valid_length"].tolist()):
            if valid:
                self._kept.setdefault(stream, []).append(torch.stack([one[stream, :valid] for one in outputs]).clone())

    def taken(self) -> dict[int, Tensor]:
        kept, self._kept = self._kept, {}
        return {stream: torch.cat(parts, dim=1) for stream, parts in kept.items()}

"""What was recorded, told as text: a line for each call, which a person can write by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from gemma4cfg.plan.records import Plan
from gemma4cfg.runtime.graphs import BufferGraphs, ParameterGraph
from tests.compile.recorded import Recorded


class Told:
    """- ``#3`` is what call 3 returned;
    - ``float32[7, 12, 32]`` a tensor of zeros, ``int32 [0]`` one element and its value;
    - ``parameters(…)`` and ``buffers(…)`` a module by how it holds its KV, and of what shapes;
    - ``{states 0-11: 1-12}`` a module's own Parameters, from the first to the last, and the outputs that they are tied to;
    - ``<tp0>`` the tensors of that rank's file, all of them and equal to the file's;
    - CHECKPOINT, RANKS and PLACEMENT are this run's; other paths are below the artifact, or below the compiler's directory.
    """

    def __init__(self, plan: Plan, calls: Recorded, work: Path, checkpoint: Path) -> None:
        self._calls = calls
        self._results = {
            id(result): number for number, (_, _, result) in reversed(list(enumerate(calls))) if result is not None
        }
        self._roots = (work / "artifact", work / "work")
        ranks = work / "ranks"
        self._files = {file.name.partition("_")[0]: load_file(file) for file in ranks.glob("tp*.safetensors")}
        self._names = {str(checkpoint): "CHECKPOINT", str(ranks): "RANKS", plan.placement_id: "PLACEMENT"}

    def lines(self) -> list[str]:
        return [
            f"#{number} {api}({', '.join(f'{name}={self._value(value)}' for name, value in given.items())})"
            for number, (api, given, _) in enumerate(self._calls)
        ]

    def _value(self, value: Any) -> str:
        if value is None or isinstance(value, (bool, int)):
            return str(value)
        if isinstance(value, (str, Path)):
            return self._text(str(value))
        if id(value) in self._results:
            return f"#{self._results[id(value)]}"
        if owner := getattr(value, "held_by", None):
            return f"{self._value(owner)}.nxd_model"
        if isinstance(value, Tensor):
            return _tensor(value)
        if isinstance(value, nn.Module):
            return self._module(value)
        if isinstance(value, torch.device):
            return value.type
        if isinstance(value, Mapping):
            return self._mapping(value)
        if isinstance(value, tuple):
            return f"({', '.join(map(self._value, value))})"
        if isinstance(value, list):
            return f"[{', '.join(map(self._value, value))}]"
        assert callable(value)
        return f"() -> {self._value(value())}"

    def _text(self, text: str) -> str:
        for root in self._roots:
            if text.startswith(f"{root}/"):
                return str(Path(text).relative_to(root))
        return self._names.get(text, text)

    def _mapping(self, value: Mapping[Any, Any]) -> str:
        if value and all(isinstance(key, nn.Parameter) for key in value):
            outputs = list(value.values())
            assert outputs == list(range(outputs[0], outputs[0] + len(outputs)))
            return f"{{states 0-{len(outputs) - 1}: {outputs[0]}-{outputs[-1]}}}"
        if held := self._rank_of(value):
            return held
        if len(value) > 20:
            return f"{len(value)} entries"
        return f"{{{', '.join(f'{key}: {self._value(item)}' for key, item in value.items())}}}"

    def _rank_of(self, tensors: Mapping[Any, Any]) -> str | None:
        for rank, file in self._files.items():
            if tensors.keys() == file.keys() and all(torch.equal(tensors[name], file[name]) for name in file):
                return f"<{rank}>"
        return None

    def _module(self, module: nn.Module) -> str:
        if isinstance(module, BufferGraphs):
            kv = {name: one for name, one in module.named_buffers() if name.startswith(("key_", "value_"))}
            return f"buffers({_kv(list(kv.values()))})"
        assert isinstance(module, ParameterGraph)
        weights = {name: one for name, one in module.named_parameters() if not name.startswith("states.")}
        held = self._rank_of(weights)
        if held is None:
            assert not any(one.any() for one in weights.values()), "weights are a rank's, or zeros"
        return f"parameters({_kv(list(module.states))}{f'; {held}' if held else ''})"


def _kv(tensors: list[Tensor]) -> str:
    """Runs of equal ones, ``2 x float32[7, 1, 18, 16]``."""
    runs: list[tuple[int, str]] = []
    for tensor in tensors:
        told = _tensor(tensor)
        if runs and runs[-1][1] == told:
            runs[-1] = runs[-1][0] + 1, told
        else:
            runs.append((1, told))
    return ", ".join(f"{count} x {told}" for count, told in runs)


def _tensor(value: Tensor) -> str:
    kind = str(value.dtype).removeprefix("torch.")
    if value.numel() == 1:
        return f"{kind} {value.tolist()}"
    assert value.is_meta or not value.any(), "examples and KV are zeros"
    return f"{kind}{list(value.shape)}"

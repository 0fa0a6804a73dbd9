"""A rank file into a rank's module."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open
from torch import nn

from gemma4cfg.errors import PlanError
from gemma4cfg.runtime.weights import assign

RANK_FILE = "tp{rank}_sharded_checkpoint.safetensors"


def load_rank(module: nn.Module, path: Path, state: tuple[str, ...] = ()) -> None:
    """Give every parameter of ``module`` its tensor of ``path``, and every tensor its parameter; ``state`` names parameters
    that hold KV, which no file has.

    Raises PlanError naming what is missing, too many, or of another shape or dtype: nothing is passed over.
    """
    wanted = {name: parameter for name, parameter in module.named_parameters() if name not in state}
    with safe_open(str(path), framework="pt") as file:
        stored = set(file.keys())
        wrong = [f"{name} is missing" for name in sorted(wanted.keys() - stored)]
        wrong += [f"{name} has no place in the model" for name in sorted(stored - wanted.keys())]
        for name in sorted(wanted.keys() & stored):
            tensor = file.get_tensor(name)
            here = wanted[name]
            if tensor.shape != here.shape or tensor.dtype != here.dtype:
                wrong.append(f"{name} is {_spelled(tensor)}, not {_spelled(here)}")
                continue
            assign(module, name, tensor)
    if wrong:
        raise PlanError(f"{path} is not of this plan: {'; '.join(wrong)}")


def _spelled(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"

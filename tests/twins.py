"""Tiny twins of the five models: their layers, head counts, sharing and experts, small widths, and no two elements of a
tensor alike. What each rank must hold is cut here with plain indexing, straight from a plan's JSON."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gemma4cfg import build_plan, load_config

Values = dict[str, npt.NDArray[np.uint16]]
"""Tensor name to its elements' bits (bfloat16)."""

Stored = dict[str, tuple[str, tuple[int, ...], bytes]]
"""Tensor name to dtype, shape and bytes."""

MODELS = ("e2b", "e4b", "12b", "26b-a4b", "31b")
PREFIX = "model.language_model."
HOST_FILE = "host_tables.safetensors"
TOWER = "model.vision_tower.patch_embedder.input_proj.weight"
"""Every twin's checkpoint has it, and nothing reads it."""

_VOCABULARY = 70  # no multiple of 4 or 3: a head that is cut ends in zeros
_WIDTHS = (
    "model.hidden_size=32",
    f"model.vocab_size={_VOCABULARY}",
    "model.attention.sliding_attention.head_dim=8",
    "model.attention.full_attention.head_dim=16",
    "model.mlp.intermediate_size=28",  # no multiple of 8 or 3
)
_PLE = ("model.ple.width=8", f"model.ple.vocab_size={_VOCABULARY}")
_EXTRA = {"e2b": _PLE, "e4b": _PLE, "26b-a4b": ("model.moe.intermediate_size=24", "model.moe.experts=16")}

_VALUES = 2**16 - 1
"""Bit patterns other than zero, which is what padding is."""


@functools.cache
def _plan(model: str, tp: int, choices: tuple[str, ...]) -> str:
    settings = [f"model={model}", f"tp={tp}", *_WIDTHS, *_EXTRA.get(model, ()), *choices]
    return json.dumps(build_plan(load_config(settings)).to_json())


def twin_plan(model: str, tp: int, *choices: str) -> dict[str, Any]:
    """The JSON of a twin's plan, a fresh copy."""
    plan: dict[str, Any] = json.loads(_plan(model, tp, choices))
    return plan


def twin_values(plan: Mapping[str, Any], optional: bool = True, seed: int = 0) -> Values:
    """Values of every tensor of the checkpoint; the k/v tensors of borrowing layers only if ``optional``.

    Within a tensor no two elements are equal and none is zero; tensors of one shape differ.
    """
    random = np.random.default_rng(seed)
    values: Values = {}
    for name, entry in sorted(plan["tensors"].items()):
        if entry["status"] == "tied" or (entry["status"] == "optional" and not optional):
            continue
        values[name] = _distinct(tuple(entry["shape"]), random)
    values[TOWER] = _distinct((6, 5), random)
    return values


def _distinct(shape: tuple[int, ...], random: np.random.Generator) -> npt.NDArray[np.uint16]:
    count = int(np.prod(shape))
    assert count <= _VALUES, f"{shape}: bfloat16 has only {_VALUES} values that are not zero"
    first, step = int(random.integers(_VALUES)), int(random.integers(1, _VALUES))
    while gcd(step, _VALUES) > 1:
        step += 1
    return ((first + step * np.arange(count, dtype=np.int64)) % _VALUES + 1).astype(np.uint16).reshape(shape)


def used(plan: Mapping[str, Any]) -> set[str]:
    """Stored tensors that anything is made of."""
    return {
        name
        for name, entry in plan["tensors"].items()
        if entry["home"] in ("device", "host") and entry["status"] != "tied"
    }


def write_twin(directory: Path, values: Values, parts: int = 1, prefix: str = PREFIX) -> Path:
    """The safetensors files of a twin, tensors in a seeded disorder; ``prefix`` is what stands for ``PREFIX`` in them."""
    directory.mkdir(parents=True)
    names = [str(name) for name in np.random.default_rng(parts).permutation(sorted(values))]
    weight_map: dict[str, str] = {}
    for number in range(parts):
        part = "model.safetensors" if parts == 1 else f"model-{number + 1:05}-of-{parts:05}.safetensors"
        chosen = {name.replace(PREFIX, prefix, 1): values[name] for name in names[number::parts]}
        write_file(directory / part, {name: ("BF16", data.shape, data.tobytes()) for name, data in chosen.items()})
        weight_map.update(dict.fromkeys(chosen, part))
    if parts > 1:
        total = sum(data.nbytes for data in values.values())
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def write_file(path: Path, tensors: Stored) -> None:
    """One safetensors file, tensors in the order given."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + len(data)]}
        position += len(data)
    raw = json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + b"".join(data for *_, data in tensors.values()))


def read_file(path: Path) -> Stored:
    """Everything in one safetensors file."""
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:start])
    header.pop("__metadata__", None)
    return {
        name: (entry["dtype"], tuple(entry["shape"]), raw[start + entry["data_offsets"][0] : start + entry["data_offsets"][1]])
        for name, entry in header.items()
    }  # fmt: skip


def read_directory(directory: Path) -> dict[str, Stored]:
    """Every safetensors file of a directory, by name."""
    return {path.name: read_file(path) for path in sorted(directory.glob("*.safetensors"))}


def cut(values: npt.NDArray[np.uint16], placement: Mapping[str, Any], rank: int) -> npt.NDArray[np.uint16]:
    """A rank's elements of a tensor."""
    if placement["dim"] is None:
        return values
    along = np.moveaxis(values, placement["dim"], 0)
    pieces = [
        np.zeros((piece["zeros"], *along.shape[1:]), np.uint16) if isinstance(piece, dict) else along[slice(*piece)]
        for piece in placement["ranges"][rank]
    ]
    return np.ascontiguousarray(np.moveaxis(np.concatenate(pieces), 0, placement["dim"]))


def expected_files(plan: Mapping[str, Any], values: Values) -> dict[str, Stored]:
    """What must be in which file, and nothing else."""
    files: dict[str, Stored] = {}
    widen = plan["dtype"] == "float32"
    for rank in range(plan["tp"]):
        tensors: Stored = {}
        for name, entry in plan["tensors"].items():
            if entry["home"] != "device":
                continue
            local = cut(values[entry["source"] if entry["status"] == "tied" else name], entry["placement"], rank)
            wide = local.astype("<u4") << 16 if widen else local
            tensors[entry["local_name"]] = ("F32" if widen else "BF16", local.shape, wide.tobytes())
        for name, entry in plan["rank_tensors"].items():
            constant = np.array(entry["values"][rank], entry["dtype"])
            spelling = {"int32": "I32", "int64": "I64", "float32": "F32"}[entry["dtype"]]
            tensors[name] = (spelling, constant.shape, constant.tobytes())
        files[f"tp{rank}_sharded_checkpoint.safetensors"] = tensors
    host = {name: values[name] for name, entry in plan["tensors"].items() if entry["home"] == "host"}
    if host:
        files[HOST_FILE] = {name: ("BF16", data.shape, data.tobytes()) for name, data in host.items()}
    return files


def differences(found: Mapping[str, Stored], expected: Mapping[str, Stored]) -> list[str]:
    """``file: tensor`` of everything that is absent, too many, or not the same in dtype, shape or any byte."""
    wrong = [f"{file}: the file" for file in sorted(found.keys() ^ expected.keys())]
    for file in sorted(found.keys() & expected.keys()):
        here, there = found[file], expected[file]
        wrong += [f"{file}: {name}" for name in sorted(here.keys() | there.keys()) if here.get(name) != there.get(name)]
    return wrong


def merged_tensors(files: Mapping[str, Stored]) -> Stored:
    """The tensors of several parts together. Fails where one is in two."""
    together: Stored = {}
    for tensors in files.values():
        assert not together.keys() & tensors.keys()
        together |= tensors
    return together


def as_stored(values: Values, names: Sequence[str] | set[str]) -> Stored:
    """These tensors as a checkpoint holds them."""
    return {name: ("BF16", values[name].shape, values[name].tobytes()) for name in names}

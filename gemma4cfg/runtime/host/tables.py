"""Embedding tables on the host: from token ids to what the plan's graphs ask for, rounded as the reference rounds."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

from gemma4cfg.architecture.inventory import EMBEDDING, PLE_PROJECTION, PLE_PROJECTION_NORM, PLE_TABLE
from gemma4cfg.errors import UserError
from gemma4cfg.plan.records import Numerics, Plan
from sharding.errors import ShardingError
from sharding.files import read_bytes
from sharding.headers import Header, dtype_name, read_header
from sharding.layout import HOST_FILE

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class HostTables:
    """What the host holds of one plan. ``vocabulary`` is the number of token ids; a table is null where the device has it."""

    numerics: Numerics
    dtype: torch.dtype
    vocabulary: int
    layers: int
    embedding: _Table | None
    per_layer: _Table | None
    projection: _Projection | None

    @classmethod
    def open(cls, plan: Plan, directory: str | Path) -> HostTables:
        """The tables of the plan's ``host`` in the resharder's ``directory``. Tables are mapped, not read; the PLE
        projection, which every token needs whole, is read.

        Raises UserError where the file is missing, unsound, or of another plan.
        """
        names = {name for name, entry in plan.tensors.items() if entry["home"] == "host"}
        common = (plan.numerics, getattr(torch, plan.dtype), vocabulary_of(plan), len(plan.layers))
        if not names:
            return cls(*common, None, None, None)
        path = Path(directory) / HOST_FILE
        header = _header(path, plan.placement_id)
        data = _mapped(path)
        tables = {name: _table(data, header, name) for name in (EMBEDDING, PLE_TABLE) if name in names}
        projection = None
        if PLE_PROJECTION in names:
            weights = (
                _read(path, header, name).to(getattr(torch, plan.dtype))
                for name in (PLE_PROJECTION, PLE_PROJECTION_NORM)
            )
            projection = _Projection(plan.numerics, *weights)
        return cls(*common, tables.get(EMBEDDING), tables.get(PLE_TABLE), projection)

    def check(self, token_ids: Tensor) -> None:
        """Raises UserError for an id (of any shape) that the vocabulary does not have."""
        outside = token_ids[(token_ids < 0) | (token_ids >= self.vocabulary)]
        if outside.numel():
            raise UserError(
                f"token id {int(outside[0])}: the vocabulary has {self.vocabulary:,} ids, 0 to {self.vocabulary - 1}; "
                "the tokenizer is another model's"
            )

    def inputs(self, token_ids: Tensor) -> dict[str, Tensor]:
        """Of token ids [batch, rows]: ``inputs_embeds`` [batch, rows, hidden], or ``input_ids`` where the device holds the
        embedding; and with the PLE table on the host ``per_layer_inputs`` [batch, rows, layers, width]: the table's scaled
        rows, or what the layers take if the projection is on the host too.

        Raises UserError for an id outside the vocabulary.
        """
        self.check(token_ids)
        if self.embedding is None:
            inputs = {"input_ids": token_ids.to(torch.int32)}
        else:
            inputs = {"inputs_embeds": self._scaled(self.embedding, token_ids, self.numerics.embedding_scale)}
        if self.per_layer is not None and self.numerics.ple is not None:
            packed = self._scaled(self.per_layer, token_ids, self.numerics.ple.embedding_scale)
            rows = packed.reshape(*token_ids.shape, self.layers, -1)
            inputs["per_layer_inputs"] = (
                rows if self.projection is None else self.projection.combine(inputs["inputs_embeds"], rows)
            )
        return inputs

    def _scaled(self, table: _Table, token_ids: Tensor, scale: float) -> Tensor:
        """Both factors in the plan's dtype before they are multiplied, which is where the reference rounds."""
        return table.rows(token_ids).to(self.dtype) * torch.tensor(scale, dtype=self.dtype)


@dataclass(frozen=True, slots=True)
class _Table:
    """``data`` is a mapped table's bytes, [rows, bytes of a row], in ``dtype``."""

    data: NDArray[np.uint8]
    dtype: torch.dtype

    def rows(self, indices: Tensor) -> Tensor:
        """[*indices, elements of a row], copied: only these rows are ever touched."""
        return torch.from_numpy(self.data[indices.numpy()]).view(self.dtype)


@dataclass(frozen=True, slots=True)
class _Projection:
    """PLE's projection of the token embedding: ``weight`` [layers x width, hidden], ``norm`` [width]."""

    numerics: Numerics
    weight: Tensor
    norm: Tensor

    def combine(self, embeddings: Tensor, rows: Tensor) -> Tensor:
        """Embeddings [batch, rows, hidden] projected, normed in float32 and added to the table's [batch, rows, layers,
        width]."""
        ple = self.numerics.ple
        assert ple is not None, "a plan with a PLE projection states its scales"
        projected = linear(embeddings, self.weight) * ple.projection_scale
        wide = projected.reshape(rows.shape).float()
        mean_square = wide.pow(2).mean(-1, keepdim=True) + self.numerics.rms_norm_eps
        normed = wide * torch.pow(mean_square, -0.5) * self.norm.float()
        return (normed.to(rows.dtype) + rows) * ple.combine_scale


def vocabulary_of(plan: Plan) -> int:
    """Token ids that every table of the model has a row for."""
    return min(int(plan.tensors[name]["shape"][0]) for name in (EMBEDDING, PLE_TABLE) if name in plan.tensors)


def _header(path: Path, placement_id: str) -> Header:
    try:
        header = read_header(path)
    except ShardingError as error:
        raise UserError(f"{error}; task=shard writes the tables") from error
    found = header.metadata.get("placement_id")
    if found != placement_id:
        raise UserError(
            f"{path}: made for placement_id={found}, the plan has {placement_id}; task=shard writes its own"
        )
    return header


def _mapped(path: Path) -> NDArray[np.uint8]:
    """The whole file, mapped; read-ahead is off, since rows lie far apart."""
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    mapping.madvise(mmap.MADV_RANDOM)
    return np.frombuffer(mapping, np.uint8)


def _table(data: NDArray[np.uint8], header: Header, name: str) -> _Table:
    start, stop = header.span(name)
    entry = header.tensors[name]
    return _Table(data[start:stop].reshape(entry.shape[0], -1), getattr(torch, dtype_name(entry.dtype)))


def _read(path: Path, header: Header, name: str) -> Tensor:
    entry = header.tensors[name]
    raw = bytearray(read_bytes(path, *header.span(name)))
    return torch.frombuffer(raw, dtype=getattr(torch, dtype_name(entry.dtype))).reshape(entry.shape)

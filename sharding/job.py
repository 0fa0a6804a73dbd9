"""What a run will do, known before it begins: which bytes of the source go where in which file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sharding.constants import rank_constants
from sharding.convert import target_dtype
from sharding.dtypes import dtype_name, stored_dtype
from sharding.errors import ShardingError
from sharding.identity import digest, job_identity
from sharding.layout import FORMAT_VERSION, HOST_FILE, FileLayout, lay_out, rank_files
from sharding.placement import Placement, Whole, from_json
from sharding.rows import Rows, rows_of
from sharding.source import Source, StoredTensor

Cuts = dict[tuple[Placement, tuple[int, ...], str], tuple[Placement, Rows]]
"""One placement and its rows for all tensors of a shape and dtype that are cut alike: layers repeat each other."""


@dataclass(frozen=True, slots=True)
class Use:
    """A source tensor's way into files, as tensor ``name`` of ``dtype``: ``files[i]`` is a file and whose rank's pieces
    it takes."""

    name: str
    dtype: str
    placement: Placement
    rows: Rows
    files: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Read:
    """One source tensor (``name`` is canonical) and everything that is made of it."""

    name: str
    tensor: StoredTensor
    uses: tuple[Use, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """``identity`` is what decides the bytes of the output and ``id`` its SHA-256. ``reads`` are in the source's order;
    ``constants[file]`` are tensors that are in no checkpoint."""

    id: str
    identity: dict[str, Any]
    reads: tuple[Read, ...]
    layouts: dict[str, FileLayout]
    constants: dict[str, dict[str, bytes]]

    @property
    def placement_id(self) -> str:
        return str(self.identity["placement_id"])


def make_job(
    placements: Mapping[str, Any], tp: int, dtype: str | None, source: Source, placement_id: str | None = None
) -> Job:
    """Raises ShardingError naming the tensor that is missing, of another shape or dtype, or cannot be placed."""
    wanted = stored_dtype(dtype) if dtype is not None else None
    reads = plan_reads(placements, tp, wanted, source)
    constants = rank_constants(placements.get("rank_tensors", {}), tp)
    parts = [part.identity() for part in source.parts]
    identity = job_identity(placements, tp, wanted, source.names, parts, placement_id)
    job_id = digest(identity)
    contents: dict[str, dict[str, tuple[str, tuple[int, ...]]]] = {name: {} for name in file_names(tp, reads)}
    for read in reads:
        for use in read.uses:
            shape = use.placement.local_shape(read.tensor.entry.shape)
            for file, _ in use.files:
                _add(contents[file], use.name, (use.dtype, shape))
    data: dict[str, dict[str, bytes]] = {}
    for file, tensors in constants.items():
        for name, (kind, shape, raw) in tensors.items():
            _add(contents[file], name, (kind, shape))
            data.setdefault(file, {})[name] = raw
    metadata = {
        "format": "pt",
        "format_version": FORMAT_VERSION,
        "job_id": job_id,
        "placement_id": identity["placement_id"],
    }
    layouts = {name: lay_out(name, tensors, metadata) for name, tensors in contents.items()}
    return Job(job_id, identity, reads, layouts, data)


def file_names(tp: int, reads: tuple[Read, ...]) -> list[str]:
    """The host's file where there is anything for it, then the ranks'."""
    on_host = any(file == HOST_FILE for read in reads for use in read.uses for file, _ in use.files)
    return [HOST_FILE] * on_host + rank_files(tp)


def plan_reads(placements: Mapping[str, Any], tp: int, dtype: str | None, source: Source) -> tuple[Read, ...]:
    """The source tensors that anything is made of, in the order in which they lie. Raises ShardingError."""
    if tp < 1:
        raise ShardingError(f"tp={tp}: there is at least one rank")
    uses: dict[str, list[Use]] = {}
    cuts: Cuts = {}
    missing = []
    for name, placed in placements["tensors"].items():
        home = placed.get("home", "device")
        tied = placed.get("status") == "tied"
        if home == "unused" or (tied and home != "device"):
            continue
        origin = placed["source"] if tied else name
        if origin not in source.tensors:
            missing.append(f"'{origin}'" + (f" (for '{name}')" if tied else ""))
            continue
        try:
            uses.setdefault(origin, []).append(_use(name, placed, tp, dtype, source.tensors[origin], cuts))
        except (ShardingError, KeyError, TypeError, ValueError) as error:
            raise ShardingError(f"tensor '{name}': {error}") from error
    if missing:
        some = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        raise ShardingError(f"{source.location}: {len(missing)} needed tensors are missing: {some}")
    order = {part.name: number for number, part in enumerate(source.parts)}
    reads = [Read(name, source.tensors[name], tuple(found)) for name, found in uses.items()]
    return tuple(sorted(reads, key=lambda read: (order[read.tensor.part], read.tensor.start, read.name)))


def _use(name: str, placed: Mapping[str, Any], tp: int, dtype: str | None, tensor: StoredTensor, cuts: Cuts) -> Use:
    shape, stored = tensor.entry.shape, tensor.entry.dtype
    if list(shape) != list(placed["shape"]):
        raise ShardingError(f"its shape in {tensor.part} is {list(shape)}, the placement says {list(placed['shape'])}")
    if "dtype" in placed and stored_dtype(placed["dtype"]) != stored:
        raise ShardingError(f"it is {dtype_name(stored)} in {tensor.part}, the placement says {placed['dtype']}")
    if placed.get("home", "device") == "host":
        return Use(name, stored, Whole(), rows_of(Whole(), shape, stored, 1), ((HOST_FILE, 0),))
    placement = from_json(placed["placement"])
    cut = placement, rows_of(placement, shape, stored, tp)
    placement, rows = cuts.setdefault((placement, shape, stored), cut)
    files = tuple((file, rank) for rank, file in enumerate(rank_files(tp)))
    local_name = placed.get("local_name") or name
    return Use(local_name, target_dtype(stored, dtype), placement, rows, files)


def _add(contents: dict[str, tuple[str, tuple[int, ...]]], name: str, value: tuple[str, tuple[int, ...]]) -> None:
    if name in contents:
        raise ShardingError(f"two tensors are called '{name}' in one file")
    contents[name] = value

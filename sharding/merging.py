"""``merge``: the source's tensors back from rank files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sharding.convert import target_dtype
from sharding.dtypes import stored_dtype
from sharding.errors import ShardingError
from sharding.files import is_url, join
from sharding.headers import Header, read_header
from sharding.layout import HOST_FILE, FileLayout, lay_out, rank_files
from sharding.manifest import Manifest, read_manifest, refuse_incomplete
from sharding.parts import INDEX_NAME
from sharding.placement import Placement, Whole, from_json
from sharding.readers import Readers
from sharding.records import Meter, ProgressCallback
from sharding.restore import Restorer
from sharding.rows import rows_of
from sharding.stream import TensorStream
from sharding.verify import check
from sharding.writer import OutputFile, refuse_full, remove_abandoned, write_file


@dataclass(frozen=True, slots=True)
class MergeResult:
    directory: str
    files: tuple[str, ...]
    tensors: int
    bytes_written: int


@dataclass(frozen=True, slots=True)
class _Piece:
    """A tensor to restore: ``stored`` is its name in the source, ``local`` in the rank files, which hold ``local_dtype``."""

    stored: str
    dtype: str
    shape: tuple[int, ...]
    local: str
    local_dtype: str
    placement: Placement
    files: tuple[str, ...]


def merge(
    directory: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    verify: bool = True,
    progress: ProgressCallback | None = None,
) -> MergeResult:
    """Restore every tensor of the source that the rank files were made from, under its name and in its dtype.

    Byte for byte where nothing was converted (or only widened: that is undone exactly). ``verify`` reads all files first
    and compares them with the manifest. The parts are named as the source's. Tensors that nothing read are not restored.

    Raises ShardingError where the files are not what their manifest says, do not hold every element, or the destination
    already has a checkpoint; NoSpaceError, OSError.
    """
    location, target = os.fspath(directory), os.fspath(destination)
    if is_url(target):
        raise ShardingError(f"{target}: a checkpoint is restored to a local directory")
    manifest = read_manifest(location)
    refuse_incomplete(manifest, location)
    if verify and (problems := check(location, progress=progress)):
        raise ShardingError("; ".join(f"{join(location, problem.file)}: {problem.message}" for problem in problems))
    headers = {name: read_header(join(location, name)) for name in manifest.files}
    pieces = _pieces(manifest, headers)
    layouts = _layouts(manifest, pieces)
    return _write(location, Path(target), pieces, layouts, headers, progress)


def _pieces(manifest: Manifest, headers: Mapping[str, Header]) -> dict[str, _Piece]:
    """By stored name."""
    ranks = tuple(rank_files(manifest.tp))
    wanted = stored_dtype(manifest.dtype) if manifest.dtype else None
    pieces = {}
    for name, placed in manifest.placements["tensors"].items():
        home = placed.get("home", "device")
        if home == "unused" or placed.get("status") == "tied":
            continue
        on_host = home == "host"
        files = (HOST_FILE,) if on_host else ranks
        local = name if on_host else placed.get("local_name") or name
        held = headers[files[0]].tensors.get(local)
        if held is None:
            raise ShardingError(f"'{local}' of '{name}' is not in {files[0]}")
        dtype = stored_dtype(placed["dtype"]) if "dtype" in placed else held.dtype
        if held.dtype != (dtype if on_host else target_dtype(dtype, wanted)):
            raise ShardingError(f"'{local}' in {files[0]} is {held.dtype}, which is not what {dtype} becomes")
        placement = Whole() if on_host else from_json(placed["placement"])
        pieces[name] = _Piece(
            manifest.origins[name][1], dtype, tuple(placed["shape"]), local, held.dtype, placement, files
        )
    return pieces


def _layouts(manifest: Manifest, pieces: Mapping[str, _Piece]) -> list[FileLayout]:
    """The parts, each with the tensors that it had."""
    contents: dict[str, dict[str, tuple[str, tuple[int, ...]]]] = {}
    for name, piece in pieces.items():
        part, stored = manifest.origins[name]
        contents.setdefault(part, {})[stored] = (piece.dtype, piece.shape)
    return [lay_out(part, tensors, {"format": "pt"}) for part, tensors in sorted(contents.items())]


def _write(
    location: str,
    directory: Path,
    pieces: Mapping[str, _Piece],
    layouts: list[FileLayout],
    headers: Mapping[str, Header],
    progress: ProgressCallback | None,
) -> MergeResult:
    present = [layout.name for layout in layouts if (directory / layout.name).exists()]
    if present or (directory / INDEX_NAME).exists():
        raise ShardingError(f"{directory}: {(*present, INDEX_NAME)[0]} is there already: choose another directory")
    directory.mkdir(parents=True, exist_ok=True)
    remove_abandoned(directory)
    size = sum(layout.size for layout in layouts)
    refuse_full(directory, size)
    meter = Meter("merging", size - sum(len(layout.header) for layout in layouts), progress)
    outputs: dict[str, OutputFile] = {}
    places = {tensor: (layout, tensor) for layout in layouts for tensor in layout.tensors}
    try:
        for layout in layouts:
            (directory / layout.name).parent.mkdir(parents=True, exist_ok=True)
            outputs[layout.name] = OutputFile(directory / layout.name, layout.size)
            outputs[layout.name].write(layout.header, 0)
        with Readers(location) as readers:
            restorer = Restorer(readers)
            for piece in sorted(pieces.values(), key=lambda piece: headers[piece.files[0]].span(piece.local)):
                layout, name = places[piece.stored]
                stream = TensorStream(layout.tensors[name], piece.local_dtype, outputs[layout.name], meter)
                rows = rows_of(piece.placement, piece.shape, piece.local_dtype, len(piece.files))
                starts = [headers[file].span(piece.local)[0] for file in piece.files]
                try:
                    restorer.restore(rows, list(zip(piece.files, starts, strict=True)), stream)
                except ShardingError as error:
                    raise ShardingError(f"tensor '{piece.stored}': {error}") from error
                stream.finish()
        for output in outputs.values():
            output.publish()
    finally:
        for output in outputs.values():
            output.discard()
    if len(layouts) > 1:
        weight_map = {tensor: layout.name for layout in layouts for tensor in layout.tensors}
        total = sum(tensor.size for layout in layouts for tensor in layout.tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        write_file(directory / INDEX_NAME, (json.dumps(index, indent=2) + "\n").encode())
    return MergeResult(str(directory), tuple(layout.name for layout in layouts), len(pieces), size)

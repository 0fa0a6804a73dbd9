"""Whether files are what they are remembered as, and what the source makes of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from sharding.checksum import file_checksum, xxh3_128
from sharding.engine import Digests, Engine
from sharding.errors import ShardingError
from sharding.files import join
from sharding.headers import read_header
from sharding.job import Job, make_job
from sharding.layout import MANIFEST_FILE, FileLayout
from sharding.limits import BLOCK_BYTES
from sharding.manifest import Manifest, read_manifest
from sharding.readers import Reader, open_reader
from sharding.records import FileRecord, Meter, ProgressCallback
from sharding.source import Source
from sharding.writer import Nowhere


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with ``file``."""

    file: str
    message: str


def check(
    directory: str | os.PathLike[str],
    source: str | os.PathLike[str] | None = None,
    *,
    placement_id: str | None = None,
    progress: ProgressCallback | None = None,
) -> tuple[Problem, ...]:
    """Everything in a directory of rank files that is not what its manifest says, and with ``source``, not what that
    checkpoint gives. With ``placement_id``, files placed otherwise are one problem. Nothing is written.

    Raises MissingFileError where there is no manifest, ShardingError for one that cannot be read or a source that is not
    sound, OSError.
    """
    location = os.fspath(directory)
    manifest = read_manifest(location)
    if placement_id is not None and manifest.placement_id != placement_id:
        ids = f"their placement id is {manifest.placement_id}, not {placement_id}"
        return (Problem(MANIFEST_FILE, f"these files were made by another plan: {ids}"),)
    problems = _check_files(location, manifest, progress)
    if source is not None:
        problems += _check_source(os.fspath(source), manifest, progress)
    return tuple(problems)


def is_recorded(path: str, layout: FileLayout, record: FileRecord, meter: Meter) -> bool:
    """Whether a file has the layout and, byte for byte, the digests of its record."""
    reader = open_reader(path)
    try:
        if reader.size != layout.size or record.size != layout.size:
            return False
        header = bytearray(len(layout.header))
        reader.read_into(memoryview(header), 0)
        if header != layout.header:
            return False
        spans = {name: (tensor.start, tensor.start + tensor.size) for name, tensor in layout.tensors.items()}
        digests = _digests(reader, spans, meter)
    finally:
        reader.close()
    return digests == dict(record.digests) and file_checksum(layout.header, digests.values()) == record.checksum


def expected_digests(job: Job, source: Source, files: list[str], meter: Meter) -> Digests:
    """What the source gives for these files, by reading it and writing nothing."""
    return Engine(job, source).run(dict.fromkeys(files, Nowhere()), meter)


def _check_files(location: str, manifest: Manifest, progress: ProgressCallback | None) -> list[Problem]:
    meter = Meter("checking files", sum(file.size for file in manifest.files.values()), progress)
    problems = []
    for name, stated in manifest.files.items():
        path = join(location, name)
        try:
            header = read_header(path)
            if header.file_size != stated.size:
                raise ShardingError(f"{header.file_size:,} bytes, the manifest states {stated.size:,}")
            if header.metadata.get("job_id") != manifest.job_id:
                raise ShardingError("it is of another job than the manifest")
            order = sorted(header.tensors, key=lambda tensor: (header.span(tensor), tensor))
            reader = open_reader(path)
            try:
                raw = bytearray(header.data_offset)
                reader.read_into(memoryview(raw), 0)
                meter.add(len(raw))
                digests = _digests(reader, {tensor: header.span(tensor) for tensor in order}, meter)
            finally:
                reader.close()
            _refuse_other(bytes(raw), digests, stated.checksum, stated.tensors)
        except ShardingError as error:
            problems.append(Problem(name, str(error)))
    return problems


def _refuse_other(header: bytes, digests: Mapping[str, str], checksum: str, stated: Mapping[str, str]) -> None:
    wrong = [tensor for tensor, digest in stated.items() if digests.get(tensor) != digest]
    if wrong:
        raise ShardingError(f"{len(wrong)} tensors are not what the manifest states, '{wrong[0]}' first")
    if file_checksum(header, digests.values()) != checksum:
        raise ShardingError("its checksum is not the one that the manifest states")


def _check_source(location: str, manifest: Manifest, progress: ProgressCallback | None) -> list[Problem]:
    with Source(location, manifest.names) as source:
        job = make_job(manifest.placements, manifest.tp, manifest.dtype, source, manifest.placement_id)
        if job.id != manifest.job_id:
            return [Problem(MANIFEST_FILE, f"these files were made from another checkpoint than {location}")]
        meter = Meter("checking the source", _data_bytes(job), progress)
        expected = expected_digests(job, source, list(job.layouts), meter)
        source.refuse_changed()
    problems = []
    for name, digests in expected.items():
        if file_checksum(job.layouts[name].header, digests.values()) != manifest.files[name].checksum:
            stated = manifest.files[name].tensors
            wrong = next((tensor for tensor in stated if stated[tensor] != digests[tensor]), None)
            detail = f": '{wrong}' differs" if wrong else ""
            problems.append(Problem(name, f"the source's bytes are no longer those it was made from{detail}"))
    return problems


def _data_bytes(job: Job) -> int:
    return sum(layout.size - len(layout.header) for layout in job.layouts.values())


def _digests(reader: Reader, spans: Mapping[str, tuple[int, int]], meter: Meter) -> dict[str, str]:
    buffer = memoryview(bytearray(BLOCK_BYTES))
    digests = {}
    for name, (start, stop) in spans.items():
        hasher = xxh3_128()
        for first in range(start, stop, BLOCK_BYTES):
            block = buffer[: min(BLOCK_BYTES, stop - first)]
            reader.read_into(block, first)
            hasher.update(block)
            meter.add(len(block))
        digests[name] = hasher.hexdigest()
    return digests

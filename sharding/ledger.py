"""What a store remembers of a job: whose it is, which files are complete, and the manifest."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from sharding.errors import ForeignJobError, ShardingError
from sharding.files import FormatError, join, json_object, read_bytes
from sharding.headers import TruncatedError, read_header
from sharding.job import Job
from sharding.layout import HOST_FILE, MANIFEST_FILE, RANK_FILE, FileLayout
from sharding.records import FileRecord
from sharding.stores import JOB_FILE, RECORDS, LocalStore, RemoteStore

_OURS = re.compile(RANK_FILE.format(rank=r"\d+").replace(".", r"\.") + "|" + HOST_FILE.replace(".", r"\."))


class Ledger:
    """The records of ``job`` in ``store``."""

    def __init__(self, store: LocalStore | RemoteStore, job: Job) -> None:
        self.store, self._job = store, job

    def refuse_foreign(self) -> None:
        """Raises ForeignJobError where the store holds files or records of another job: says what differs."""
        for name in (JOB_FILE, MANIFEST_FILE):
            data = self.store.read(name)
            if data is not None:
                self._refuse_other(name, data)
        for name in self.store.names():
            if _OURS.fullmatch(name) and self.record(name) is None and self._job_of(name) != self._job.id:
                raise self._foreign(f"{name} is there already and is not this job's")

    def claim(self) -> None:
        """Make the store this job's. Raises ForeignJobError where another was first, OSError."""
        self.store.claim(_encode({"job_id": self._job.id, "identity": self._job.identity}))
        self.refuse_foreign()

    def record(self, name: str) -> FileRecord | None:
        """The record of a file of this job, if there is one that can be read; the file itself may be absent or damaged."""
        data = self.store.read(f"{RECORDS}/{name}.json")
        if data is None or name not in self._job.layouts:
            return None
        try:
            record = FileRecord.from_json(json_object(data, name))
        except ShardingError:
            return None
        return record if record.job_id == self._job.id and record.name == name else None

    def remember(self, record: FileRecord) -> None:
        """Raises OSError."""
        self.store.write(f"{RECORDS}/{record.name}.json", _encode(record.to_json()))

    def confirm(self) -> None:
        """Raises ForeignJobError where not every file under its final name is this job's, whoever renamed it."""
        self.refuse_foreign()
        for layout in self._job.layouts.values():
            if not is_laid_out(self.store, layout):
                raise self._foreign(f"{layout.name} was replaced or removed while this job ran")

    def write_manifest(self, placements: Mapping[str, Any], records: Mapping[str, FileRecord], digests: bool) -> None:
        """The last file. Raises OSError."""
        files: dict[str, dict[str, Any]] = {}
        for name, record in sorted(records.items()):
            files[name] = {"size": record.size, "checksum": record.checksum}
            if digests:
                files[name]["tensors"] = dict(record.digests)
        tensors = {key: placements.get(key, {}) for key in ("tensors", "rank_tensors")}
        origins = {read.name: [read.tensor.part, read.tensor.name] for read in self._job.reads}
        parts = {"job_id": self._job.id, "files": files, "placements": tensors, "origins": origins}
        manifest = {**self._job.identity, **parts}
        self.store.write(MANIFEST_FILE, _encode(manifest))

    def _refuse_other(self, name: str, data: bytes) -> None:
        path = join(self.store.location, name)
        try:
            found = json_object(data, path)
        except FormatError as error:
            raise self._foreign(str(error)) from error
        if found.get("job_id") != self._job.id:
            identity = found.get("identity", found)
            raise self._foreign(f"another job's files are there: {_differences(identity, self._job.identity)}")

    def _job_of(self, name: str) -> str | None:
        try:
            return read_header(join(self.store.location, name)).metadata.get("job_id")
        except TruncatedError as error:  # an upload that was cut off, where files appear before they are whole
            return error.header.metadata.get("job_id")
        except ShardingError:
            return None

    def _foreign(self, what: str) -> ForeignJobError:
        return ForeignJobError(
            f"{self.store.location}: {what}. Nothing of it is reused and nothing was overwritten: "
            f"choose another output directory, or delete this one"
        )


def is_laid_out(store: LocalStore | RemoteStore, layout: FileLayout) -> bool:
    """Whether the file has the size and the header, job id included, that it must have."""
    if store.size(layout.name) != layout.size:
        return False
    return read_bytes(join(store.location, layout.name), 0, len(layout.header)) == layout.header


def _differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    words = {
        "format_version": "the format",
        "tp": "tp",
        "dtype": "dtype",
        "names": "the map of names",
        "placements_digest": "the placements (the plan)",
    }
    found = []
    for key, word in words.items():
        if theirs.get(key) != ours[key]:
            values = f" ({theirs.get(key)}, now {ours[key]})" if key in ("tp", "dtype", "format_version") else ""
            found.append(word + values)
    if theirs.get("source") != ours["source"]:
        parts = {str(part.get("name")): part for part in theirs.get("source") or ()}
        changed = [part["name"] for part in ours["source"] if parts.get(part["name"]) != part]
        found.append(f"the source ({', '.join(changed) or 'it has fewer parts'})")
    return "; ".join(found) + " changed" if found else "its placement id differs"


def _encode(plain: Mapping[str, Any]) -> bytes:
    return (json.dumps(plain, sort_keys=True, ensure_ascii=False) + "\n").encode()

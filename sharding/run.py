"""``reshard``: from a checkpoint to rank files."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sharding.checksum import file_checksum
from sharding.engine import Engine
from sharding.errors import ForeignJobError
from sharding.files import join
from sharding.job import Job, make_job
from sharding.ledger import Ledger
from sharding.records import FileRecord, Meter, ProgressCallback, ReshardResult
from sharding.source import Source
from sharding.stores import RECORDS, LocalStore, RemoteStore, copy_in, open_store
from sharding.verify import expected_digests, is_recorded
from sharding.writer import OutputFile, refuse_full, remove_abandoned


def reshard(
    placements: Mapping[str, Any],
    tp: int,
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    dtype: str | None = None,
    *,
    names: Mapping[str, str] | None = None,
    placement_id: str | None = None,
    mirror: str | None = None,
    digests: bool = False,
    progress: ProgressCallback | None = None,
) -> ReshardResult:
    """Write the rank files of a checkpoint, the host's tables and a manifest; what is already complete is kept.

    ``placements``: ``tensors`` and ``rank_tensors`` as in a plan's JSON. ``dtype``: what floating tensors of the ranks
    become (null: as they are). ``names`` maps stored prefixes of tensor names to those of the placements. ``mirror``:
    a second place for every finished file, where a run on another machine finds them. ``digests``: the manifest states
    every tensor's digest too. ``source``, ``destination`` and ``mirror`` are directories or fsspec URLs.

    To a local directory alone, the source is read once and all files end together. With a mirror or a remote
    destination, file after file is finished and stored before the next begins, and each reads what it needs.

    Raises ShardingError (before anything is written) where the source lacks what the placements need or is unsound,
    ForeignJobError where the destination holds another job's files, SourceChangedError, NoSpaceError, OSError. Whatever
    is raised, a file under its final name is complete.
    """
    began = time.monotonic()
    with Source(os.fspath(source), names) as opened:
        job = make_job(placements, tp, dtype, opened, placement_id)
        run = _Run(job, opened, open_store(destination), open_store(mirror) if mirror else None, progress)
        records = run.complete()
        for ledger in run.ledgers:
            ledger.confirm()
            ledger.write_manifest(placements, records, digests)
    return ReshardResult(
        directory=run.home.store.location,
        job_id=job.id,
        placement_id=job.placement_id,
        files=tuple(records[name] for name in job.layouts),
        written=tuple(run.written),
        reused=tuple(name for name in job.layouts if name not in run.written),
        bytes_read=run.bytes_read,
        bytes_written=sum(job.layouts[name].size for name in run.written),
        seconds=time.monotonic() - began,
    )


class _Run:
    """One run of a job: ``home`` is the destination's ledger, ``ledgers`` that and the mirror's."""

    def __init__(
        self,
        job: Job,
        source: Source,
        home: LocalStore | RemoteStore,
        mirror: LocalStore | RemoteStore | None,
        progress: ProgressCallback | None,
    ) -> None:
        self._job, self._source, self._progress = job, source, progress
        self.home = Ledger(home, job)
        self._copies = [Ledger(mirror, job)] if mirror else []
        self.ledgers = [self.home, *self._copies]
        self.written: list[str] = []
        self.bytes_read = 0

    def complete(self) -> dict[str, FileRecord]:
        """Make every file, and return their records."""
        for ledger in self.ledgers:
            ledger.refuse_foreign()
        if isinstance(self.home.store, LocalStore):
            return self._complete_locally(self.home.store.path)
        return self._complete_remotely()

    def _complete_locally(self, directory: Path) -> dict[str, FileRecord]:
        remove_abandoned(directory)
        remove_abandoned(directory / RECORDS)
        records = self._verified(directory)
        missing = [name for name in self._job.layouts if name not in records]
        refuse_full(directory, sum(self._job.layouts[name].size for name in missing))
        self._claim()
        for mirror in self._copies:
            records.update(self._fetched(mirror, directory, missing))
            for record in records.values():
                self._store(mirror, directory, record, keep_known=True)
        missing = [name for name in missing if name not in records]
        groups = [[name] for name in missing] if self._copies else [missing] if missing else []
        for group in groups:
            for record in self._produce(group, directory, self.home):
                records[record.name] = record
                for mirror in self._copies:
                    self._store(mirror, directory, record)
        return records

    def _complete_remotely(self) -> dict[str, FileRecord]:
        """A file there is trusted by its record and size: to check its bytes would be to fetch it."""
        records = {name: record for name in self._job.layouts if (record := self._stored(self.home, name))}
        self._refuse_stale(records.values())
        missing = [name for name in self._job.layouts if name not in records]
        with tempfile.TemporaryDirectory(prefix="reshard-") as staging:
            directory = Path(staging)
            refuse_full(directory, max((self._job.layouts[name].size for name in missing), default=0))
            self._claim()
            for name in missing:
                for record in self._produce([name], directory):
                    for ledger in self.ledgers:
                        self._store(ledger, directory, record)
                    records[name] = record
                (directory / name).unlink()
        for mirror in self._copies:
            for name in records:
                if self._stored(mirror, name) is None:
                    raise ForeignJobError(
                        f"{mirror.store.location}: {name} is complete in {self.home.store.location} but not in the "
                        f"mirror: run with the mirror as the destination, or without it"
                    )
        return records

    def _claim(self) -> None:
        for ledger in self.ledgers:
            ledger.claim()

    def _verified(self, directory: Path) -> dict[str, FileRecord]:
        """Files that are byte for byte what their records say, of a source that is still the same."""
        found = {name: record for name in self._job.layouts if (record := self._stored(self.home, name))}
        meter = self._meter("checking files", found)
        records = {
            name: record
            for name, record in found.items()
            if is_recorded(join(directory, name), self._job.layouts[name], record, meter)
        }
        self._refuse_stale(records.values())
        return records

    def _fetched(self, mirror: Ledger, directory: Path, missing: Iterable[str]) -> dict[str, FileRecord]:
        """Missing files that the mirror has, brought here and verified."""
        found = {name: record for name in missing if (record := self._stored(mirror, name))}
        self._refuse_stale(found.values())
        meter = self._meter("fetching files", found)
        records = {}
        for name, record in found.items():
            layout = self._job.layouts[name]

            def accept(path: Path, layout: Any = layout, record: FileRecord = record) -> bool:
                return is_recorded(str(path), layout, record, meter)

            self.home.remember(record)
            if copy_in(join(mirror.store.location, name), directory / name, accept):
                records[name] = record
        return records

    def _stored(self, ledger: Ledger, name: str) -> FileRecord | None:
        """The record of a file that is there with the right size."""
        record = ledger.record(name)
        return record if record and ledger.store.size(name) == self._job.layouts[name].size == record.size else None

    def _store(self, ledger: Ledger, directory: Path, record: FileRecord, keep_known: bool = False) -> None:
        """Put a finished file into another place: the file, then its record."""
        known = self._stored(ledger, record.name) if keep_known else None
        if known is None or known.checksum != record.checksum:
            ledger.store.put(directory / record.name, record.name)
            ledger.remember(record)

    def _refuse_stale(self, records: Iterable[FileRecord]) -> None:
        """Files of a source that was touched or copied since count only if the source still gives the same bytes."""
        stamps = self._source.stamps()
        touched = {record.name: record for record in records if dict(record.stamps) != stamps}
        if not touched:
            return
        meter = self._meter("checking the source", touched)
        for name, digests in expected_digests(self._job, self._source, list(touched), meter).items():
            if dict(touched[name].digests) != digests:
                raise ForeignJobError(
                    f"{self.home.store.location}: {name} was made from other bytes than {self._source.location} has now "
                    f"('{next(key for key in digests if digests[key] != touched[name].digests.get(key))}' first). "
                    f"Nothing of it is reused and nothing was overwritten: choose another output directory, or delete "
                    f"this one"
                )

    def _produce(self, names: list[str], directory: Path, ledger: Ledger | None = None) -> list[FileRecord]:
        """Make files in one pass. A record is written before its file gets its name: a final file always has one."""
        layouts = [self._job.layouts[name] for name in names]
        meter = self._meter(names[0] if len(names) == 1 else "all ranks", names)
        engine = Engine(self._job, self._source)
        outputs: dict[str, OutputFile] = {}
        try:
            for layout in layouts:
                outputs[layout.name] = OutputFile(directory / layout.name, layout.size)
            digests = engine.run(outputs, meter)
            for output in outputs.values():
                output.finish()
            self._source.refuse_changed()
            records = [
                FileRecord(
                    name=layout.name,
                    job_id=self._job.id,
                    size=layout.size,
                    checksum=file_checksum(layout.header, digests[layout.name].values()),
                    digests=digests[layout.name],
                    stamps=self._source.stamps(),
                )
                for layout in layouts
            ]
            if ledger:
                ledger.refuse_foreign()
            for record in records:
                if ledger:
                    ledger.remember(record)
                outputs[record.name].publish()
                self.written.append(record.name)
        finally:
            self.bytes_read += engine.bytes_read
            for output in outputs.values():
                output.discard()
        return records

    def _meter(self, what: str, names: Iterable[str]) -> Meter:
        layouts = [self._job.layouts[name] for name in names]
        return Meter(what, sum(layout.size - len(layout.header) for layout in layouts), self._progress)

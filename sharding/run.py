"""``reshard``: from a checkpoint to rank files."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sharding.errors import ForeignJobError, ShardingError
from sharding.job import Job, make_job
from sharding.ledger import Ledger
from sharding.produce import produce
from sharding.records import FileRecord, ProgressCallback, ReshardResult
from sharding.source import Source
from sharding.stores import RECORDS, LocalStore, RemoteStore, open_store
from sharding.trust import Records, Trust, stored
from sharding.writer import refuse_full, remove_abandoned, temporary_name


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
    every tensor's digest too. ``progress`` is called from one thread at a time, not always the caller's. ``source``,
    ``destination`` and ``mirror`` are directories or fsspec URLs.

    To a local directory alone, the source is read once and all files end together. With a mirror or a remote
    destination, file after file is finished and stored before the next begins, and each reads what it needs. Files for a
    remote destination are staged one at a time in the directory for temporary files (``TMPDIR``).

    Raises ShardingError (before anything is written) where the source lacks what the placements need or is unsound,
    ForeignJobError where the destination holds another job's files, SourceChangedError, NoSpaceError, OSError. Whatever
    is raised, a file under its final name is complete.
    """
    began = time.monotonic()
    with Source(os.fspath(source), names) as opened:
        job = make_job(placements, tp, dtype, opened, placement_id)
        home, copy = open_store(destination), open_store(mirror) if mirror else None
        if copy and copy.location == home.location:
            raise ShardingError(f"{home.location} is both the destination and its mirror: leave the mirror out")
        run = _Run(job, opened, home, copy, Trust(job, opened, progress))
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
        trust: Trust,
    ) -> None:
        self._job, self._source, self._trust = job, source, trust
        self.home = Ledger(home, job)
        self._mirrors = [Ledger(mirror, job)] if mirror else []
        self.ledgers = [self.home, *self._mirrors]
        self.written: list[str] = []
        self.bytes_read = 0

    def complete(self) -> Records:
        """Make every file that is not there yet, and return the records of all."""
        for ledger in self.ledgers:
            ledger.refuse_foreign()
        for ledger in self.ledgers:
            if isinstance(ledger.store, LocalStore):
                remove_abandoned(ledger.store.path)
                remove_abandoned(ledger.store.path / RECORDS)
        if isinstance(self.home.store, LocalStore):
            return self._complete_locally(self.home.store.path)
        return self._complete_remotely()

    def _complete_locally(self, directory: Path) -> Records:
        records = self._trust.verified(self.home, directory)
        missing = self._missing(records)
        refuse_full(directory, sum(self._job.layouts[name].size for name in missing))
        self._claim()
        for mirror in self._mirrors:
            records.update(self._trust.fetched(mirror, self.home, directory, missing))
            for record in records.values():
                known = stored(mirror, record.name)
                if known is None or known.checksum != record.checksum:
                    _store(mirror, directory, record)
        missing = self._missing(records)
        groups = [[name] for name in missing] if self._mirrors else [missing] if missing else []
        for group in groups:
            for record in self._produce(group, directory, self.home):
                records[record.name] = record
                for mirror in self._mirrors:
                    _store(mirror, directory, record)
        return records

    def _complete_remotely(self) -> Records:
        records = self._trust.stated(self.home)
        missing = self._missing(records)
        for mirror in self._mirrors:
            for name in records:
                if stored(mirror, name) is None:
                    raise ForeignJobError(
                        f"{mirror.store.location}: {name} is complete in {self.home.store.location} but not in the "
                        f"mirror: run with the mirror as the destination, or without it"
                    )
        remove_abandoned(Path(tempfile.gettempdir()))
        prefix, suffix = temporary_name("reshard")
        with tempfile.TemporaryDirectory(suffix, prefix) as staging:
            directory = Path(staging)
            refuse_full(directory, max((self._job.layouts[name].size for name in missing), default=0))
            self._claim()
            for name in missing:
                (record,) = self._produce([name], directory)
                for ledger in self.ledgers:
                    ledger.refuse_foreign()
                    _store(ledger, directory, record)
                records[name] = record
                (directory / name).unlink()
        return records

    def _missing(self, records: Records) -> list[str]:
        return [name for name in self._job.layouts if name not in records]

    def _claim(self) -> None:
        for ledger in self.ledgers:
            ledger.claim()

    def _produce(self, names: Sequence[str], directory: Path, ledger: Ledger | None = None) -> tuple[FileRecord, ...]:
        what = names[0] if len(names) == 1 else "all ranks"
        made = produce(self._job, self._source, names, directory, self._trust.meter(what, names), ledger)
        self.written += names
        self.bytes_read += made.bytes_read
        return made.records


def _store(ledger: Ledger, directory: Path, record: FileRecord) -> None:
    """Put a finished file into another place: the file, then its record."""
    ledger.store.put(directory / record.name, record.name)
    ledger.remember(record)

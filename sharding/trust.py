"""Which files of an earlier run count: those of the same job that are still what they were, of a source that is too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from sharding.errors import ForeignJobError
from sharding.files import join
from sharding.job import Job
from sharding.layout import FileLayout
from sharding.ledger import Ledger
from sharding.records import FileRecord, Meter, ProgressCallback
from sharding.source import Source
from sharding.stores import copy_in
from sharding.verify import expected_digests, is_recorded

Records = dict[str, FileRecord]
"""By file name."""


class Trust:
    """Judges the files of ``job``."""

    def __init__(self, job: Job, source: Source, progress: ProgressCallback | None) -> None:
        self._job, self._source, self._progress = job, source, progress

    def stated(self, ledger: Ledger) -> Records:
        """Files that a store has, by their records and sizes alone: to check their bytes would be to fetch them."""
        return self._current(ledger, {name: found for name in self._job.layouts if (found := stored(ledger, name))})

    def verified(self, ledger: Ledger, directory: Path) -> Records:
        """Files in a local directory that are byte for byte what their records say."""
        found = {name: record for name in self._job.layouts if (record := stored(ledger, name))}
        meter = self.meter("checking files", found)
        sound = {
            name: record
            for name, record in found.items()
            if is_recorded(join(directory, name), self._job.layouts[name], record, meter)
        }
        return self._current(ledger, sound)

    def fetched(self, mirror: Ledger, home: Ledger, directory: Path, missing: Iterable[str]) -> Records:
        """Missing files that the mirror has, brought here and verified."""
        found = {name: record for name in missing if (record := stored(mirror, name))}
        found = self._current(mirror, found)
        meter = self.meter("fetching files", found)
        records = {}
        for name, record in found.items():
            home.remember(record)
            accept = _Accept(self._job.layouts[name], record, meter)
            if copy_in(join(mirror.store.location, name), directory / name, accept):
                records[name] = record
        return records

    def meter(self, what: str, names: Iterable[str]) -> Meter:
        """Counts the tensors' bytes of these files."""
        layouts = [self._job.layouts[name] for name in names]
        return Meter(what, sum(layout.size - len(layout.header) for layout in layouts), self._progress)

    def _current(self, ledger: Ledger, records: Mapping[str, FileRecord]) -> Records:
        """These records, of the source as it is now. Where it was touched or copied since, it is read to see whether it
        still gives the same bytes. Raises ForeignJobError where it does not."""
        stamps = self._source.stamps()
        touched = {name: record for name, record in records.items() if dict(record.stamps) != stamps}
        if not touched:
            return dict(records)
        meter = self.meter("checking the source", touched)
        expected = expected_digests(self._job, self._source, list(touched), meter)
        self._source.refuse_changed()
        for name, digests in expected.items():
            wrong = [tensor for tensor, digest in digests.items() if touched[name].digests.get(tensor) != digest]
            if wrong:
                raise ForeignJobError(
                    f"{ledger.store.location}: {name} was made from other bytes than {self._source.location} has now "
                    f"('{wrong[0]}' first). Nothing of it is reused and nothing was overwritten: choose another output "
                    f"directory, or delete this one"
                )
        current = {name: replace(record, stamps=stamps) for name, record in touched.items()}
        for record in current.values():
            ledger.remember(record)
        return {**records, **current}


def stored(ledger: Ledger, name: str) -> FileRecord | None:
    """The record of a file that is there with the size that it states."""
    record = ledger.record(name)
    return record if record and ledger.store.size(name) == record.size else None


class _Accept:
    """Whether a copied file is what its record says."""

    def __init__(self, layout: FileLayout, record: FileRecord, meter: Meter) -> None:
        self._layout, self._record, self._meter = layout, record, meter

    def __call__(self, path: Path) -> bool:
        return is_recorded(str(path), self._layout, self._record, self._meter)

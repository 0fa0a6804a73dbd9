"""Making files: one pass over the source, and each file gets its name when all of them are whole."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sharding.checksum import file_checksum
from sharding.engine import Engine
from sharding.job import Job
from sharding.ledger import Ledger
from sharding.records import FileRecord, Meter
from sharding.source import Source
from sharding.writeback import Writeback
from sharding.writer import OutputFile


class Produced(NamedTuple):
    """``bytes_read`` counts the source's."""

    records: tuple[FileRecord, ...]
    bytes_read: int


def produce(
    job: Job, source: Source, names: Sequence[str], directory: Path, meter: Meter, ledger: Ledger | None = None
) -> Produced:
    """Make the files ``names`` in ``directory``.

    With a ledger of that directory, a file's record is there before the file gets its name: a final file always has one.
    Raises SourceChangedError, ForeignJobError, OSError; then none of the files has its name, but for an error between
    one's naming and the next's, and none is left under another.
    """
    layouts = [job.layouts[name] for name in names]
    engine = Engine(job, source)
    outputs: dict[str, OutputFile] = {}
    try:
        with Writeback() as writeback:
            for layout in layouts:
                outputs[layout.name] = OutputFile(directory / layout.name, layout.size, writeback)
            digests = engine.run(outputs, meter)
            for output in outputs.values():
                output.finish()
        source.refuse_changed()
        records = tuple(
            FileRecord(
                name=layout.name,
                job_id=job.id,
                size=layout.size,
                checksum=file_checksum(layout.header, digests[layout.name].values()),
                digests=digests[layout.name],
                stamps=source.stamps(),
            )
            for layout in layouts
        )
        if ledger:
            ledger.refuse_foreign()
        for record in records:
            if ledger:
                ledger.remember(record)
            outputs[record.name].publish()
    finally:
        for output in outputs.values():
            output.discard()
    return Produced(records, engine.bytes_read)

"""What is wrong with a checkpoint's files, as findings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping

from gemma4cfg.architecture.wording import counted, some
from gemma4cfg.findings import Finding
from sharding.errors import ShardingError
from sharding.files import MissingFileError
from sharding.headers import Header, TruncatedError
from sharding.parts import Index

INCOMPLETE = frozenset({"checkpoint_part_missing", "checkpoint_header_invalid", "checkpoint_index_disagrees"})
"""Problems after which a tensor's absence from the headers says nothing about the model."""

_AGAIN = "download the file again and compare its size and hash with the publisher's"


def part_findings(
    faults: Mapping[str, ShardingError], headers: Mapping[str, Header], index: Index | None
) -> list[Finding]:
    """One finding per part that is absent, truncated or malformed; ``faults`` maps the part to its error."""
    unread = [part for part in faults if part not in headers]
    findings = []
    for part, error in faults.items():
        if isinstance(error, TruncatedError):
            findings.append(_truncated(part, error))
        elif isinstance(error, MissingFileError):
            message = f"{part} is absent{_lost(part, unread, headers, index)}"
            findings.append(_error("checkpoint_part_missing", message, "download the missing file"))
        else:
            findings.append(
                _error("checkpoint_header_invalid", f"{error}{_lost(part, unread, headers, index)}", _AGAIN)
            )
    return findings


def _lost(part: str, unread: Collection[str], headers: Mapping[str, Header], index: Index | None) -> str:
    """What the index says an unread part holds. Its bytes are known where it is the only one."""
    if index is None:
        return ""
    tensors = [tensor for tensor, home in index.weight_map.items() if home == part]
    size = ""
    if len(unread) == 1 and index.total_size is not None:
        size = f", {max(index.total_size - _stored_bytes(headers), 0):,} bytes"
    return f": {counted(len(tensors), 'tensor')}{size} ({some(tensors)})"


def _stored_bytes(headers: Mapping[str, Header]) -> int:
    return sum(entry.stop - entry.start for header in headers.values() for entry in header.tensors.values())


def _truncated(name: str, error: TruncatedError) -> Finding:
    header = error.header
    ends = header.file_size - header.data_offset
    cut = [tensor for tensor, entry in header.tensors.items() if entry.stop > ends]
    lost = max(entry.stop for entry in header.tensors.values()) - ends
    expected = header.file_size + lost
    return _error(
        "checkpoint_part_truncated",
        f"{name} is truncated: {header.file_size:,} of {expected:,} bytes; {counted(len(cut), 'tensor')} incomplete "
        f"({some(cut)}), {lost:,} bytes lacking",
        _AGAIN,
    )


def index_findings(index: Index, headers: Mapping[str, Header], unread: Collection[str]) -> list[Finding]:
    """Where the index and the parts' headers tell different stories. Parts in ``unread`` are passed over."""
    homes = defaultdict(list)
    for part, header in headers.items():
        for tensor in header.tensors:
            homes[tensor].append(part)
    findings = []
    lacking: dict[str, list[str]] = defaultdict(list)
    moved: dict[tuple[str, str], list[str]] = defaultdict(list)
    for tensor, part in index.weight_map.items():
        if part in unread or part in homes[tensor]:
            continue
        if homes[tensor]:
            moved[part, homes[tensor][0]].append(tensor)
        else:
            lacking[part].append(tensor)
    for part, tensors in lacking.items():
        findings.append(
            _disagrees(f"{part} lacks {counted(len(tensors), 'tensor')} the index puts there ({some(tensors)})")
        )
    for (part, home), tensors in moved.items():
        findings.append(
            _disagrees(
                f"the index puts {counted(len(tensors), 'tensor')} in {part}, stored in {home} ({some(tensors)})"
            )
        )
    if twice := {tensor: parts for tensor, parts in homes.items() if len(parts) > 1}:
        where = " and ".join(next(iter(twice.values())))
        findings.append(_disagrees(f"{counted(len(twice), 'tensor')} stored in two parts, {where} ({some(twice)})"))
    if unnamed := [tensor for tensor, parts in homes.items() if parts and tensor not in index.weight_map]:
        findings.append(
            Finding(
                "warning",
                "checkpoint_index_incomplete",
                None,
                f"{counted(len(unnamed), 'stored tensor')} not named by the index ({some(unnamed)})",
                "rebuild the index from the files; the headers are believed",
            )
        )
    return findings


def size_findings(index: Index, headers: Mapping[str, Header], unread: Collection[str]) -> list[Finding]:
    """The index's ``total_size`` against the bytes that the headers account for; silent where a part was not read."""
    stored = _stored_bytes(headers)
    if unread or index.total_size is None or index.total_size == stored:
        return []
    return [
        Finding(
            "warning",
            "checkpoint_total_size_differs",
            None,
            f"the index says total_size={index.total_size:,} bytes, the headers hold {stored:,}",
            "rebuild the index from the files; the headers are believed",
        )
    ]


def _disagrees(message: str) -> Finding:
    return _error("checkpoint_index_disagrees", message, "download the files again, or rebuild the index from them")


def _error(code: str, message: str, fix: str) -> Finding:
    return Finding("error", code, None, message, fix)

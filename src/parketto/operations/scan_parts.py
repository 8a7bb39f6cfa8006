"""Parts of a scan: some files of one snapshot each, for readers that run in several processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from parketto.operations.read import Scan
from parketto.parquet.file_info import FileInfo

_PART_BYTES = 64 * 1024 * 1024  # of files
_PART_FILES = 64


def scan_parts(scan: Scan) -> Iterator[Scan]:
    """A scan, split by files, in the order of their paths."""
    part: list[FileInfo] = []
    size = 0
    for file in scan.files:
        if part and (size + file.size_bytes > _PART_BYTES or len(part) == _PART_FILES):
            yield replace(scan, files=tuple(part))
            part, size = [], 0
        part.append(file)
        size += file.size_bytes
    if part:
        yield replace(scan, files=tuple(part))

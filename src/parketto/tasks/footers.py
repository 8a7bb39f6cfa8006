"""Tasks that read many footers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parketto.parquet.bounded_columns import StatsColumns
from parketto.parquet.file_info import FileInfo
from parketto.parquet.snapshot import read_snapshot
from parketto.runtime.task import Worker
from parketto.storage.store import FileEntry

_FILES_PER_TASK = 512
_FOOTER_BYTES = 64 * 1024  # the cost of reading a footer, in bytes read, whatever the size of its file


@dataclass(frozen=True)
class ReadFooters:
    """Read the footers of some files of a dataset."""

    entries: tuple[FileEntry, ...]
    root: str
    stats_columns: StatsColumns

    @property
    def size_bytes(self) -> int:
        """About how many bytes are read."""
        return len(self.entries) * _FOOTER_BYTES

    def run(self, worker: Worker) -> tuple[FileInfo, ...]:
        """Read the footers."""
        # The rows are read in another process, which has no use for the bytes kept here.
        return read_snapshot(worker.store, self.root, self.entries, self.stats_columns, keep_bytes=False).files


def footer_tasks(entries: Sequence[FileEntry], root: str, stats_columns: StatsColumns) -> list[ReadFooters]:
    """Tasks that read all footers, in the order of the files."""
    starts = range(0, len(entries), _FILES_PER_TASK)
    return [ReadFooters(tuple(entries[start : start + _FILES_PER_TASK]), root, stats_columns) for start in starts]

"""Reading many footers, as tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parketto.kernels.work import Worker
from parketto.storage.footers import FileInfo, StatsColumns
from parketto.storage.snapshot import read_snapshot
from parketto.storage.store import FileEntry

_FILES_PER_TASK = 512
# A footer is about that much work, whatever the size of its file.
_FOOTER_BYTES = 64 * 1024


@dataclass(frozen=True)
class ReadFooters:
    """Read the footers of some files of a dataset."""

    entries: tuple[FileEntry, ...]
    root: str
    stats_columns: StatsColumns

    @property
    def size_bytes(self) -> int:
        """About how much is read."""
        return len(self.entries) * _FOOTER_BYTES

    def run(self, worker: Worker) -> tuple[FileInfo, ...]:
        """Read them."""
        # Whoever reads the rows does so in another process.
        return read_snapshot(worker.store, self.root, self.entries, self.stats_columns, keep_bytes=False).files


def footer_tasks(entries: Sequence[FileEntry], root: str, stats_columns: StatsColumns) -> list[ReadFooters]:
    """Tasks that read all footers, in the order of the files."""
    starts = range(0, len(entries), _FILES_PER_TASK)
    return [ReadFooters(tuple(entries[start : start + _FILES_PER_TASK]), root, stats_columns) for start in starts]

"""Rewrites files without some of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from parketto.merge.file_edits import rewrite_files
from parketto.merge.row_edits import Rewriting, RowEdits
from parketto.parquet.file_info import FileInfo
from parketto.parquet.output import Rewrite
from parketto.parquet.partition_spec import PartitionSpec
from parketto.runtime.arrays import Indices
from parketto.runtime.task import Worker


class RowNumbers(Protocol):
    """Which rows of a file are dropped; picklable."""

    def rows(self, worker: Worker) -> Indices:
        """Their numbers, sorted."""


@dataclass(frozen=True)
class DropRows:
    """Rewrite neighbouring files without some rows; row groups that keep all of theirs are copied."""

    files: tuple[FileInfo, ...]
    #: The rows to drop of each file: never all.
    dropped: tuple[RowNumbers, ...]
    operation: str
    compression: str | None
    #: Whether row groups of another codec than `compression` are re-encoded.
    recompress: bool = False

    @property
    def size_bytes(self) -> int:
        """The size of the files."""
        return sum(file.size_bytes for file in self.files)

    def run(self, worker: Worker) -> Rewrite:
        """Rewrite the files."""
        found = zip(self.files, (_Dropped(each.rows(worker)) for each in self.dropped), strict=True)
        codec = self.compression if self.recompress else None
        rewriting = Rewriting(PartitionSpec(), self.compression, frozenset(), keeps_others=True)
        return rewrite_files(self.files, found, rewriting, worker, self.operation, codec).files


class _Dropped:
    """Edits that delete rows.

    Args:
        rows: Their numbers, sorted.
    """

    columns: Sequence[str] = ()

    def __init__(self, rows: Indices) -> None:
        self._rows = rows
        self._start = 0

    def touch(self, _number: int, stop: int) -> bool:
        """Whether any row before `stop` is deleted that was not asked for before."""
        start, self._start = self._start, stop
        first, last = np.searchsorted(self._rows, [start, stop])
        return bool(first < last)

    def of(self, start: int, batch: pa.RecordBatch) -> RowEdits:
        """The edits of a batch."""
        first, last = np.searchsorted(self._rows, [start, start + batch.num_rows])
        never = np.zeros(last - first, np.bool_)
        return RowEdits(self._rows[first:last] - start, never, never, pa.table({}))

"""Finds rows that do not match a condition."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from parketto.expressions.conditions import Predicate
from parketto.parquet.file_info import FileInfo
from parketto.parquet.row_source import FileRows
from parketto.runtime.task import Worker


@dataclass(frozen=True)
class Mismatches:
    """The number of rows that do not match, and the first of them."""

    count: int = 0
    example: dict[str, Any] | None = None

    def __add__(self, other: Mismatches) -> Mismatches:
        return Mismatches(self.count + other.count, other.example if self.example is None else self.example)


@dataclass(frozen=True)
class FindMismatches:
    """Find the rows of files that do not match a condition, or for which it is NULL."""

    rows: FileRows
    condition: Predicate

    @property
    def size_bytes(self) -> int:
        """The size of the files, though only some columns are read."""
        return self.rows.size_bytes

    @property
    def files(self) -> tuple[FileInfo, ...]:
        """The files that it reads."""
        return self.rows.files

    def run(self, worker: Worker) -> Mismatches:
        """Read and count."""
        return find_mismatches(worker.until_cancelled(self.rows.read(worker)), self.condition)


def find_mismatches(batches: Iterable[pa.RecordBatch], condition: Predicate) -> Mismatches:
    """The rows that do not match a condition, or for which it is NULL."""
    found = Mismatches()
    for batch in batches:
        wrong = pc.invert(condition.matches(batch))
        if count := wrong.true_count:
            example = None if found.count else batch.slice(pc.index(wrong, True).as_py(), 1).to_pylist()[0]
            found += Mismatches(count, example)
    return found

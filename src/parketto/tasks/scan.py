"""Reads rows without writing any: checks them as a write would, and counts them by partition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import pyarrow as pa

from parketto.expressions.conditions import Predicate
from parketto.parquet.calendars import CalendarCheck
from parketto.parquet.decoded_types import cast_rows, decoded_schema
from parketto.parquet.file_info import FileInfo
from parketto.parquet.output import Output
from parketto.parquet.row_checks import Violations
from parketto.parquet.row_source import FileRows
from parketto.runtime.task import Worker
from parketto.tasks.count import count_folders
from parketto.tasks.mismatches import Mismatches, find_mismatches
from parketto.tasks.write_folder import stored_rows

Result = TypeVar("Result")
#: A picklable function over the rows of a source, or of a part of it.
Scan = Callable[[Iterator[pa.RecordBatch]], Result]


@dataclass(frozen=True)
class ScanFiles(Generic[Result]):
    """Apply a function to the rows of files."""

    rows: FileRows
    scan: Scan[Result]

    @property
    def size_bytes(self) -> int:
        """The size of the files."""
        return self.rows.size_bytes

    @property
    def files(self) -> tuple[FileInfo, ...]:
        """The files that it reads."""
        return self.rows.files

    def run(self, worker: Worker) -> Result:
        """Read the rows."""
        return self.scan(worker.until_cancelled(self.rows.read(worker)))


@dataclass(frozen=True)
class CheckedRows:
    """The number of rows, by partition folder, those that do not match a condition, and those left out."""

    num_rows: int = 0
    folders: Counter[str] = field(default_factory=Counter)
    mismatches: Mismatches = field(default_factory=Mismatches)
    violations: Violations = field(default_factory=Violations)

    def __add__(self, other: CheckedRows) -> CheckedRows:
        return CheckedRows(
            self.num_rows + other.num_rows,
            self.folders + other.folders,
            self.mismatches + other.mismatches,
            self.violations + other.violations,
        )


@dataclass(frozen=True)
class CheckRows:
    """Checks that rows can be written to an output, and match a condition if there is one."""

    output: Output
    condition: Predicate | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> CheckedRows:
        """Cast the rows as a write would, and count them."""
        output, found = self.output, CheckedRows()
        decoded = decoded_schema(output.row_schema)
        calendar = CalendarCheck(output.format.schema, output.format.metadata, output.format.traits.int96)
        for given in batches:
            batch, left_out = given, Violations()
            if output.checks is not None:
                batch, _, left_out = output.checks.split(given)
            rows = cast_rows(batch, decoded)
            stored = stored_rows(rows, output, calendar)
            folders = count_folders([rows], output.partition_by) if output.partition_by else Counter[str]()
            wrong = Mismatches()
            if self.condition is not None:
                wrong = find_mismatches([_with_path_columns(stored, rows)], self.condition)
            found += CheckedRows(batch.num_rows, folders, wrong, left_out)
        return found


def _with_path_columns(stored: pa.RecordBatch, rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows as they are stored, and the columns that files do not contain."""
    names = [*stored.schema.names, *(name for name in rows.schema.names if name not in stored.schema.names)]
    columns = {name: (stored if name in stored.schema.names else rows).column(name) for name in names}
    return pa.RecordBatch.from_pydict(columns)

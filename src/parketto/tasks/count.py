"""Tasks that count rows by partition: from footers where these suffice, else from the columns needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from parketto.parquet.bounds import bounds
from parketto.parquet.file_info import FileInfo
from parketto.parquet.partitions import folder_codes, segments
from parketto.parquet.row_source import FileRows
from parketto.runtime.task import Worker


@dataclass(frozen=True)
class CountPartitions:
    """Count the rows of some files by the folder that they belong to."""

    rows: FileRows
    columns: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        """The size of the files, though not all of it is read."""
        return self.rows.size_bytes

    def run(self, worker: Worker) -> Counter[str]:
        """Read and count."""
        return count_folders(worker.until_cancelled(self.rows.read(worker)), self.columns)


def count_tasks(rows: FileRows, columns: tuple[str, ...]) -> tuple[Counter[str], list[CountPartitions]]:
    """The counts that footers and paths determine, and tasks that count the other files, one each."""
    known: Counter[str] = Counter()
    tasks = []
    needed = rows if rows.transform is not None else rows.selected(columns)
    for file in (each for each in rows.files if each.num_rows):
        folder = None if rows.transform is not None else _only_folder(file, rows, columns)
        if folder is None:
            tasks.append(CountPartitions(replace(needed, files=(file,)), columns))
        else:
            known[folder] += file.num_rows
    return known, tasks


def count_folders(batches: Iterable[pa.RecordBatch], columns: Sequence[str]) -> Counter[str]:
    """The number of rows that belong to each folder.

    >>> count_folders([pa.record_batch({"day": [1, 2, 1]})], ["day"])
    Counter({'day=1': 2, 'day=2': 1})
    """
    counts: Counter[str] = Counter()
    for batch in batches:
        if batch.num_rows:
            codes, names = folder_codes(pa.Table.from_batches([batch]), columns)
            counts.update(dict(zip(names, np.bincount(codes, minlength=len(names)).tolist(), strict=True)))
    return counts


def _only_folder(file: FileInfo, rows: FileRows, columns: Sequence[str]) -> str | None:
    """The one folder that all rows of a file belong to, if its footer or path determines it."""
    values = []
    for name in columns:
        if name in rows.spec.path_only:
            text = dict(file.partition)[name]
            value = pa.scalar(text, pa.string()).cast(rows.spec.path_only[name])
        elif (found := _only_value(file, name)) is not None:
            value = found
        else:
            return None
        try:
            values.append(value.as_py())
        except ValueError:  # nanoseconds that Python cannot hold
            return None
    return segments(columns, values)


def _only_value(file: FileInfo, column: str) -> pa.Scalar | None:
    nulls = file.column_stats(column).null_count
    if nulls == file.num_rows:
        return pa.scalar(None)
    known = bounds(file, column) if nulls == 0 else None
    return known[0] if known is not None and known[0] == known[1] else None

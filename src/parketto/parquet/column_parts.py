"""Which columns of a row group are encoded together: parts run in parallel, and share a library."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import pyarrow as pa

from parketto.parquet.encoders.row_groups import polars_columns, suits_polars
from parketto.parquet.file_format import FileFormat

# Two parts per thread keep all threads busy to the end. Parts of 3 MB, decoded, limit the memory for encoded data.
# Below 512 KB, starting a part costs more than it saves.
_PARTS_PER_THREAD = 2
_PART_BYTES = 3 * 1024 * 1024
_MIN_PART_BYTES = 512 * 1024


class ColumnPart(NamedTuple):
    """Some columns of every row group: their positions, and how they are encoded."""

    columns: Sequence[int]
    format: FileFormat
    #: None: each row group decides.
    dictionaries: list[str] | None

    @classmethod
    def of(cls, rows: pa.Table, columns: Sequence[int], whole: FileFormat) -> ColumnPart:
        """Some columns of a file.

        Args:
            rows: Rows of these columns only, for which dictionaries are chosen.
            columns: The positions of the columns.
            whole: How the file is encoded.
        """
        narrow = whole.narrowed(columns)
        return cls(columns, narrow, None if suits_polars(narrow, rows) else narrow.dictionaries(rows))

    def encoded(self, rows: pa.Table) -> pa.Buffer:
        """Rows of these columns as a file in memory."""
        return self.format.encoded(rows, self.dictionaries)


def column_parts(file_format: FileFormat, rows: pa.Table, threads: int) -> list[ColumnPart]:
    """The parts of row groups like this one."""
    runs = _runs(rows, threads * _PARTS_PER_THREAD, polars_columns(file_format, rows))
    return [ColumnPart.of(rows.select(columns), columns, file_format) for columns in runs]


def _runs(rows: pa.Table, at_least: int, by_polars: Sequence[bool]) -> list[list[int]]:
    """The positions of columns in runs of about equal size: `at_least` runs, or more if columns are large.

    Each run has columns that Polars encodes, or others.
    """
    if len(set(rows.schema.names)) < rows.num_columns:  # parts are identified by their column names
        return [list(range(rows.num_columns))]
    sizes = [column.nbytes + 1 for column in rows.columns]
    whole = sum(sizes)
    count = min(max(at_least, whole // _PART_BYTES, 1), max(1, whole // _MIN_PART_BYTES))
    parts: dict[tuple[int, int], list[int]] = {}
    changes = accumulate(one != two for one, two in zip(by_polars, [by_polars[0], *by_polars], strict=False))
    for at, (size, end, run) in enumerate(zip(sizes, accumulate(sizes), changes, strict=True)):
        parts.setdefault((run, int((end - size / 2) * count / whole)), []).append(at)
    return list(parts.values())

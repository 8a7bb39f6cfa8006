"""Validation of how a write lays rows out in files: their limits and their order."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from parketto.arguments import Thresholds, check_columns_exist, check_max_rows, check_names
from parketto.errors import InvalidArgument
from parketto.sorting.order import check_orderable


def file_limits(
    max_rows_per_file: int | None, target_rows_per_file: int | None, target_mb_per_file: float | None
) -> Thresholds:
    """The limits of a file's rows and bytes; without any argument there are none.

    >>> file_limits(None, 100, 1)
    Thresholds(target_bytes=1048576, target_rows=100)
    """
    if max_rows_per_file is not None and target_rows_per_file is not None:
        raise InvalidArgument("max_rows_per_file and target_rows_per_file are the same limit: pass one of them")
    rows = check_max_rows(max_rows_per_file)
    if target_rows_per_file is None and target_mb_per_file is None:
        return Thresholds(None, rows)
    limits = Thresholds.of(target_mb_per_file, target_rows_per_file)
    return Thresholds(limits.target_bytes, rows or limits.target_rows)


def check_sort_columns(columns: str | Sequence[str] | None, schema: pa.Schema) -> tuple[str, ...]:
    """The validated columns to sort by: they exist, and their values have an order."""
    if columns is None:
        return ()
    names = (columns,) if isinstance(columns, str) else check_names("sort_by", columns)
    check_columns_exist(names, schema, "sort_by columns")
    check_orderable(names, schema)
    return names

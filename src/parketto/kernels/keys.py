"""Finding rows by their keys: in which row of the source, if any, does a row of the target have its key?"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from parketto.layout.order import order_indices, order_keys
from parketto.storage.bounds import bounds, row_group_bounds
from parketto.storage.footers import FileInfo
from parketto.storage.row_groups import RowGroupInfo

Indices = npt.NDArray[np.int64]
Rows: TypeAlias = pa.Table | pa.RecordBatch


def matchable(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Values that are equal bit for bit exactly when they are the same key: one NaN, one zero."""
    kind = column.type
    if pat.is_dictionary(kind):
        return matchable(column.cast(kind.value_type))
    if pat.is_float16(kind):
        column, kind = column.cast(pa.float32()), pa.float32()
    if pat.is_floating(kind):
        zeroed = pc.add(column, pa.scalar(0.0, kind))
        return pc.if_else(pc.is_nan(zeroed), pa.scalar(float("nan"), kind), zeroed)
    if pat.is_decimal(kind):
        return column.cast(pa.decimal128(kind.precision, kind.scale)) if kind.bit_width < 128 else column
    return column


class KeyIndex:
    """The keys of some rows, to look other rows up in. Composite keys are looked up column by column.

    >>> index = KeyIndex(pa.table({"a": [1, 1, 2], "b": ["x", "y", "x"]}), ["a", "b"])
    >>> index.find(pa.table({"a": [2, 1, 7], "b": ["x", "y", "x"]})).tolist()
    [2, 1, -1]
    """

    def __init__(self, rows: Rows, keys: Sequence[str]) -> None:
        self._keys = keys
        first, *rest = (_one_chunk(matchable(rows.column(name))) for name in keys)
        self._first = pc.unique(first)
        codes = _position(first, self._first)
        self._steps: list[tuple[pa.Array, pa.Array]] = []
        for column in rest:
            values = pc.unique(column)
            combined = pa.array(codes * len(values) + _position(column, values))
            pairs = pc.unique(combined)
            self._steps.append((values, pairs))
            codes = _position(combined, pairs)
        #: For each row a number that only rows with the same key have.
        self.codes = codes
        # The row of each code; of several, the last.
        self._rows = np.full(int(codes.max()) + 1 if len(codes) else 0, -1, np.int64)
        self._rows[codes] = np.arange(len(codes))

    def find(self, rows: Rows) -> Indices:
        """For each row the number of the row with the same key, or -1."""
        if not len(self._rows):
            return np.full(rows.num_rows, -1, np.int64)
        first, *rest = (matchable(rows.column(name)) for name in self._keys)
        codes = _position(first, self._first)
        for column, (values, pairs) in zip(rest, self._steps, strict=True):
            found = _position(column, values)
            combined = np.where((codes < 0) | (found < 0), -1, codes * len(values) + found)
            codes = _position(pa.array(combined), pairs)
        return np.where(codes < 0, -1, self._rows[codes])


def have_different_values(rows: Rows, column: str) -> bool:
    """Whether no two rows have the same value in a column: if it is a key, then so are all keys with it."""
    return bool(len(pc.unique(matchable(rows.column(column)))) == rows.num_rows)


def _one_chunk(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _position(column: pa.Array | pa.ChunkedArray, values: pa.Array) -> Indices:
    found = pc.fill_null(pc.index_in(column, value_set=values), -1)
    return np.asarray(_one_chunk(found).to_numpy(zero_copy_only=False), dtype=np.int64)


class SortedKeys:
    """The first key column of rows that are in its order, to see which of them a file can have."""

    def __init__(self, rows: pa.Table, column: str) -> None:
        self._column, self._length = column, rows.num_rows
        self._values = _comparable_values(rows.column(column))

    def span(self, file: FileInfo) -> tuple[int, int]:
        """The rows whose key may be in the file, as its footer tells: from the first to before the second."""
        inside = file.schema is not None and self._column in file.schema.names
        found = bounds(file, self._column) if inside else None
        if found is None or self._values is None:
            return 0, self._length
        return self._between(found)

    def meets(self, file: FileInfo, group: RowGroupInfo) -> bool:
        """Whether a row group of a file may have any of the keys, as its bounds tell."""
        inside = file.schema is not None and self._column in file.schema.names
        found = row_group_bounds(file, group, self._column) if inside and self._values is not None else None
        if found is None:
            return group.num_rows > 0
        start, stop = self._between(found)
        return start < stop

    def _between(self, found: tuple[pa.Scalar, pa.Scalar]) -> tuple[int, int]:
        assert self._values is not None, "values that can be compared"
        low, high = (_comparable_values(pa.array([value])) or [] for value in found)
        return bisect_left(self._values, low[0]), bisect_right(self._values, high[0])


def sort_by_key(rows: pa.Table, column: str) -> pa.Table:
    """The rows in the order of a key column."""
    return rows.take(pa.array(order_indices(order_keys(rows, [column]))))


def _comparable_values(column: pa.Array | pa.ChunkedArray) -> Sequence[Any] | None:
    kind = column.type
    if pat.is_dictionary(kind):
        return _comparable_values(column.cast(kind.value_type))
    if pat.is_temporal(kind):
        column = column.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
        kind = column.type
    if pat.is_floating(kind):
        return None
    if pat.is_integer(kind):
        return column.to_numpy().tolist()  # type: ignore[no-any-return]
    return column.to_pylist()  # type: ignore[no-any-return]


def may_share_key(file: FileInfo, keys: Sequence[str], ranges: Mapping[str, tuple[pa.Scalar, pa.Scalar]]) -> bool:
    """Whether a file can have a key between the lowest and the highest of a source, as far as its footer tells.

    A file that may have NULLs among its keys must be looked at in any case.
    """
    if not file.num_rows:
        return False
    for name in keys:
        if file.schema is None or name not in file.schema.names:
            continue
        if file.column_stats(name).null_count is None:
            return True
        mine, theirs = bounds(file, name), ranges.get(name)
        if mine is None or theirs is None:
            continue
        (lowest, highest), (low, high) = (
            [_comparable_values(pa.array([value]).cast(theirs[0].type)) or [None] for value in pair]
            for pair in (mine, theirs)
        )
        if highest[0] < low[0] or high[0] < lowest[0]:
            return False
    return True

"""Key lookup: finds the row of the source, if any, that has the key of a target row."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from parketto.merge.hashing import Hashes, is_one_word, key_hashes, words
from parketto.parquet.bounds import bounds, row_group_bounds
from parketto.parquet.file_info import FileInfo
from parketto.parquet.row_group_info import RowGroupInfo
from parketto.runtime.arrays import Flags, Indices
from parketto.sorting.order import order_indices, order_keys

Rows: TypeAlias = pa.Table | pa.RecordBatch


def matchable(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Normalized values, which are bitwise equal exactly if they are the same key: one NaN, one zero."""
    kind = column.type
    if pat.is_null(kind):
        return column.cast(pa.int8())
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


def key_columns(rows: Rows, keys: Sequence[str], *, with_nulls: bool = False) -> list[pa.Array]:
    """The keys of rows, normalized for hashing and comparison.

    With NULLs, each key has a second column, which is true for values that are not NULL.
    """
    columns = [_one_chunk(matchable(rows.column(name))) for name in keys]
    if not with_nulls:
        return columns
    return [part for column in columns for part in (_filled(column), column.is_valid())]


def _filled(column: pa.Array) -> pa.Array:
    """The values with the same filler for all NULLs."""
    if not column.null_count:
        return column
    kind = column.type
    if pat.is_fixed_size_binary(kind):
        filler = pa.scalar(bytes(kind.byte_width), kind)
    elif pat.is_decimal(kind):
        filler = pa.scalar(Decimal(0), kind)
    elif pat.is_string(kind) or pat.is_large_string(kind):
        filler = pa.scalar("", kind)
    elif pat.is_binary(kind) or pat.is_large_binary(kind):
        filler = pa.scalar(b"", kind)
    else:
        filler = pa.scalar(0).cast(pa.int32() if kind.bit_width == 32 else pa.int64()).cast(kind)
    return pc.coalesce(column, filler)


class KeyIndex:
    """An index of the keys of some rows. The cost of a lookup depends on the rows that are looked up.

    Keys are sorted by a hash. Unless a key is its own hash, the keys are compared as well.

    >>> index = KeyIndex(pa.table({"a": [1, 1, 2], "b": ["x", "y", "x"]}), ["a", "b"])
    >>> index.find(pa.table({"a": [2, 1, 7], "b": ["x", "y", "x"]})).tolist()
    [2, 1, -1]
    """

    def __init__(self, rows: Rows, keys: Sequence[str], *, with_nulls: bool = False) -> None:
        self._keys, self._with_nulls = keys, with_nulls
        self._columns = key_columns(rows, keys, with_nulls=with_nulls)
        self._exact = len(self._columns) == 1 and is_one_word(self._columns[0].type)
        self._seed = 0
        while not self._sort():  # a hash collision: extremely rare, but two keys must not be mixed up
            self._seed += 1

    def _hashed(self, columns: Sequence[pa.Array]) -> Hashes:
        return words(columns[0]) if self._exact else key_hashes(columns, self._seed)

    def _sort(self) -> bool:
        """Group the rows by their hash; returns whether all rows of a group have the same key."""
        hashes = self._hashed(self._columns)
        order = np.argsort(hashes, kind="stable")
        ordered = hashes[order]
        starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])) if len(ordered) else order
        counts = np.diff(np.append(starts, len(ordered)))
        self._hashes = ordered[starts]
        # The row of each key; the last one of several.
        self._rows: Indices = order[starts + counts - 1]
        #: For each row, a number that only rows with the same key share.
        self.codes = np.empty(len(order), np.int64)
        self.codes[order] = np.repeat(np.arange(len(starts)), counts)
        if self._exact or len(starts) == len(order):
            return True
        several = np.flatnonzero(counts[self.codes] > 1)
        return bool(self._same(self._rows[self.codes[several]], self._columns, several).all())

    def _same(self, rows: Indices, others: Sequence[pa.Array], positions: Indices) -> Flags:
        """Whether rows have the same keys as the rows of `others` at `positions`."""
        same = np.ones(len(rows), np.bool_)
        for mine, theirs in zip(self._columns, others, strict=True):
            equal = pc.equal(_bits(mine.take(pa.array(rows))), _bits(theirs.take(pa.array(positions))))
            same &= equal.to_numpy(zero_copy_only=False)
        return same

    def find(self, rows: Rows) -> Indices:
        """For each row, the number of the indexed row with the same key, or -1."""
        found = np.full(rows.num_rows, -1, np.int64)
        if not len(self._hashes) or not rows.num_rows:
            return found
        columns = key_columns(rows, self._keys, with_nulls=self._with_nulls)
        hashes = self._hashed(columns)
        # Sorted lookups hit the CPU cache, which takes a tenth of the time. Keys are often sorted already.
        is_sorted = bool((hashes[1:] >= hashes[:-1]).all())
        order = np.arange(len(hashes)) if is_sorted else np.argsort(hashes)
        ordered = hashes[order]
        at = np.minimum(np.searchsorted(self._hashes, ordered), len(self._hashes) - 1)
        equal = self._hashes[at] == ordered
        hits, candidates = order[equal], self._rows[at[equal]]
        if not self._exact:
            same = self._same(candidates, columns, hits)
            hits, candidates = hits[same], candidates[same]
        found[hits] = candidates
        return found


def _bits(column: pa.Array) -> pa.Array:
    """Floats as integers with the same bits, so that NaN equals itself."""
    kind = column.type
    if not pat.is_floating(kind):
        return column
    return column.view(pa.int32() if kind.bit_width == 32 else pa.int64())


def have_different_values(rows: Rows, column: str) -> bool:
    """Whether the values of a column are distinct: then all keys that include it are distinct.

    >>> rows = pa.table({"id": [3, 1, 2], "day": [1, 1, None], "name": ["a", "b", "a"]})
    >>> [have_different_values(rows, name) for name in rows.column_names]
    [True, False, False]
    """
    values = _one_chunk(matchable(rows.column(column)))
    if values.null_count or not (pat.is_primitive(values.type) and is_one_word(values.type)):
        return bool(len(pc.unique(values)) == rows.num_rows)
    ordered = np.sort(words(values))  # takes a fifth of the time
    return bool((ordered[1:] != ordered[:-1]).all())


def _one_chunk(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


class SortedKeys:
    """The first key column of rows sorted by it, NULLs last, to find the rows that a file may contain."""

    def __init__(self, rows: pa.Table, column: str) -> None:
        self._column, self._length = column, rows.num_rows
        self._nulls = rows.column(column).null_count
        self._values = _comparable_values(rows.column(column).slice(0, rows.num_rows - self._nulls))

    def span(self, file: FileInfo) -> tuple[int, int]:
        """The range of rows, start and stop, whose key may be in the file, according to its footer."""
        inside = file.schema is not None and self._column in file.schema.names
        found = bounds(file, self._column) if inside else None
        if found is None or self._values is None:
            return 0, self._length
        start, stop = self._between(found)
        if self._nulls and file.column_stats(self._column).null_count != 0:
            stop = self._length  # NULL keys follow all others
        return start, stop

    def meets(self, file: FileInfo, group: RowGroupInfo) -> bool:
        """Whether a row group of a file may contain any of the keys, according to its bounds."""
        inside = file.schema is not None and self._column in file.schema.names
        found = row_group_bounds(file, group, self._column) if inside and self._values is not None else None
        if found is None:
            return group.num_rows > 0
        start, stop = self._between(found)
        return start < stop or (self._nulls > 0 and group.columns[self._column].null_count != 0)

    def _between(self, found: tuple[pa.Scalar, pa.Scalar]) -> tuple[int, int]:
        assert self._values is not None, "values that can be compared"
        low, high = map(_comparable_value, found)
        return bisect_left(self._values, low), bisect_right(self._values, high)


def sort_by_key(rows: pa.Table, column: str) -> pa.Table:
    """The rows sorted by a key column, NULLs last."""
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
        return column.to_numpy()  # type: ignore[no-any-return]
    return column.to_pylist()  # type: ignore[no-any-return]


def _comparable_value(value: pa.Scalar) -> Any:
    found = _comparable_values(pa.array([value]))
    return None if found is None else found[0]


def may_share_key(file: FileInfo, keys: Sequence[str], ranges: Mapping[str, tuple[pa.Scalar, pa.Scalar]]) -> bool:
    """Whether a file may contain a key in the range of the source, according to its footer.

    A file that may have NULL keys must be read in any case.
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
            [_comparable_value(value.cast(theirs[0].type)) for value in pair] for pair in (mine, theirs)
        )
        if highest < low or high < lowest:
            return False
    return True

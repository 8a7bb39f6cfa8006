"""How much memory decoded data takes, and how many distinct values a dictionary can tell apart."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

# So little that it may as well be counted in one go.
_HARDLY_ANY = 256 * 1024
# Samples of so many rows, or twice as many, tell how often values repeat.
_LEAST_ROWS, _MOST_ROWS = 256, 4096
# To look at so many rows takes no longer than to choose some of them.
_FEW_ROWS = 512
# Where more of them are there again, the estimate is not needed: a dictionary is worth it.
_MANY_AGAIN = 0.5
# A dictionary should save so much that it is worth the time; and one that is larger is given up half-way.
_WORTH_SAVING = 0.8
_DICTIONARY_BYTES = 1024 * 1024
_NARROWEST, _LENGTH_BYTES = 4, 4
HUGE_VALUE_BYTES = 1024 * 1024


def decoded_bytes(batch: pa.RecordBatch) -> int:
    """The size of a batch; of a dictionary only as much as its rows can refer to.

    Arrow counts a whole dictionary for every slice of a column that has one, however short.

    >>> words = pa.array(["x" * 1000 + str(n) for n in range(1000)]).dictionary_encode()
    >>> batch = pa.record_batch({"word": words}).slice(0, 10)
    >>> batch.nbytes > 1_000_000, decoded_bytes(batch) < 11_000
    (True, True)
    """
    whole = int(batch.nbytes)
    return whole if whole < _HARDLY_ANY else sum(_column_bytes(column) for column in batch.columns)


def _column_bytes(column: pa.Array) -> int:
    if not isinstance(column, pa.DictionaryArray):
        return int(column.nbytes)
    values = max(1, len(column.dictionary))
    return int(column.indices.nbytes + column.dictionary.nbytes * min(1.0, len(column) / values))


class RowSizes:
    """The sizes of batches of one schema: only columns whose values differ in length are looked at.

    >>> schema = pa.schema({"n": pa.int64(), "word": pa.string()})
    >>> RowSizes(schema).of(pa.record_batch([[1, 2], ["ab", "cd"]], schema))
    28
    >>> RowSizes(schema).fixed is None, RowSizes(schema.remove(1)).fixed
    (True, 8.125)
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._others = [at for at, kind in enumerate(schema.types) if not has_fixed_width(kind)]
        fixed = [item for item in schema if has_fixed_width(item.type)]
        self._row_bytes = sum(item.type.bit_width + item.nullable for item in fixed) / 8

    @property
    def fixed(self) -> float | None:
        """The size of every row, if all have the same."""
        return None if self._others else self._row_bytes

    def of(self, batch: pa.RecordBatch) -> int:
        """The size of a batch, as `decoded_bytes` says it."""
        others = sum(_column_bytes(batch.column(at)) for at in self._others)
        return int(self._row_bytes * batch.num_rows) + others


def has_fixed_width(kind: pa.DataType) -> bool:
    """Whether all values of a type have the same size."""
    return bool(pat.is_primitive(kind) or pat.is_decimal(kind) or pat.is_fixed_size_binary(kind))


def runs(batches: Iterable[pa.RecordBatch], limit_bytes: int, limit_rows: int | None = None) -> Iterator[pa.Table]:
    """Batches put together up to a size: about so many bytes, and at most so many rows.

    >>> batches = pa.table({"n": range(10)}).to_batches(max_chunksize=4)
    >>> [run.num_rows for run in runs(batches, 2**20, limit_rows=6)], [run.num_rows for run in runs(batches, 1)]
    ([6, 4], [4, 4, 2])
    """
    waiting: list[pa.RecordBatch] = []
    size = rows = 0
    for whole in batches:
        batch = whole
        while batch.num_rows:
            part = batch if limit_rows is None else batch.slice(0, limit_rows - rows)
            batch = batch.slice(part.num_rows)
            waiting.append(part)
            size, rows = size + decoded_bytes(part), rows + part.num_rows
            if size >= limit_bytes or rows == limit_rows:
                yield pa.Table.from_batches(waiting)
                waiting, size, rows = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def hardly_repeats(column: pa.ChunkedArray) -> bool:
    """Whether a dictionary of a column's values would hardly take less than the values, as far as samples tell.

    Writers begin every column with a dictionary, and give it up when that grows too large; in a small row group it
    never does. For values that hardly repeat that takes longer than all else, and more bytes than the values.

    >>> hardly_repeats(pa.chunked_array([range(10_000)])), hardly_repeats(pa.chunked_array([[1, 1, 2]]))
    (True, False)
    """
    if column.type.num_fields or not (pat.is_primitive(column.type) or _is_text(column.type)):
        return False
    if len(column) == 1 and has_huge_values(column):
        return True  # to count it would copy it
    if len(column) <= _FEW_ROWS:
        return _says_so(column, len(column))
    # Neighbours show what comes in runs, rows from all over show what comes in turns: both must say so.
    rows = min(_MOST_ROWS, max(_LEAST_ROWS, len(column) // 32))
    return all(_says_so(sample(column, rows), len(column)) for sample in (_neighbours, _scattered))


def has_huge_values(column: pa.ChunkedArray) -> bool:
    """Whether values are so large, on average, that every copy of one counts: a megabyte."""
    return bool(len(column) and column.nbytes > HUGE_VALUE_BYTES * len(column))


def _neighbours(column: pa.ChunkedArray, rows: int) -> pa.ChunkedArray:
    head, middle = column.slice(0, rows), column.slice(max(rows, len(column) // 2), rows)
    return pa.chunked_array([*head.chunks, *middle.chunks], column.type)


def _scattered(column: pa.ChunkedArray, rows: int) -> pa.ChunkedArray:
    places = _places(len(column), rows)
    found, start = [], 0
    for chunk in column.chunks:  # to take from all of them at once, Arrow would put them together
        first, last = np.searchsorted(places, [start, start + len(chunk)])
        found.append(chunk.take(pa.array(places[first:last] - start)))
        start += len(chunk)
    return pa.chunked_array(found, column.type)


@functools.lru_cache(maxsize=8)
def _places(length: int, rows: int) -> npt.NDArray[np.int64]:
    """Where to look: the same places in all columns of a row group."""
    return np.unique(np.random.default_rng(rows).integers(0, length, rows))


def _says_so(sample: pa.ChunkedArray, rows: int) -> bool:
    seen = len(sample) - sample.null_count
    try:
        distinct = pc.count_distinct(sample, mode="only_valid").as_py()
    except pa.ArrowNotImplementedError:
        return False
    if not seen or distinct < _MANY_AGAIN * seen:
        return False
    if _is_text(sample.type):
        width = _LENGTH_BYTES + sample.nbytes / seen
    else:
        width = max(_NARROWEST, sample.type.bit_width // 8)
    count = rows * seen / len(sample)
    values = distinct if len(sample) == rows else _values(seen, distinct, count)
    with_dictionary = values * width + count * math.log2(values + 1) / 8
    return bool(values * width > _DICTIONARY_BYTES or with_dictionary > _WORTH_SAVING * count * width)


def _values(seen: int, distinct: int, count: float) -> float:
    """How many distinct values `count` of them have, if some that were seen have so many.

    So few pairs among those seen mean so many values to choose from; and of these, so many are chosen.
    """
    choice = seen * seen / max(1e-9, 2.0 * (seen - distinct))
    return -math.expm1(-count / choice) * choice


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pat.is_string(kind) or pat.is_large_string(kind) or pat.is_binary(kind) or pat.is_large_binary(kind)
    )


def small_dictionaries(schema: pa.Schema) -> dict[int, int]:
    """The positions of categories with a small index type, and how many values each can tell apart.

    >>> small_dictionaries(pa.schema({"a": pa.string(), "b": pa.dictionary(pa.int8(), pa.string())}))
    {1: 128}
    """
    return {
        position: 2 ** (kind.index_type.bit_width - (0 if pat.is_unsigned_integer(kind.index_type) else 1))
        for position, kind in enumerate(schema.types)
        if pat.is_dictionary(kind) and kind.index_type.bit_width < 32
    }


class DictionaryLimits:
    """Keeps row groups readable whose dictionary columns have a small index type.

    pandas writes categories with indices of one byte. A row group in which such a column has more than 128
    distinct values could not be read back into its own type.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._limits = small_dictionaries(schema)
        self._seen: dict[int, set[object]] = {position: set() for position in self._limits}

    def admit(self, batch: pa.RecordBatch) -> int:
        """How many of the batch's first rows still fit into the row group; these are counted in."""
        rows = int(batch.num_rows)
        for position, limit in self._limits.items():
            rows = min(rows, self._fitting(batch.column(position), self._seen[position], limit))
        for position in self._limits:
            self._seen[position].update(_distinct(batch.column(position).slice(0, rows)))
        return rows

    def clear(self) -> None:
        """A new row group begins."""
        for seen in self._seen.values():
            seen.clear()

    @staticmethod
    def _fitting(column: pa.Array, seen: set[object], limit: int) -> int:
        distinct = _distinct(column)
        fresh = [value for value in distinct if value not in seen]
        if len(seen) + len(fresh) <= limit:
            return len(column)
        # The position of the first value that is one too many.
        first_excess = fresh[limit - len(seen)]
        return int(np.argmax(np.array([value == first_excess for value in column.to_pylist()])))


def _distinct(column: pa.Array) -> list[object]:
    """Distinct values in the order in which they first appear."""
    return [value for value in column.unique().to_pylist() if value is not None]

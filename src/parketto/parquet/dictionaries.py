"""Decides which columns get a dictionary, and keeps dictionaries within their index types."""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

# Rows per sample for estimating the distinct count; samples of adjacent rows have twice as many.
_MIN_SAMPLE_ROWS, _MAX_SAMPLE_ROWS = 256, 4096
_UNSAMPLED_ROWS = 512  # up to this, reading all rows is as fast as sampling
_FEW_ROWS = 16 * 1024  # up to this, adjacent rows alone decide: a second sample takes longer than it saves
_LOW_DISTINCT_SHARE = 0.5  # below this share of distinct values in a sample, a dictionary always pays off
_MAX_ENCODED_SHARE = 0.8  # of the plain size; above this, a dictionary is not worth the time
_MAX_DICTIONARY_BYTES = 1024 * 1024  # writers give up on larger dictionaries half-way
_MIN_VALUE_BYTES, _LENGTH_BYTES = 4, 4  # plain bytes of the narrowest value, and of a string's length
HUGE_VALUE_BYTES = 1024 * 1024  # average bytes per value above which every copy counts


def is_high_cardinality(column: pa.ChunkedArray) -> bool:
    """Whether a dictionary would hardly be smaller than a column's values, estimated from samples.

    Writers begin every column with a dictionary, and give up when it grows too large; in a small row group it
    never does. For high-cardinality columns it takes longer than everything else, and more bytes than the values.

    >>> is_high_cardinality(pa.chunked_array([range(10_000)])), is_high_cardinality(pa.chunked_array([[1, 1, 2]]))
    (True, False)
    """
    if column.type.num_fields or not (pat.is_primitive(column.type) or _is_string_or_binary(column.type)):
        return False
    if len(column) == 1 and has_huge_values(column):
        return True  # counting distinct values would copy it
    if len(column) <= _UNSAMPLED_ROWS:
        return _sample_is_high_cardinality(column, len(column))
    rows = min(_MAX_SAMPLE_ROWS, max(_MIN_SAMPLE_ROWS, len(column) // 32))
    # Adjacent rows reveal runs, scattered rows reveal values that recur far apart: both samples must agree.
    samples = (_adjacent_rows,) if len(column) <= _FEW_ROWS else (_adjacent_rows, _scattered_rows)
    return all(_sample_is_high_cardinality(sample(column, rows), len(column)) for sample in samples)


def has_huge_values(column: pa.ChunkedArray) -> bool:
    """Whether values average more than 1 MiB, so that every copy of one counts."""
    return bool(len(column) and column.nbytes > HUGE_VALUE_BYTES * len(column))


def _adjacent_rows(column: pa.ChunkedArray, rows: int) -> pa.ChunkedArray:
    head, middle = column.slice(0, rows), column.slice(max(rows, len(column) // 2), rows)
    return pa.chunked_array([*head.chunks, *middle.chunks], column.type)


def _scattered_rows(column: pa.ChunkedArray, rows: int) -> pa.ChunkedArray:
    # One row at a random place in each of several equal ranges of rows.
    sampled = ((np.arange(rows) + _offsets(rows)) * (len(column) / rows)).astype(np.int64)
    found, start = [], 0
    for chunk in column.chunks:  # one take from all chunks would make Arrow concatenate them
        first, last = np.searchsorted(sampled, [start, start + len(chunk)])
        found.append(chunk.take(pa.array(sampled[first:last] - start)))
        start += len(chunk)
    return pa.chunked_array(found, column.type)


@functools.lru_cache(maxsize=8)
def _offsets(rows: int) -> npt.NDArray[np.float64]:
    """Random places from 0 to 1: the same in all columns of a row group."""
    return np.random.default_rng(rows).random(rows)


def _sample_is_high_cardinality(sample: pa.ChunkedArray, rows: int) -> bool:
    seen = len(sample) - sample.null_count
    try:
        distinct = len(sample.unique()) - (sample.null_count > 0)  # half of the time of `count_distinct`
    except pa.ArrowNotImplementedError:
        return False
    if not seen or distinct < _LOW_DISTINCT_SHARE * seen:
        return False
    if _is_string_or_binary(sample.type):
        width = _LENGTH_BYTES + sample.nbytes / seen
    else:
        width = max(_MIN_VALUE_BYTES, sample.type.bit_width // 8)
    count = rows * seen / len(sample)
    estimated = distinct if len(sample) == rows else _estimated_distinct(seen, distinct, count)
    with_dictionary = estimated * width + count * math.log2(estimated + 1) / 8
    return bool(estimated * width > _MAX_DICTIONARY_BYTES or with_dictionary > _MAX_ENCODED_SHARE * count * width)


def _estimated_distinct(seen: int, distinct: int, count: float) -> float:
    """The estimated distinct count of `count` values, of which a sample of `seen` has `distinct` ones.

    The number of repeats in the sample gives the size of the domain; that gives how many of it `count` draws hit.
    """
    domain = seen * seen / max(1e-9, 2.0 * (seen - distinct))
    return -math.expm1(-count / domain) * domain


def _is_string_or_binary(kind: pa.DataType) -> bool:
    return bool(
        pat.is_string(kind) or pat.is_large_string(kind) or pat.is_binary(kind) or pat.is_large_binary(kind)
    )


def small_dictionaries(schema: pa.Schema) -> dict[int, int]:
    """The positions of categorical columns with a small index type, and the most distinct values of each.

    >>> small_dictionaries(pa.schema({"a": pa.string(), "b": pa.dictionary(pa.int8(), pa.string())}))
    {1: 128}
    """
    return {
        position: 2 ** (kind.index_type.bit_width - (0 if pat.is_unsigned_integer(kind.index_type) else 1))
        for position, kind in enumerate(schema.types)
        if pat.is_dictionary(kind) and kind.index_type.bit_width < 32
    }


class DictionaryLimits:
    """Ends row groups before dictionary columns with a small index type become unreadable.

    pandas writes categoricals with one-byte indices. A row group in which such a column has more than 128
    distinct values could not be read back into its own type.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._limits = small_dictionaries(schema)
        self._seen: dict[int, set[object]] = {position: set() for position in self._limits}

    def admit(self, batch: pa.RecordBatch) -> int:
        """How many of the batch's first rows still fit into the row group; these are counted."""
        rows = int(batch.num_rows)
        for position, limit in self._limits.items():
            rows = min(rows, self._fitting(batch.column(position), self._seen[position], limit))
        for position in self._limits:
            self._seen[position].update(_distinct(batch.column(position).slice(0, rows)))
        return rows

    def clear(self) -> None:
        """Start a new row group."""
        for seen in self._seen.values():
            seen.clear()

    @staticmethod
    def _fitting(column: pa.Array, seen: set[object], limit: int) -> int:
        distinct = _distinct(column)
        unseen = [value for value in distinct if value not in seen]
        if len(seen) + len(unseen) <= limit:
            return len(column)
        # Stop before the first value above the limit.
        first_excess = unseen[limit - len(seen)]
        return int(np.argmax(np.array([value == first_excess for value in column.to_pylist()])))


def _distinct(column: pa.Array) -> list[object]:
    """Distinct values in order of first appearance."""
    return [value for value in column.unique().to_pylist() if value is not None]

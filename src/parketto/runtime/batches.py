"""The sizes of decoded batches, and batches combined up to a size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.types as pat

_SMALL_BATCH_BYTES = 256 * 1024  # smaller batches are not measured per column


def decoded_bytes(batch: pa.RecordBatch) -> int:
    """The size of a batch; a dictionary counts only as far as its rows can refer to it.

    Arrow counts the whole dictionary for every slice of a dictionary column, however short.

    >>> words = pa.array(["x" * 1000 + str(n) for n in range(1000)]).dictionary_encode()
    >>> batch = pa.record_batch({"word": words}).slice(0, 10)
    >>> batch.nbytes > 1_000_000, decoded_bytes(batch) < 11_000
    (True, True)
    """
    whole = int(batch.nbytes)
    return whole if whole < _SMALL_BATCH_BYTES else sum(_column_bytes(column) for column in batch.columns)


def _column_bytes(column: pa.Array) -> int:
    if not isinstance(column, pa.DictionaryArray):
        return int(column.nbytes)
    values = max(1, len(column.dictionary))
    return int(column.indices.nbytes + column.dictionary.nbytes * min(1.0, len(column) / values))


class RowSizes:
    """Computes the sizes of batches of one schema; only columns of variable width are measured.

    >>> schema = pa.schema({"n": pa.int64(), "word": pa.string()})
    >>> RowSizes(schema).of(pa.record_batch([[1, 2], ["ab", "cd"]], schema))
    28
    >>> RowSizes(schema).fixed is None, RowSizes(schema.remove(1)).fixed
    (True, 8.125)
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._variable = [at for at, kind in enumerate(schema.types) if not has_fixed_width(kind)]
        fixed = [item for item in schema if has_fixed_width(item.type)]
        self._row_bytes = sum(item.type.bit_width + item.nullable for item in fixed) / 8

    @property
    def fixed(self) -> float | None:
        """The size of a row in bytes, if all rows have the same."""
        return None if self._variable else self._row_bytes

    def of(self, batch: pa.RecordBatch) -> int:
        """The size of a batch, as `decoded_bytes` computes it."""
        variable = sum(_column_bytes(batch.column(at)) for at in self._variable)
        return int(self._row_bytes * batch.num_rows) + variable


def has_fixed_width(kind: pa.DataType) -> bool:
    """Whether all values of a type have the same size."""
    return bool(pat.is_primitive(kind) or pat.is_decimal(kind) or pat.is_fixed_size_binary(kind))


def runs(batches: Iterable[pa.RecordBatch], limit_bytes: int, limit_rows: int | None = None) -> Iterator[pa.Table]:
    """Batches combined into tables of about `limit_bytes` bytes and at most `limit_rows` rows.

    >>> batches = pa.table({"n": range(10)}).to_batches(max_chunksize=4)
    >>> [run.num_rows for run in runs(batches, 2**20, limit_rows=6)], [run.num_rows for run in runs(batches, 1)]
    ([6, 4], [4, 4, 2])
    """
    held: list[pa.RecordBatch] = []
    size = rows = 0
    for whole in batches:
        batch = whole
        while batch.num_rows:
            part = batch if limit_rows is None else batch.slice(0, limit_rows - rows)
            batch = batch.slice(part.num_rows)
            held.append(part)
            size, rows = size + decoded_bytes(part), rows + part.num_rows
            if size >= limit_bytes or rows == limit_rows:
                yield pa.Table.from_batches(held)
                held, size, rows = [], 0, 0
    if held:
        yield pa.Table.from_batches(held)

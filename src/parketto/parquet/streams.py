"""Row sources that are streamed: PyArrow datasets, scanners, DuckDB relations, and iterables of batches."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import pyarrow as pa

from parketto.errors import InvalidArgument
from parketto.parquet.row_source import ArrowRows, checked_columns

_BATCH_ROWS = 32 * 1024  # rows per batch of a DuckDB relation
_LIBRARIES = frozenset({"pandas", "polars", "pyspark"})  # their frames are iterable, but not over batches


class RereadableRows(ArrowRows):
    """Batches that are read from their source again for every iteration."""

    @property
    def repeatable(self) -> bool:
        """Always: an iteration does not consume them."""
        return True


class _Scans:
    """Scans a PyArrow dataset for every iteration, with little read ahead."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(self._dataset.to_batches(batch_size=_BATCH_ROWS, batch_readahead=2, fragment_readahead=1))


def streamed_rows(rows: Any) -> ArrowRows | None:
    """The rows of an object that is streamed; None for any other object.

    >>> found = streamed_rows(pa.record_batch({"n": [number]}) for number in range(3))
    >>> found.schema.names, found.repeatable, sum(batch.num_rows for batch in found.batches)
    (['n'], False, 3)
    """
    datasets = sys.modules.get("pyarrow.dataset")
    if datasets is not None and isinstance(rows, datasets.Dataset):
        return RereadableRows(checked_columns(rows.schema), _Scans(rows))
    if datasets is not None and isinstance(rows, datasets.Scanner):
        return _once(rows.to_reader())
    if type(rows).__name__ == "DuckDBPyRelation":
        # An Arrow stream of the whole relation would fetch all rows first.
        read = getattr(rows, "to_arrow_reader", None) or rows.fetch_arrow_reader
        return _once(read(_BATCH_ROWS))
    return _from_batches(rows) if _is_iterable(rows) else None


def _once(reader: pa.RecordBatchReader) -> ArrowRows:
    return ArrowRows(checked_columns(reader.schema), reader)


def _is_iterable(rows: Any) -> bool:
    own = isinstance(rows, str | bytes | Mapping | pa.Table | pa.RecordBatch | pa.RecordBatchReader)
    library = type(rows).__module__.partition(".")[0]
    return (
        isinstance(rows, Iterable)
        and not own
        and library not in _LIBRARIES
        and not hasattr(rows, "__arrow_c_stream__")
    )


def _from_batches(rows: Iterable[Any]) -> ArrowRows:
    """Batches and tables, with the schema of the first one. Lists can be read again, other iterables once."""
    items = iter(rows)
    first = next(items, None)
    if first is None:
        raise InvalidArgument(
            "the iterable of rows is empty, so their columns are unknown; pass an empty table, or a PyArrow "
            "RecordBatchReader, which has a schema"
        )
    schema = _checked_item(first, 0, None)
    batches = _batches(chain([first], items), schema)
    if isinstance(rows, list | tuple):
        return ArrowRows(checked_columns(schema), list(batches))
    return ArrowRows(checked_columns(schema), batches)


def _batches(items: Iterable[Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for position, item in enumerate(items):
        _checked_item(item, position, schema)
        yield from item.to_batches() if isinstance(item, pa.Table) else [item]


def _checked_item(item: Any, position: int, expected: pa.Schema | None) -> pa.Schema:
    if not isinstance(item, pa.RecordBatch | pa.Table):
        raise InvalidArgument(
            f"item {position} of the rows is of type {type(item).__name__}; expected a PyArrow RecordBatch or "
            "Table"
        )
    if expected is not None and not item.schema.equals(expected):
        raise InvalidArgument(
            f"item {position} of the rows has other columns than the first one: {_described(item.schema)} instead "
            f"of {_described(expected)}. Nothing was changed"
        )
    return item.schema


def _described(schema: pa.Schema) -> str:
    return ", ".join(f"{item.name}: {item.type}" for item in schema)

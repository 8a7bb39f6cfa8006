"""The sort order of clustering columns: ascending, NaN after numbers, NULLs last.

All sorting takes its keys from this module, so that every engine agrees on the order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from parketto.errors import InvalidArgument
from parketto.sorting.ordinals import sorted_positions

AnyArray = TypeVar("AnyArray", pa.Array, pa.ChunkedArray)

_ORDERABLE = (
    pat.is_boolean,
    pat.is_integer,
    pat.is_floating,
    pat.is_decimal,
    pat.is_temporal,
    pat.is_string,
    pat.is_large_string,
    pat.is_string_view,
    pat.is_binary,
    pat.is_large_binary,
    pat.is_binary_view,
    pat.is_fixed_size_binary,
    pat.is_null,
)


def check_orderable(columns: Sequence[str], schema: pa.Schema) -> None:
    """Raise InvalidArgument unless every column has a sortable type.

    >>> check_orderable(["tags"], pa.schema({"tags": pa.list_(pa.string())}))
    Traceback (most recent call last):
        ...
    parketto.errors.InvalidArgument: rows cannot be ordered by 'tags': its type is list<item: string>
    """
    for name in columns:
        kind = schema.field(name).type
        if not is_orderable(kind):
            raise InvalidArgument(f"rows cannot be ordered by {name!r}: its type is {kind}")


def is_orderable(kind: pa.DataType) -> bool:
    """Whether values of a type can be sorted."""
    if pat.is_dictionary(kind):
        return is_orderable(kind.value_type)
    return not pat.is_interval(kind) and any(test(kind) for test in _ORDERABLE)


def order_keys(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """The sort columns, in types that Arrow can compare; named by position."""
    return pa.table({str(position): comparable(table.column(name)) for position, name in enumerate(columns)})


def order_indices(keys: pa.Table) -> npt.NDArray[np.int64]:
    """The positions of rows in sorted order; the sort is stable.

    >>> table = pa.table({"a": [2, None, 1], "b": ["x", "y", "z"]})
    >>> order_indices(order_keys(table, ["a", "b"])).tolist()
    [2, 0, 1]
    """
    return sorted_positions(keys.columns) if keys.num_rows else np.empty(0, dtype=np.int64)


def by_number(number: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], list[tuple[int, int, int]]]:
    """The positions of rows sorted by a number from 0 (stable), and the (number, start, end) of each number.

    >>> order, spans = by_number(np.array([7, 0, 7]))
    >>> order.tolist(), spans
    ([1, 0, 2], [(0, 0, 1), (7, 1, 3)])
    """
    if number.max(initial=0) < 2**16:
        number = number.astype(np.uint16)  # NumPy sorts 16-bit integers by radix, without comparisons
    order = np.argsort(number, kind="stable")
    number = number[order]
    borders = [0, *(np.flatnonzero(number[1:] != number[:-1]) + 1).tolist(), len(number)]
    return order, [(int(number[start]), start, end) for start, end in pairwise(borders) if end > start]


def split_by_number(rows: pa.Table, number: npt.NDArray[Any]) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each number, in input order.

    >>> table = pa.table({"n": ["a", "b", "c"]})
    >>> [(number, part["n"].to_pylist()) for number, part in split_by_number(table, np.array([7, 0, 7]))]
    [(0, ['b']), (7, ['a', 'c'])]
    """
    order, spans = by_number(number)
    ordered = rows.take(pa.array(order))
    del rows  # callers drop theirs, too, so that rows are in memory twice only briefly
    for each, start, end in spans:
        yield each, ordered.slice(start, end - start)


def comparable(column: AnyArray) -> AnyArray:
    """The same values in a type that Arrow can compare."""
    kind = column.type
    if pat.is_dictionary(kind):
        return comparable(column.cast(kind.value_type))
    if pat.is_decimal(kind) and kind.bit_width < 128:
        return column.cast(pa.decimal128(kind.precision, kind.scale))
    if pat.is_float16(kind):
        return column.cast(pa.float32())
    if pat.is_fixed_size_binary(kind):
        return column.cast(pa.binary())
    if pat.is_string_view(kind):
        return column.cast(pa.large_string())
    if pat.is_binary_view(kind):
        return column.cast(pa.large_binary())
    return column

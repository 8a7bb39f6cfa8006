"""The order of rows along clustering columns: ascending, NaN after numbers, NULLs last.

Everything that orders rows asks this module for keys, so that every engine agrees on the order.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from parketto.errors import InvalidArgument

AnyArray = TypeVar("AnyArray", pa.Array, pa.ChunkedArray)

# So many values at either end of a column tell whether its values repeat.
_LOOKED_AT = 256
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
    """Every column has a type whose values can be put in order.

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
    """Whether values of a type can be put in order."""
    if pat.is_dictionary(kind):
        return is_orderable(kind.value_type)
    return not pat.is_interval(kind) and any(test(kind) for test in _ORDERABLE)


def order_keys(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """The columns that decide the order, in types that Arrow can compare; named by position."""
    return pa.table({str(position): comparable(table.column(name)) for position, name in enumerate(columns)})


def order_indices(keys: pa.Table) -> npt.NDArray[np.int64]:
    """The positions of rows in order; rows with equal keys keep theirs.

    >>> table = pa.table({"a": [2, None, 1], "b": ["x", "y", "z"]})
    >>> order_indices(order_keys(table, ["a", "b"])).tolist()
    [2, 0, 1]
    """
    if keys.num_rows == 0:
        return np.empty(0, dtype=np.int64)
    keys = pa.table({name: _ranked(keys.column(name)) for name in keys.column_names})
    # NULLs come last by default, and NaN just before them.
    indices = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in keys.column_names])
    ordered: npt.NDArray[np.int64] = indices.to_numpy().astype(np.int64)
    return ordered


def by_number(number: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], list[tuple[int, int, int]]]:
    """The positions of rows by a number from 0, equal ones as they came; and for each number where its rows are.

    >>> order, spans = by_number(np.array([7, 0, 7]))
    >>> order.tolist(), spans
    ([1, 0, 2], [(0, 0, 1), (7, 1, 3)])
    """
    if number.max(initial=0) < 2**16:
        number = number.astype(np.uint16)  # sixteen bits are sorted without comparing
    order = np.argsort(number, kind="stable")
    number = number[order]
    borders = [0, *(np.flatnonzero(number[1:] != number[:-1]) + 1).tolist(), len(number)]
    return order, [(int(number[start]), start, end) for start, end in pairwise(borders) if end > start]


def _ranked(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Texts that repeat often as their places among each other: numbers are compared in half of the time."""
    if not (pat.is_string(column.type) or pat.is_large_string(column.type)) or not _repeats(column):
        return column
    encoded = column.combine_chunks().dictionary_encode()
    places = np.empty(len(encoded.dictionary), np.int32)
    places[pc.sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(places), dtype=np.int32)
    return pa.chunked_array([pa.array(places).take(encoded.indices)])


def _repeats(column: pa.ChunkedArray) -> bool:
    first, last = column.slice(0, _LOOKED_AT), column.slice(max(0, len(column) - _LOOKED_AT))
    return len(column) > 2 * _LOOKED_AT and all(len(some.unique()) <= _LOOKED_AT // 4 for some in (first, last))


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

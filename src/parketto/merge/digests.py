"""Digests of values that Arrow cannot compare, such as lists and structs."""

from __future__ import annotations

import hashlib

import pyarrow as pa
import pyarrow.types as pat

from parketto.sorting.order import is_orderable

_DIGEST_BYTES = 16  # two different values never have the same digest in practice


def comparable_keys(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """The values, or their digests if keys cannot have their type; NULLs stay.

    >>> column = comparable_keys(pa.array([["a"], ["b"], ["a"], None]))
    >>> column[0] == column[2], column[0] == column[1], column[3].as_py()
    (True, False, None)
    """
    if is_orderable(column.type):
        return column
    values = column.cast(_printable(column.type)).to_pylist()
    digests = [
        None if value is None else hashlib.blake2b(repr(value).encode(), digest_size=_DIGEST_BYTES).digest()
        for value in values
    ]
    return pa.array(digests, pa.binary(_DIGEST_BYTES))


def _printable(kind: pa.DataType) -> pa.DataType:
    """The type with integers instead of times: Python's own times have no nanoseconds."""
    if pat.is_struct(kind):
        return pa.struct([item.with_type(_printable(item.type)) for item in kind.fields])
    if pat.is_map(kind):
        return pa.map_(_printable(kind.key_type), _printable(kind.item_type))
    if pat.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_printable(kind.value_type)), kind.list_size)
    if pat.is_list(kind) or pat.is_large_list(kind):
        of = pa.list_ if pat.is_list(kind) else pa.large_list
        return of(kind.value_field.with_type(_printable(kind.value_type)))
    if pat.is_timestamp(kind) or pat.is_duration(kind) or pat.is_time64(kind):
        return pa.int64()
    return kind

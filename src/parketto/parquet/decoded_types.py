"""Decoded types, in which rows are processed: dictionaries as their values, views as large strings or binary.

Arrow cannot reorder views. It writes an existing dictionary as a whole into every row group, or gives up on it
where the next file has a different one. Plain values get a new dictionary when they are written. The Parquet types
are the same either way. The file's own schema entry is kept verbatim and still names the original type: readers
see no difference.
"""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from parketto.errors import IncompatibleTypes
from parketto.parquet.exchange_types import cast_back
from parketto.parquet.promotion import promoted
from parketto.parquet.variants import cast, has_variants

_MAX_DIGITS = 76  # of a decimal

_PLAIN = (
    pat.is_boolean,
    pat.is_integer,
    pat.is_float32,
    pat.is_float64,
    pat.is_string,
    pat.is_large_string,
    pat.is_binary,
    pat.is_large_binary,
    pat.is_date32,
)


def is_plain(kind: pa.DataType) -> bool:
    """Whether all libraries have a type, with the same meaning."""
    return any(test(kind) for test in _PLAIN)


def decoded_schema(schema: pa.Schema) -> pa.Schema:
    """The schema in which rows are processed.

    >>> decoded_schema(pa.schema({"a": pa.dictionary(pa.int8(), pa.string()), "b": pa.int64()})).types
    [DataType(string), DataType(int64)]
    """
    fields = [_decoded_field(field) for field in schema]
    return pa.schema(fields, metadata=schema.metadata)


def recast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The same rows cast to the decoded schema, or back to the original one."""
    columns = [_cast(column, kind) for column, kind in zip(batch.columns, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def cast_rows(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows from outside cast to a schema, by column name; columns that they lack are NULL.

    Values that do not fit raise an error that names the column.
    """
    if batch.schema.names == schema.names:
        columns = [cast_column(column, item) for column, item in zip(batch.columns, schema, strict=True)]
    else:
        given = set(batch.schema.names)
        columns = [
            cast_column(batch.column(item.name), item)
            if item.name in given
            else pa.nulls(batch.num_rows, item.type)
            for item in schema
        ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def cast_column(column: pa.Array, field: pa.Field) -> pa.Array:
    """A column cast to the type of a field, without loss."""
    try:
        return _cast(column, field.type)
    except pa.ArrowInvalid as error:
        raise IncompatibleTypes(
            f"column {field.name!r} has values of type {column.type} that {field.type} cannot hold without loss: "
            f"{error}. Round or cast them first; nothing was changed"
        ) from error


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    if pat.is_dictionary(kind):
        return column.cast(kind.value_type).dictionary_encode().cast(kind)
    if pat.is_floating(column.type) and pat.is_floating(kind):
        return _cast_float(column, kind)
    if pat.is_struct(kind) and pat.is_struct(column.type) and _field_names(column.type) != _field_names(kind):
        return promoted(column, kind)
    if has_variants(column.type, kind) or not _refuses_nulls(column.type, kind):
        return cast(column, kind)
    # Arrow casts lists without checking their NULLs, and does not cast structs at all.
    if has_refused_nulls(column, kind):
        raise pa.ArrowInvalid("there are NULLs in a nested field that is declared not null")
    return cast_back(column, kind)


def _cast_float(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Floats in another width. Arrow rounds them silently."""
    found = column.cast(kind)
    if kind.bit_width < column.type.bit_width:
        changed = pc.and_(pc.not_equal(found.cast(column.type), column), pc.equal(column, column))
        if pc.any(changed).as_py():
            example = column.filter(changed)[0].as_py()
            raise pa.ArrowInvalid(f"{example!r} would be rounded")
    return found


def exact_values(column: pa.Array, field: pa.Field) -> tuple[pa.Array, pa.Array]:
    """A column cast to the type of a field, and which of its values that type holds exactly, or are NULL.

    >>> exact_values(pa.array([1, 2**32, None]), pa.field("n", pa.int32()))[1].to_pylist()
    [True, False, True]
    >>> prices = pa.array([Decimal("999.990"), Decimal("1000.000")])
    >>> exact_values(prices, pa.field("price", pa.decimal128(5, 2)))[1].to_pylist()
    [True, False]
    """
    if column.type == field.type or not all(map(_casts_by_value, (column.type, field.type))):
        return cast_column(column, field), pa.repeat(True, len(column))
    found = column.cast(field.type, safe=False)
    same = pc.equal(found.cast(column.type, safe=False), column)
    # Values that overflow may come back as they were: -1 is the largest unsigned integer.
    kinds = [pat.is_floating(each.type) for each in (column, found)]
    if all(kinds):
        same = pc.or_(same, pc.is_nan(column))
    elif any(kinds):
        floats, integers = (column, found) if kinds[0] else (found, column)
        limits = np.iinfo(integers.type.to_pandas_dtype())
        above = pc.greater_equal(floats, float(limits.min))
        same = pc.and_(same, pc.and_(above, pc.less(floats, float(int(limits.max) + 1))))
    elif pat.is_integer(column.type):
        below = [pc.less(each, pa.scalar(0, each.type)) for each in (column, found)]
        same = pc.and_(same, pc.equal(*below))
    if pat.is_decimal(field.type) and field.type.precision < _MAX_DIGITS:  # Arrow keeps values with more digits
        kind = pa.decimal256(_MAX_DIGITS, max(field.type.scale, 0))
        limit = pa.scalar(Decimal(10) ** (field.type.precision - field.type.scale), kind)
        same = pc.and_(same, pc.less(pc.abs(found.cast(kind)), limit))
    return found, same.fill_null(True)


def _casts_by_value(kind: pa.DataType) -> bool:
    """Whether Arrow casts and compares all values of a type, also those that do not fit another one."""
    return bool(
        pat.is_integer(kind)
        or pat.is_float32(kind)
        or pat.is_float64(kind)
        or pat.is_decimal(kind)
        or (pat.is_temporal(kind) and not pat.is_interval(kind))
    )


def _field_names(kind: pa.DataType) -> list[str]:
    return [item.name for item in kind.fields]


def _refuses_nulls(source: pa.DataType, kind: pa.DataType) -> bool:
    """Whether nested fields are not nullable in a type but nullable in a source type of the same shape."""
    if not pat.is_nested(kind) or source.num_fields != kind.num_fields:
        return False
    pairs = [(source.field(at), kind.field(at)) for at in range(kind.num_fields)]
    return any(
        (mine.nullable and not other.nullable) or _refuses_nulls(mine.type, other.type) for mine, other in pairs
    )


def has_refused_nulls(column: pa.Array, kind: pa.DataType) -> bool:
    """Whether nested fields that are not nullable in a type of the same shape have NULLs."""
    if not pat.is_nested(kind):
        return False
    column = column.drop_null()
    if pat.is_struct(kind):
        children = [column.field(at) for at in range(kind.num_fields)]
        fields = [kind.field(at) for at in range(kind.num_fields)]
    elif pat.is_map(kind):
        entries = column.cast(pa.list_(pa.struct([column.type.key_field, column.type.item_field]))).flatten()
        children, fields = [entries.field(0), entries.field(1)], [kind.key_field, kind.item_field]
    else:
        children, fields = [column.flatten()], [kind.value_field]
    return any(
        (child.null_count and not field.nullable) or has_refused_nulls(child, field.type)
        for child, field in zip(children, fields, strict=True)
    )


def _decoded_field(field: pa.Field) -> pa.Field:
    return field.with_type(decoded_type(field.type))


def decoded_type(kind: pa.DataType) -> pa.DataType:
    """The type in which values of a type are processed."""
    if pat.is_dictionary(kind):
        return decoded_type(kind.value_type)
    if pat.is_string_view(kind):
        return pa.large_string()
    if pat.is_binary_view(kind):
        return pa.large_binary()
    if pat.is_struct(kind):
        return pa.struct([_decoded_field(kind.field(index)) for index in range(kind.num_fields)])
    if pat.is_map(kind):
        return pa.map_(_decoded_field(kind.key_field), _decoded_field(kind.item_field), kind.keys_sorted)
    if pat.is_fixed_size_list(kind):
        return pa.list_(_decoded_field(kind.value_field), kind.list_size)
    if pat.is_list(kind):
        return pa.list_(_decoded_field(kind.value_field))
    if pat.is_large_list(kind):
        return pa.large_list(_decoded_field(kind.value_field))
    return kind

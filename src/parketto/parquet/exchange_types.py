"""Exchange types: types that every engine has, for rows in an engine's own joins and sorts.

Columns are named by position, so that no column name reaches a parser. Dates and times become integers: engines
would convert them to a time zone or to microseconds. The order of values is kept, and they are restored exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from parketto.parquet.file_info import FileInfo

#: Computes extra columns from a file, its position, the row number of a batch's first row, and the batch.
ExtraColumns = Callable[[Any, int, int, pa.RecordBatch], dict[str, pa.Array]]

_PLAIN = (
    pat.is_boolean,
    pat.is_signed_integer,
    pat.is_float32,
    pat.is_float64,
    pat.is_string,
    pat.is_binary,
)
_MAX_PRECISION = 38  # digits; wider decimals are exchanged as strings


def exchange_type(kind: pa.DataType) -> pa.DataType:
    """The type in which engines get values of a type.

    >>> exchange_type(pa.uint64()), exchange_type(pa.timestamp("ns", "UTC"))
    (Decimal128Type(decimal128(20, 0)), DataType(int64))
    """
    if isinstance(kind, pa.BaseExtensionType):
        return exchange_type(kind.storage_type)
    if any(test(kind) for test in _PLAIN):
        return kind
    if pat.is_unsigned_integer(kind):
        wider = {8: pa.int16(), 16: pa.int32(), 32: pa.int64()}
        return wider.get(kind.bit_width, pa.decimal128(20, 0))
    if pat.is_temporal(kind):
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    if pat.is_decimal(kind):
        holdable = kind.precision <= _MAX_PRECISION and 0 <= kind.scale <= kind.precision
        return pa.decimal128(kind.precision, kind.scale) if holdable else pa.string()
    if pat.is_float16(kind):
        return pa.float32()
    if pat.is_large_string(kind):
        return pa.string()
    if pat.is_large_binary(kind) or pat.is_fixed_size_binary(kind):
        return pa.binary()
    if pat.is_null(kind):
        return pa.bool_()
    return _nested_type(kind)


def _nested_type(kind: pa.DataType) -> pa.DataType:
    if pat.is_struct(kind):
        return pa.struct(
            [pa.field(kind.field(at).name, exchange_type(kind.field(at).type)) for at in range(kind.num_fields)]
        )
    if pat.is_map(kind):
        return pa.map_(exchange_type(kind.key_type), exchange_type(kind.item_type))
    if pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind):
        return pa.list_(exchange_type(kind.value_type))
    raise TypeError(f"values of type {kind} cannot be exchanged with an engine")


def exchange_schema(schema: pa.Schema) -> pa.Schema:
    """The schema of exchanged rows, with columns named by position."""
    return pa.schema(pa.field(exchange_name(at), exchange_type(kind)) for at, kind in enumerate(schema.types))


def exchange_name(position: int) -> str:
    """The name of a column in exchanged rows."""
    return f"c{position}"


def keeps_order(kind: pa.DataType) -> bool:
    """Whether exchanged values sort like the original ones."""
    return not (pat.is_decimal(kind) and pat.is_string(exchange_type(kind)))


def to_exchange(batch: pa.RecordBatch, exchanged: pa.Schema) -> pa.RecordBatch:
    """Rows cast to exchange types."""
    columns = [_cast(column, kind) for column, kind in zip(batch.columns, exchanged.types, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=exchanged)


def from_exchange(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows cast back to their own types."""
    columns = [cast_back(column, kind) for column, kind in zip(batch.columns, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def to_exchange_with(
    batches: Iterable[pa.RecordBatch],
    exchanged: pa.Schema,
    file: FileInfo | None,
    position: int,
    added: ExtraColumns | None,
) -> Iterator[pa.RecordBatch]:
    """The rows of a file in exchange types, followed by the columns that `added` computes."""
    row = 0
    for batch in batches:
        width = batch.num_columns
        packed = to_exchange(batch, pa.schema(list(exchanged)[:width]))
        if added is not None:
            more = added(file, position, row, batch)
            columns = [*packed.columns, *(more[name] for name in exchanged.names[width:])]
            packed = pa.RecordBatch.from_arrays(columns, schema=exchanged)
        row += batch.num_rows
        yield packed


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    if pat.is_null(kind) or pat.is_null(column.type):
        return pa.nulls(len(column), kind)
    return column.cast(kind)


def cast_back(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column cast back to its own type.

    Engines have no non-nullable nested fields: where a whole struct is NULL, so are its fields. Arrow does not
    cast these back, nor anything to its null type, so such arrays are rebuilt from their buffers.
    """
    if _has_geometries(column.type, kind):
        column = _bare_geometries(pa.concat_arrays([column, pa.array([], column.type)]), kind)
    relaxed_type = _relaxed(kind)
    if relaxed_type == kind:
        return _cast(column, kind)
    # Concatenated with an empty one, an array has no offset: then its children have matching lengths.
    return _retyped(pa.concat_arrays([_cast(column, relaxed_type), pa.array([], relaxed_type)]), kind)


def _relaxed(kind: pa.DataType) -> pa.DataType:
    """A nested type with all fields nullable, and none of the null type."""
    if isinstance(kind, pa.BaseExtensionType):
        return kind
    if pat.is_struct(kind):
        return pa.struct([_relaxed_field(kind.field(at)) for at in range(kind.num_fields)])
    if pat.is_map(kind):
        return pa.map_(
            kind.key_field.with_type(_relaxed(kind.key_type)), _relaxed_field(kind.item_field), kind.keys_sorted
        )
    if pat.is_fixed_size_list(kind):
        return pa.list_(_relaxed_field(kind.value_field), kind.list_size)
    if pat.is_list(kind):
        return pa.list_(_relaxed_field(kind.value_field))
    return pa.large_list(_relaxed_field(kind.value_field)) if pat.is_large_list(kind) else kind


def _relaxed_field(field: pa.Field) -> pa.Field:
    kind = pa.bool_() if pat.is_null(field.type) else _relaxed(field.type)
    return field.with_type(kind).with_nullable(True)


def _retyped(array: pa.Array, kind: pa.DataType, *, nullable: bool = True) -> pa.Array:
    """An array without an offset in the type that was relaxed to its own: the same buffers, different fields."""
    if pat.is_null(kind):
        return pa.nulls(len(array))
    if array.type == kind and (nullable or not array.null_count):
        return array
    own, children = _parts(array)
    buffers = array.buffers()[:own]
    fields = [kind.field(at) for at in range(len(children))]
    return pa.Array.from_buffers(
        kind,
        len(array),
        # Values below a NULL are ignored, and Arrow rejects NULLs in non-nullable fields.
        buffers if nullable else [None, *buffers[1:]],
        array.null_count if nullable else 0,
        children=[
            _retyped(child, field.type, nullable=field.nullable)
            for child, field in zip(children, fields, strict=True)
        ],
    )


def _is_geometry(found: pa.DataType, kind: pa.DataType) -> bool:
    """Whether values are geometries as Spark returns them: each with its spatial reference id."""
    return bool(pat.is_struct(found) and pat.is_binary(kind) and found.get_field_index("wkb") >= 0)


def _has_geometries(found: pa.DataType, kind: pa.DataType) -> bool:
    if _is_geometry(found, kind):
        return True
    if not pat.is_nested(found) or found.num_fields != kind.num_fields:
        return False
    return any(_has_geometries(found.field(at).type, kind.field(at).type) for at in range(found.num_fields))


def _bare_geometries(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """An array without an offset, its geometries as plain WKB: the column declares the reference system."""
    if _is_geometry(array.type, kind):
        return pc.struct_field(array, "wkb")
    if not _has_geometries(array.type, kind):
        return array
    own, children = _parts(array)
    bare = [_bare_geometries(child, kind.field(at).type) for at, child in enumerate(children)]
    return pa.Array.from_buffers(
        _with_children(array.type, [child.type for child in bare]),
        len(array),
        array.buffers()[:own],
        array.null_count,
        children=bare,
    )


def _with_children(kind: pa.DataType, children: list[pa.DataType]) -> pa.DataType:
    fields = [kind.field(at).with_type(child) for at, child in enumerate(children)]
    if pat.is_struct(kind):
        return pa.struct(fields)
    if pat.is_map(kind):
        return pa.map_(*(children[0].field(at) for at in range(2)), kind.keys_sorted)
    return pa.list_(fields[0])


def _parts(array: pa.Array) -> tuple[int, list[pa.Array]]:
    """The number of an array's own buffers, and its children."""
    kind = array.type
    if pat.is_struct(kind):
        return 1, [array.field(at) for at in range(kind.num_fields)]
    if pat.is_map(kind):
        entries = [kind.key_field, kind.item_field]
        return 2, [pa.StructArray.from_arrays([array.keys, array.items], fields=entries)]
    if pat.is_fixed_size_list(kind):
        return 1, [array.values]
    if pat.is_list(kind) or pat.is_large_list(kind):
        return 2, [array.values]
    return len(array.buffers()), []

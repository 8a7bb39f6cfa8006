"""Rows on their way through Spark: every Arrow type travels in one that Spark has, and comes back as it was.

Names travel as positions, so that no column name ever meets Spark's parser. Dates and times travel as integers:
Spark would bend them to its session's time zone and to microseconds. The order of values is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pat

from parketto.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_PLAIN = (
    pat.is_boolean,
    pat.is_signed_integer,
    pat.is_float32,
    pat.is_float64,
    pat.is_string,
    pat.is_binary,
)
_MAX_PRECISION = 38
_FRAME_TYPES = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "char": pa.string(),
    "varchar": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "time": pa.time64("ns"),
    "daytimeinterval": pa.duration("us"),
    "void": pa.null(),
}


def travel_type(kind: pa.DataType) -> pa.DataType:
    """The type in which values travel.

    >>> travel_type(pa.uint64()), travel_type(pa.timestamp("ns", "UTC"))
    (Decimal128Type(decimal128(20, 0)), DataType(int64))
    """
    if isinstance(kind, pa.BaseExtensionType):
        return travel_type(kind.storage_type)
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
            [pa.field(kind.field(at).name, travel_type(kind.field(at).type)) for at in range(kind.num_fields)]
        )
    if pat.is_map(kind):
        return pa.map_(travel_type(kind.key_type), travel_type(kind.item_type))
    if pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind):
        return pa.list_(travel_type(kind.value_type))
    raise TypeError(f"values of type {kind} cannot travel through Spark")


def travel_schema(schema: pa.Schema) -> pa.Schema:
    """The schema of rows on their way, their columns named by position."""
    return pa.schema(pa.field(travel_name(at), travel_type(kind)) for at, kind in enumerate(schema.types))


def travel_name(position: int) -> str:
    """What a column is called on the way."""
    return f"c{position}"


def keeps_order(kind: pa.DataType) -> bool:
    """Whether Spark orders travelling values as the values themselves are ordered."""
    return not (pat.is_decimal(kind) and pat.is_string(travel_type(kind)))


def pack(batch: pa.RecordBatch, travelling: pa.Schema) -> pa.RecordBatch:
    """Rows in the types in which they travel."""
    columns = [_cast(column, kind) for column, kind in zip(batch.columns, travelling.types, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=travelling)


def unpack(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows as they were."""
    columns = [_cast(column, kind) for column, kind in zip(batch.columns, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    if pat.is_null(kind) or pat.is_null(column.type):
        return pa.nulls(len(column), kind)
    return column.cast(kind)


def spark_schema(schema: pa.Schema) -> StructType:
    """A travelling schema in Spark's words."""
    from pyspark.sql import types as T  # noqa: N812 - the customary name

    return T.StructType([T.StructField(item.name, frame_type(item.type)) for item in schema])


def frame_type(kind: pa.DataType) -> DataType:
    """Spark's type for an Arrow type that it has."""
    from pyspark.sql import types as T  # noqa: N812

    simple = {
        pa.bool_(): T.BooleanType(),
        pa.int8(): T.ByteType(),
        pa.int16(): T.ShortType(),
        pa.int32(): T.IntegerType(),
        pa.int64(): T.LongType(),
        pa.float32(): T.FloatType(),
        pa.float64(): T.DoubleType(),
        pa.string(): T.StringType(),
        pa.binary(): T.BinaryType(),
        pa.date32(): T.DateType(),
        pa.timestamp("us", "UTC"): T.TimestampType(),
        pa.timestamp("us"): T.TimestampNTZType(),
        pa.duration("us"): T.DayTimeIntervalType(),
        pa.null(): T.NullType(),
    }
    if kind in simple:
        return simple[kind]
    if pat.is_decimal(kind):
        return T.DecimalType(kind.precision, kind.scale)
    if pat.is_map(kind):
        return T.MapType(frame_type(kind.key_type), frame_type(kind.item_type))
    if pat.is_struct(kind):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        return T.StructType([T.StructField(item.name, frame_type(item.type)) for item in fields])
    return T.ArrayType(frame_type(kind.value_type))


def frame_schema(frame: Any) -> pa.Schema:
    """The exact Arrow schema of a Spark frame's rows, nullability included."""
    fields = []
    for item in frame.schema.fields:
        try:
            fields.append(pa.field(item.name, _arrow_type(item.dataType), item.nullable))
        except KeyError as error:
            raise InvalidArgument(
                f"column {item.name!r} has the type {item.dataType.simpleString()}, which cannot be written "
                "to Parquet as it is; cast it first"
            ) from error
    return pa.schema(fields)


def _arrow_type(kind: Any) -> pa.DataType:
    """The Arrow type of a Spark type; KeyError for those that have none."""
    match kind.typeName():
        case "decimal":
            return pa.decimal128(kind.precision, kind.scale)
        case "array":
            return pa.list_(pa.field("element", _arrow_type(kind.elementType), kind.containsNull))
        case "map":
            value = pa.field("value", _arrow_type(kind.valueType), kind.valueContainsNull)
            return pa.map_(_arrow_type(kind.keyType), value)
        case "struct":
            return pa.struct(
                [pa.field(item.name, _arrow_type(item.dataType), item.nullable) for item in kind.fields]
            )
        case name:
            return _FRAME_TYPES[name.partition("(")[0]]

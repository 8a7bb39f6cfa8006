"""Spark's types for Arrow's, and the other way round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pat

from parketto.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

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

"""Conversion between Spark and Arrow types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pat

from parketto.errors import InvalidArgument
from parketto.parquet.spark_schema import SPARK_SCHEMA_KEY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
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
    "daytimeinterval": pa.int64(),
    "yearmonthinterval": pa.int32(),
    "variant": pa.struct([pa.field(part, pa.binary(), nullable=False) for part in ("value", "metadata")]),
    "geometry": pa.binary(),
    "geography": pa.binary(),
    "void": pa.null(),
}
_MICROSECOND_DIGITS = 6
_ANY_SRID = -1


def spark_schema(schema: pa.Schema) -> StructType:
    """The Spark schema of a schema of exchange types."""
    from pyspark.sql import types as T  # noqa: N812 - the customary name

    return T.StructType([T.StructField(item.name, frame_type(item.type)) for item in schema])


def frame_type(kind: pa.DataType) -> DataType:
    """The Spark type of an Arrow type that Spark supports."""
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


def stored_schema(schema: StructType) -> pa.Schema:
    """The exact Arrow schema in which Parquet stores rows of a Spark schema; its metadata has Spark's own one."""
    fields = []
    for item in schema.fields:
        try:
            fields.append(_arrow_field(item.name, item.dataType, nullable=item.nullable))
        except _CannotStoreError as error:
            raise InvalidArgument(
                f"column {item.name!r} has the type {item.dataType.simpleString()}, and {error}. "
                "Nothing was changed"
            ) from None
    return pa.schema(fields, {SPARK_SCHEMA_KEY: schema.json()})


def stored_columns(frame: DataFrame) -> DataFrame:
    """A DataFrame with year-month intervals as integers, because Arrow has no type for them."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql import types as T  # noqa: N812

    columns = []
    for item in frame.schema.fields:
        column, kind = F.col(item.name), item.dataType
        if (numbers := _replaced(kind, T.IntegerType())) != kind:
            # In months first: an interval of whole years would become a number of years.
            column = column.cast(_replaced(kind, T.YearMonthIntervalType(1, 1))).cast(numbers).alias(item.name)
        columns.append(column)
    return frame.select(*columns)


def _replaced(kind: DataType, months: DataType) -> DataType:
    """A type in which `months` replaces every year-month interval."""
    from pyspark.sql import types as T  # noqa: N812

    match kind:
        case T.YearMonthIntervalType():
            return months
        case T.ArrayType():
            return T.ArrayType(_replaced(kind.elementType, months), kind.containsNull)
        case T.MapType():
            key, value = _replaced(kind.keyType, months), _replaced(kind.valueType, months)
            return T.MapType(key, value, kind.valueContainsNull)
        case T.StructType():
            inside = ((item, _replaced(item.dataType, months)) for item in kind.fields)
            return T.StructType([T.StructField(i.name, found, i.nullable, i.metadata) for i, found in inside])
    return kind


class _CannotStoreError(Exception):
    """Why Parquet cannot store values of a Spark type."""


def _arrow_field(name: str, kind: Any, *, nullable: bool) -> pa.Field:
    found = _arrow_type(kind)
    return pa.field(name, found, nullable or pat.is_null(found))  # a void column is always NULL


def _arrow_type(kind: Any) -> pa.DataType:
    """The Arrow type of what Parquet stores for a Spark type."""
    if hasattr(kind, "sqlType"):  # of a user-defined type
        return _arrow_type(kind.sqlType())
    match kind.typeName():
        case "decimal":
            return pa.decimal128(kind.precision, kind.scale)
        case "time":
            return pa.time64("us" if kind.precision <= _MICROSECOND_DIGITS else "ns")
        case "array":
            return pa.list_(_arrow_field("element", kind.elementType, nullable=kind.containsNull))
        case "map":
            value = _arrow_field("value", kind.valueType, nullable=kind.valueContainsNull)
            if pat.is_null(key := _arrow_type(kind.keyType)):
                raise _CannotStoreError(
                    "the keys of a map cannot be void; cast the map to the type that it should have"
                )
            return pa.map_(key, value)
        case "struct" if not kind.fields:
            raise _CannotStoreError("Parquet has no struct without fields; drop it, or give it a field")
        case "struct":
            return pa.struct(
                [_arrow_field(item.name, item.dataType, nullable=item.nullable) for item in kind.fields]
            )
        case "geometry" | "geography" if kind.srid == _ANY_SRID:
            raise _CannotStoreError(
                "Parquet has one coordinate reference system per column; set it, as with st_setsrid(…, 4326)"
            )
        case "interval":
            raise _CannotStoreError(
                "neither Spark nor Arrow writes calendar intervals to Parquet; use make_ym_interval or "
                "make_dt_interval instead"
            )
        case name:
            if (found := _FRAME_TYPES.get(name.partition("(")[0])) is None:
                raise _CannotStoreError("Parketto cannot write it to Parquet unchanged; cast it first")
            return found

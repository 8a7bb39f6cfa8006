"""Fits Spark's own schema in the metadata to the columns of a new file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from parketto.parquet.spark_schema import SPARK_SCHEMA_KEY, needs_spark_schema, noted_fields

_SIMPLE = {
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.uint8(): "short",
    pa.uint16(): "integer",
    pa.uint32(): "long",
    pa.uint64(): "decimal(20,0)",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.date64(): "date",
    pa.null(): "void",
}
_VARIANT_PARTS = {"metadata", "value"}


def with_fitted_spark_schema(schema: pa.Schema) -> pa.Schema:
    """A schema whose metadata has a Spark schema of exactly its columns, with their types.

    Columns differ where only the path contains partition columns, or where a function changes columns. A schema
    that Spark does not need is dropped.

    >>> fields = b'{"fields":[{"name":"a","type":"interval year"},{"name":"b","type":"date"}]}'
    >>> schema = pa.schema({"a": pa.int32(), "c": pa.string()}, {SPARK_SCHEMA_KEY: fields})
    >>> with_fitted_spark_schema(schema).metadata[SPARK_SCHEMA_KEY].decode()
    '{"type":"struct","fields":[{"name":"a","type":"interval year"},{"name":"c","type":"string","nullable":true,\
"metadata":{}}]}'
    """
    metadata = schema.metadata or {}
    if SPARK_SCHEMA_KEY not in metadata:
        return schema
    known = noted_fields(metadata)
    fields = [_fitting(item, known.get(item.name)) for item in schema]
    others = {entry: value for entry, value in metadata.items() if entry != SPARK_SCHEMA_KEY}
    if None in fields or not any(needs_spark_schema(field) for field in fields if field is not None):
        return schema.with_metadata(others or None)
    text = json.dumps({"type": "struct", "fields": fields}, separators=(",", ":"), ensure_ascii=False)
    return schema.with_metadata({**others, SPARK_SCHEMA_KEY: text.encode()})


def _fitting(item: pa.Field, known: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    if known is not None and _is_stored_as(known["type"], item.type):
        return known
    kind = _spark_type(item.type)
    return None if kind is None else {"name": item.name, "type": kind, "nullable": item.nullable, "metadata": {}}


def _is_stored_as(given: Any, kind: pa.DataType) -> bool:
    """Whether a column of an Arrow type can contain values of a Spark type."""
    if isinstance(kind, pa.BaseExtensionType):
        return _is_stored_as(given, kind.storage_type)
    if isinstance(given, str):
        return _is_simple_stored_as(given, kind)
    match given["type"]:
        case "udt":
            return _is_stored_as(given["sqlType"], kind)
        case "array":
            return _is_list(kind) and _is_stored_as(given["elementType"], kind.value_type)
        case "map":
            return bool(
                pat.is_map(kind)
                and _is_stored_as(given["keyType"], kind.key_type)
                and _is_stored_as(given["valueType"], kind.item_type)
            )
        case _:
            return bool(
                pat.is_struct(kind)
                and [item["name"] for item in given["fields"]] == [item.name for item in kind.fields]
                and all(
                    map(_is_stored_as, (item["type"] for item in given["fields"]), (i.type for i in kind.fields))
                )
            )


def _is_simple_stored_as(given: str, kind: pa.DataType) -> bool:
    if pat.is_dictionary(kind):
        return _is_simple_stored_as(given, kind.value_type)
    word = given.partition("(")[0]
    if word.startswith(("interval year", "interval month")):
        return bool(pat.is_int32(kind))
    if word.startswith("interval"):
        return bool(pat.is_int64(kind) or pat.is_duration(kind))
    match word:
        case "variant":
            return bool(pat.is_struct(kind)) and {item.name for item in kind.fields} >= _VARIANT_PARTS
        case "geometry" | "geography":
            return bool(_spark_type(kind) == "binary")
        case "char" | "varchar":
            return bool(_spark_type(kind) == "string")
        case "time":
            return bool(pat.is_time(kind))
        case "timestamp" | "timestamp_ntz":
            return bool(pat.is_timestamp(kind))  # INT96 timestamps are instants, but zoneless in Arrow
    return bool(given == _spark_type(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind))


def _spark_type(kind: pa.DataType) -> Any:
    """The Spark type for an Arrow type, as in Spark's JSON schema; None if there is none."""
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if pat.is_string(kind) or pat.is_large_string(kind) or pat.is_string_view(kind):
        return "string"
    if (
        pat.is_binary(kind)
        or pat.is_large_binary(kind)
        or pat.is_binary_view(kind)
        or pat.is_fixed_size_binary(kind)
    ):
        return "binary"
    if pat.is_dictionary(kind):
        return _spark_type(kind.value_type)
    if pat.is_timestamp(kind):
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    if pat.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})" if 0 <= kind.scale <= kind.precision <= 38 else None
    if _is_list(kind):
        element = _spark_type(kind.value_type)
        return element and {"type": "array", "elementType": element, "containsNull": kind.value_field.nullable}
    if pat.is_map(kind):
        key, value = _spark_type(kind.key_type), _spark_type(kind.item_type)
        nullable = kind.item_field.nullable
        return key and value and {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": nullable}
    if pat.is_struct(kind):
        fields = [_fitting(item, None) for item in kind.fields]
        return None if None in fields else {"type": "struct", "fields": fields}
    return None

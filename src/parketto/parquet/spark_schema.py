"""Spark's own schema of a file, which it stores in the key-value metadata of the footer.

Parquet has no types for Spark's intervals, variants, collations and user-defined types. Spark stores them as other
types, and restores them from this schema; without it, an interval becomes a number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from parketto.parquet.annotations import Annotation, geography, geometry, variant

#: The key in a footer's key-value metadata.
SPARK_SCHEMA_KEY = b"org.apache.spark.sql.parquet.row.metadata"

# Types that Spark infers from the Parquet schema.
_PLAIN = re.compile(
    r"boolean|byte|short|integer|long|float|double|string|binary|date|timestamp|timestamp_ntz|decimal\(\d+,\d+\)"
)
# Types whose values are those of the Parquet type, even if Spark's type is more specific.
_NAMED = re.compile(rf"{_PLAIN.pattern}|void|time\(\d\)|(?:var)?char\(\d+\)")
_COLLATIONS = "__COLLATIONS"
_CHAR_TYPE = "__CHAR_VARCHAR_TYPE_STRING"
_GEOMETRY = re.compile(r"geometry\((.+)\)")
_GEOGRAPHY = re.compile(r"geography\((.+), (\w+)\)")


def noted_fields(notes: Mapping[bytes, bytes | None] | None) -> dict[str, dict[str, Any]]:
    """The columns of Spark's schema, as in its JSON; empty if there is no such schema.

    >>> list(noted_fields({SPARK_SCHEMA_KEY: b'{"fields":[{"name":"a","type":"interval day"}]}'}))
    ['a']
    """
    return _parsed((notes or {}).get(SPARK_SCHEMA_KEY) or b"")


@lru_cache(maxsize=64)
def _parsed(text: bytes) -> dict[str, dict[str, Any]]:
    try:
        fields = json.loads(text)["fields"]
        return {field["name"]: field for field in fields}
    except (ValueError, KeyError, TypeError):  # Spark ignores an invalid schema, too
        return {}


def merged_notes(notes: Sequence[Mapping[bytes, bytes | None] | None]) -> dict[bytes, bytes]:
    """Metadata with one Spark schema of the columns of several; the first one of a column. Empty without any.

    >>> fields = [b'{"fields":[{"name":"a","type":"interval day"}]}', b'{"fields":[{"name":"b","type":"long"}]}']
    >>> merged_notes([{SPARK_SCHEMA_KEY: each} for each in fields])[SPARK_SCHEMA_KEY].decode()
    '{"type":"struct","fields":[{"name":"a","type":"interval day"},{"name":"b","type":"long"}]}'
    """
    fields: dict[str, Any] = {}
    for each in notes:
        for name, field in noted_fields(each).items():
            fields.setdefault(name, field)
    return _noted(list(fields.values())) if fields else {}


def renamed_notes(notes: Mapping[bytes, bytes | None] | None, names: Mapping[str, str]) -> dict[bytes, bytes]:
    """Metadata with the same Spark schema under other names of columns, by their old names; empty without one."""
    fields = [{**field, "name": names.get(name, name)} for name, field in noted_fields(notes).items()]
    return _noted(fields) if fields else {}


def _noted(fields: Sequence[Mapping[str, Any]]) -> dict[bytes, bytes]:
    text = json.dumps({"type": "struct", "fields": list(fields)}, separators=(",", ":"), ensure_ascii=False)
    return {SPARK_SCHEMA_KEY: text.encode()}


def spark_only_types(notes: Mapping[bytes, bytes | None] | None) -> dict[str, str]:
    """The columns that Spark would read with another type without its own schema, and their Spark types.

    >>> fields = b'{"fields":[{"name":"a","type":"interval day"},{"name":"b","type":"long"}]}'
    >>> spark_only_types({SPARK_SCHEMA_KEY: fields})
    {'a': 'interval day'}
    """
    text = (notes or {}).get(SPARK_SCHEMA_KEY)
    return _only_in_spark(text) if text else {}


@lru_cache(maxsize=64)
def _only_in_spark(text: bytes) -> dict[str, str]:
    return {name: type_name(field) for name, field in _parsed(text).items() if _is_only_in_spark(field)}


def unnamed_types(notes: Mapping[bytes, bytes | None] | None) -> dict[str, str]:
    """The columns whose values mean something else than their Parquet types, and their Spark types.

    >>> fields = b'{"fields":[{"name":"a","type":"interval day"},{"name":"b","type":"void"}]}'
    >>> unnamed_types({SPARK_SCHEMA_KEY: fields})
    {'a': 'interval day'}
    """
    found = {name: field["type"] for name, field in noted_fields(notes).items()}
    return {name: _short(kind) for name, kind in found.items() if _is_special(kind, _NAMED)}


def needs_spark_schema(field: Mapping[str, Any]) -> bool:
    """Whether Spark would lose information about a column without its own schema."""
    return _is_only_in_spark(field) or any(each.get("metadata") for each in _nested_fields(field))


def type_name(field: Mapping[str, Any]) -> str:
    """The short name of a column's type.

    >>> type_name({"type": {"type": "array", "elementType": "interval day"}})
    'array<interval day>'
    """
    collations = (field.get("metadata") or {}).get(_COLLATIONS)
    name = _short(field["type"])
    return f"{name} collate {', '.join(map(str, collations.values()))}" if collations else name


def _short(kind: Any) -> str:
    if isinstance(kind, str):
        return kind
    match kind.get("type"):
        case "array":
            return f"array<{_short(kind['elementType'])}>"
        case "map":
            return f"map<{_short(kind['keyType'])},{_short(kind['valueType'])}>"
        case "struct":
            inside = (f"{item['name']}:{type_name(item)}" for item in kind["fields"])
            return f"struct<{','.join(inside)}>"
        case _:
            return str(kind.get("pyClass") or kind.get("class"))


def spark_annotations(notes: Mapping[bytes, bytes | None] | None) -> tuple[Annotation, ...]:
    """The Parquet annotations that Spark writes for the columns of its schema."""
    found: list[Annotation] = []
    for name, field in noted_fields(notes).items():
        _annotate(field["type"], (name.encode(),), found)
    return tuple(found)


def _annotate(kind: Any, path: tuple[bytes, ...], found: list[Annotation]) -> None:
    if not isinstance(kind, str):
        for below, nested in _children(kind):
            _annotate(nested, (*path, *below), found)
    elif kind == "variant":
        found.append((path, variant()))
    elif parts := _GEOMETRY.fullmatch(kind):
        found.append((path, geometry(parts[1])))
    elif parts := _GEOGRAPHY.fullmatch(kind):
        found.append((path, geography(parts[1], parts[2])))


def _children(kind: Mapping[str, Any]) -> Iterator[tuple[tuple[bytes, ...], Any]]:
    """The child types of a type, with the names of their Parquet fields."""
    match kind.get("type"):
        case "array":
            yield (b"list", b"element"), kind["elementType"]
        case "map":
            yield (b"key_value", b"key"), kind["keyType"]
            yield (b"key_value", b"value"), kind["valueType"]
        case "struct":
            for item in kind["fields"]:
                yield (item["name"].encode(),), item["type"]
        case "udt":
            yield (), kind["sqlType"]


def _is_only_in_spark(field: Mapping[str, Any]) -> bool:
    marked = {_COLLATIONS, _CHAR_TYPE}
    return _is_special(field["type"]) or any(
        not marked.isdisjoint(each.get("metadata") or {}) for each in _nested_fields(field)
    )


def _is_special(kind: Any, known: re.Pattern[str] = _PLAIN) -> bool:
    if isinstance(kind, str):
        return known.fullmatch(kind) is None
    return kind.get("type") == "udt" or any(_is_special(nested, known) for _, nested in _children(kind))


def _nested_fields(field: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield field
    yield from _fields_inside(field["type"])


def _fields_inside(kind: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(kind, str):
        return
    if kind.get("type") == "struct":
        for item in kind["fields"]:
            yield from _nested_fields(item)
    else:
        for _, nested in _children(kind):
            yield from _fields_inside(nested)

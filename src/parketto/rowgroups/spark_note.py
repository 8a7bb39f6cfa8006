"""Spark's own description of a file's columns, which it keeps among the notes of the file's footer.

Parquet has no name for Spark's intervals, its variants and collations and the classes of user-defined types. Spark
stores them as something else and reads them by this description; whoever loses it turns an interval into a number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from parketto.rowgroups.annotations import Annotation, geography, geometry, variant

#: The entry of a footer's key-value metadata.
SPARK_NOTE = b"org.apache.spark.sql.parquet.row.metadata"

# Types that Spark finds by itself: Parquet says the same.
_PLAIN = re.compile(
    r"boolean|byte|short|integer|long|float|double|string|binary|date|timestamp|timestamp_ntz|decimal\(\d+,\d+\)"
)
# Types whose values are what Parquet says, even if Spark has more to say about them.
_NAMED = re.compile(rf"{_PLAIN.pattern}|void|time\(\d\)|(?:var)?char\(\d+\)")
_COLLATIONS = "__COLLATIONS"
_CHAR_TYPE = "__CHAR_VARCHAR_TYPE_STRING"
_GEOMETRY = re.compile(r"geometry\((.+)\)")
_GEOGRAPHY = re.compile(r"geography\((.+), (\w+)\)")


def noted_fields(notes: Mapping[bytes, bytes | None] | None) -> dict[str, dict[str, Any]]:
    """The columns that Spark's description names, in its own words; none if there is no description.

    >>> list(noted_fields({SPARK_NOTE: b'{"fields":[{"name":"a","type":"interval day"}]}'}))
    ['a']
    """
    return _parsed((notes or {}).get(SPARK_NOTE) or b"")


@lru_cache(maxsize=64)
def _parsed(note: bytes) -> dict[str, dict[str, Any]]:
    try:
        fields = json.loads(note)["fields"]
        return {field["name"]: field for field in fields}
    except (ValueError, KeyError, TypeError):  # Spark ignores what it cannot read, too
        return {}


def only_noted(notes: Mapping[bytes, bytes | None] | None) -> dict[str, str]:
    """The columns that Spark reads as something else without its description, and what they are.

    >>> only_noted({SPARK_NOTE: b'{"fields":[{"name":"a","type":"interval day"},{"name":"b","type":"long"}]}'})
    {'a': 'interval day'}
    """
    note = (notes or {}).get(SPARK_NOTE)
    return _only_noted(note) if note else {}


@lru_cache(maxsize=64)
def _only_noted(note: bytes) -> dict[str, str]:
    return {name: type_name(field) for name, field in _parsed(note).items() if _is_only_noted(field)}


def unnamed_types(notes: Mapping[bytes, bytes | None] | None) -> dict[str, str]:
    """The columns whose values are something else than what Parquet's own types say, and what they are.

    >>> unnamed_types({SPARK_NOTE: b'{"fields":[{"name":"a","type":"interval day"},{"name":"b","type":"void"}]}'})
    {'a': 'interval day'}
    """
    found = {name: field["type"] for name, field in noted_fields(notes).items()}
    return {name: _short(kind) for name, kind in found.items() if _is_special(kind, _NAMED)}


def needs_note(field: Mapping[str, Any]) -> bool:
    """Whether Spark would forget something about a column without its description."""
    return _is_only_noted(field) or any(each.get("metadata") for each in _nested_fields(field))


def type_name(field: Mapping[str, Any]) -> str:
    """The type of a column, in short.

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


def noted_annotations(notes: Mapping[bytes, bytes | None] | None) -> tuple[Annotation, ...]:
    """The annotations that Spark gives to columns which it describes so."""
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
    """The types inside of another one, and the names of the fields that Parquet has them in."""
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


def _is_only_noted(field: Mapping[str, Any]) -> bool:
    marked = {_COLLATIONS, _CHAR_TYPE}
    return _is_special(field["type"]) or any(
        not marked.isdisjoint(each.get("metadata") or {}) for each in _nested_fields(field)
    )


def _is_special(kind: Any, usual: re.Pattern[str] = _PLAIN) -> bool:
    if isinstance(kind, str):
        return usual.fullmatch(kind) is None
    return kind.get("type") == "udt" or any(_is_special(nested, usual) for _, nested in _children(kind))


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

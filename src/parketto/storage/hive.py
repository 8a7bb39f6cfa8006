"""Hive partition paths: the only place that encodes and decodes them.

A partition directory is `column=value`. Values are escaped as in Hive and Spark, so that no value leaves
its path segment: `/` and `=` are percent-encoded, NULL has a reserved name. Hive has no name for the empty
string; as in Spark, it is written to the default partition, while an existing `column=` reads as "".
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from urllib.parse import unquote

from parketto.errors import InvalidArgument

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
PartitionValues = tuple[tuple[str, str | None], ...]
PartitionFilter = str | Sequence[str] | Mapping[str, object] | None

_ESCAPED = {chr(code) for code in range(0x20)} | {"\x7f"} | set("\"#%'*/:=?\\{[]^")


def encode_segment(column: str, value: object) -> str:
    """The directory name of a partition value.

    >>> encode_segment("product", "x/y"), encode_segment("day", None), encode_segment("k", "..")
    ('product=x%2Fy', 'day=__HIVE_DEFAULT_PARTITION__', 'k=..')
    """
    if not column:
        raise InvalidArgument("a partition column needs a name")
    text = _text(value)
    return f"{_escape(column)}={_escape(text) if text else NULL_PARTITION}"


def decode_segment(segment: str) -> tuple[str, str | None] | None:
    """The column and value of a partition directory name, or None if it is an ordinary name.

    >>> decode_segment("product=x%2Fy"), decode_segment("a=b=c"), decode_segment("raw")
    (('product', 'x/y'), ('a', 'b=c'), None)
    """
    column, equals, value = segment.partition("=")
    if not equals or not column:
        return None
    return unquote(column), None if value == NULL_PARTITION else unquote(value)


def partition_values(relative_directory: str) -> PartitionValues:
    """The partition columns and values of a directory below the dataset."""
    decoded = (decode_segment(segment) for segment in relative_directory.split("/"))
    return tuple(pair for pair in decoded if pair is not None)


def is_data_path(relative_path: str) -> bool:
    """Whether a path below the dataset is a data file: `.parquet`, with no hidden path segment.

    Folders such as `_temporary` or `_delta_log` are not data. A partition folder whose column starts
    with an underscore (`_year=2024`) is, as in Spark.
    """
    *folders, name = relative_path.split("/")
    return (
        name.endswith(".parquet")
        and not name.startswith(("_", "."))
        and not any(folder.startswith(".") or (folder.startswith("_") and "=" not in folder) for folder in folders)
    )


def directory_matcher(partition_filter: PartitionFilter) -> Callable[[str], bool]:
    """A predicate on directories (relative to the dataset) for a `partition_filter`.

    A string names one or more whole segments (`"year=2025/day=1"`), matched in that order at any depth. A list
    of strings matches if any of them does. A mapping matches if all of its columns have the given value (or
    one of a list of values).
    """
    if partition_filter is None:
        return lambda _directory: True
    if isinstance(partition_filter, Mapping):
        wanted = {str(column): _alternatives(value) for column, value in partition_filter.items()}
        if not wanted:
            raise InvalidArgument("partition_filter is an empty mapping: name a column, or pass None")
        return lambda directory: _mapping_matches(wanted, dict(partition_values(directory)))
    given: object = partition_filter
    if not isinstance(given, Iterable) or isinstance(given, bytes):
        raise InvalidArgument(
            f"partition_filter must be a partition such as 'date=2025-11-04', a list of them, or a mapping of "
            f"columns to values, got {given!r}"
        )
    entries = [partition_filter] if isinstance(partition_filter, str) else list(partition_filter)
    paths = [_filter_segments(entry) for entry in entries]
    if not paths:
        raise InvalidArgument("partition_filter is an empty list: name a partition, or pass None")
    return lambda directory: any(_in_order(path, directory) for path in paths)


def folder_matcher(partition_filter: PartitionFilter) -> Callable[[str], bool]:
    """A predicate on folders (relative to the dataset): whether files below one may match a `partition_filter`.

    A folder that has another value of a named column rules out all that is below it.

    >>> may = folder_matcher({"year": 2025, "day": 1})
    >>> may("year=2025"), may("year=2024"), may("year=2025/day=2"), may("raw")
    (True, False, False, True)
    """
    if partition_filter is None:
        return lambda _folder: True
    if isinstance(partition_filter, Mapping):
        wanted = {str(column): _alternatives(value) for column, value in partition_filter.items()}
        return lambda folder: all(
            column not in wanted or any(_value_matches(value, text) for value in wanted[column])
            for column, text in partition_values(folder)
        )
    entries = [partition_filter] if isinstance(partition_filter, str) else list(partition_filter)
    named = [dict(_pairs(entry)) for entry in entries]
    return lambda folder: any(
        all(column not in pairs or text in pairs[column] for column, text in partition_values(folder))
        for pairs in named
    )


def _pairs(entry: object) -> Iterable[tuple[str, set[str | None]]]:
    """The columns that an entry of a filter names, with their values."""
    found: dict[str, set[str | None]] = {}
    for segment in _filter_segments(entry):
        if isinstance(segment, tuple):
            found.setdefault(segment[0], set()).add(segment[1])
    return found.items()


def _filter_segments(entry: object) -> list[object]:
    if not isinstance(entry, str) or not entry.strip("/"):
        raise InvalidArgument(
            f"partition_filter entry {entry!r} is not a partition: expected e.g. 'date=2025-11-04'"
        )
    return [_comparable(segment) for segment in entry.strip("/").split("/")]


def _in_order(wanted: list[object], directory: str) -> bool:
    # One shared iterator: each wanted segment must come after the previous one.
    found = iter([_comparable(segment) for segment in directory.split("/")])
    return all(segment in found for segment in wanted)


def _comparable(segment: str) -> object:
    return decode_segment(segment) or segment


def _alternatives(value: object) -> list[object]:
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping):
        return list(value)
    return [value]


def _mapping_matches(wanted: Mapping[str, list[object]], actual: Mapping[str, str | None]) -> bool:
    return all(
        column in actual and any(_value_matches(value, actual[column]) for value in values)
        for column, values in wanted.items()
    )


def _value_matches(wanted: object, actual: str | None) -> bool:
    if wanted is None or actual is None:
        return wanted is None and actual is None
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        # `{"month": 1}` also matches `month=01`.
        return re.fullmatch(r"-?[0-9]+", actual) is not None and int(actual) == wanted
    return _text(wanted) == actual


def _text(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case dt.datetime():
            return value.isoformat(sep=" ")
        case dt.date() | dt.time():
            return value.isoformat()
        case bytes():
            try:
                return value.decode("utf-8")
            except UnicodeDecodeError:
                raise InvalidArgument(f"{value!r} cannot be a partition value: it is not valid UTF-8") from None
        case str() | int() | float() | Decimal():
            return str(value)
        case _:
            raise InvalidArgument(f"{value!r} ({type(value).__name__}) cannot be a partition value")


def _escape(text: str) -> str:
    return "".join(f"%{ord(char):02X}" if char in _ESCAPED else char for char in text)

"""Files whose schemas differ, written by several programs, and the schema and rows of the dataset that they form.

The rule of docs/internals/schemas.md once more, for two files, in plain Python: nothing here uses Parketto.
"""

from __future__ import annotations

import datetime as dt
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat

from helpers import oracle

Row = dict[str, Any]
IDS = ([1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12])
_ROWS = 6
_NOON = dt.datetime(2026, 11, 4, 12, 30, 15)  # noqa: DTZ001 - wall-clock time
_TIMES = [_NOON, None, _NOON.replace(year=1969), _NOON.replace(hour=1), _NOON, _NOON]
_INSTANTS = [None if each is None else each.replace(tzinfo=dt.UTC) for each in _TIMES]
_DAYS = [None if each is None else each.date() for each in _TIMES]
_TEXTS = ["a", None, "ccc", "", "é", "a"]
_BYTES = [None if each is None else each.encode() for each in _TEXTS]
_INTEGERS = [0, 1, None, -3, 100, 7]
_COUNTS = [0, 1, None, 3, 100, 7]
_FLOATS = [0.5, None, -2.0, 3.25, 1e10, 7.0]
_MONEY = [Decimal("1.25"), None, Decimal("-3.50"), Decimal("0.00"), Decimal("9.99"), Decimal("1.00")]
_LISTS = [[1, 2], None, [], [7], [3], [4, 5]]
_ONE = [{"a": 1}, None, {"a": None}, {"a": 4}, {"a": 5}, {"a": 6}]
_TWO = [
    {"a": 1, "b": "x"},
    None,
    {"a": None, "b": "y"},
    {"a": 4, "b": None},
    {"a": 5, "b": ""},
    {"a": 6, "b": "é"},
]
_NESTED_ONE = [[{"a": 1}], None, [], [{"a": 2}, {"a": 3}], [{"a": 4}], [{"a": 5}]]
_NESTED_TWO = [
    [{"a": 1, "b": ["x"]}],
    None,
    [],
    [{"a": 2, "b": None}, {"a": 3, "b": []}],
    [{"a": 4, "b": ["y", "z"]}],
    [{"a": 5, "b": ["é"]}],
]


@dataclass(frozen=True)
class Side:
    """The columns of a file beside `id` and `k`, their order, and which of them are required."""

    columns: dict[str, tuple[pa.DataType, list[Any]]]
    order: tuple[str, ...] = ()
    id_type: pa.DataType = field(default_factory=pa.int64)
    required: tuple[str, ...] = ()

    def table(self, ids: list[int]) -> pa.Table:
        """The rows. `k` is small, and repeats."""
        arrays = {
            "id": pa.array(ids, self.id_type),
            "k": pa.array([key % 4 for key in ids], pa.int32()),
            **{name: pa.array(values, kind) for name, (kind, values) in self.columns.items()},
        }
        names = self.order or tuple(arrays)
        fields = [pa.field(name, arrays[name].type, name not in self.required) for name in names]
        return pa.Table.from_arrays([arrays[name] for name in names], schema=pa.schema(fields))


@dataclass(frozen=True)
class Pair:
    """Two schemas, a condition on `v` in SQL and in Python, and whether PyArrow's files of them meet."""

    old: Side
    new: Side
    sql: str = "v IS NULL"
    test: Callable[[Any], bool] = lambda value: value is None
    meets: bool = True

    def table(self, side: int) -> pa.Table:
        return (self.old, self.new)[side].table(IDS[side])


def _typed(
    old: pa.DataType,
    new: pa.DataType,
    values: list[Any],
    sql: str = "v IS NULL",
    test: Callable[[Any], bool] = lambda value: value is None,
    *,
    other: list[Any] | None = None,
    meets: bool = True,
) -> Pair:
    """A pair whose column `v` differs in its type."""
    after = values if other is None else other
    return Pair(Side({"v": (old, values)}), Side({"v": (new, after)}), sql, test, meets)


def _is(*wanted: Any) -> Callable[[Any], bool]:
    return lambda value: value in wanted


def _above(limit: Any) -> Callable[[Any], bool]:
    return lambda value: value is not None and value > limit


_TEXT = (_TEXTS, "v IN ('a', 'é')", _is("a", "é"))
_NUMBER = ("v > 1", _above(1))
_TIME = ("v > TIMESTAMP '2000-01-01 00:00:00'", lambda value: value is not None and value.year > 2000)
_UTC = pa.timestamp("us", "UTC")
_VIEW = pa.string_view() if oracle.parquet_has_views() else pa.string()
_STRUCT = pa.struct({"a": pa.int32()})
_V = {"v": (pa.string(), _TEXTS)}
_W = {"w": (pa.float64(), _FLOATS)}

PAIRS: dict[str, Pair] = {
    "text widths": _typed(pa.string(), pa.large_string(), *_TEXT),
    "text views": _typed(
        pa.large_string(), pa.string_view() if oracle.parquet_has_views() else pa.string(), *_TEXT
    ),
    "text and categories": _typed(pa.string(), pa.dictionary(pa.int8(), pa.string()), *_TEXT),
    "categories": _typed(pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.string()), *_TEXT),
    "binary": _typed(pa.binary(), pa.large_binary(), _BYTES),
    "integers": _typed(pa.int32(), pa.int64(), _INTEGERS, *_NUMBER),
    "narrower integers": _typed(pa.int64(), pa.int8(), _INTEGERS, *_NUMBER),
    "signed beside unsigned": _typed(pa.int8(), pa.uint8(), _COUNTS, *_NUMBER),
    "unsigned": _typed(pa.uint32(), pa.int64(), _COUNTS, *_NUMBER),
    "integers and doubles": _typed(pa.int16(), pa.float64(), _INTEGERS, *_NUMBER),
    "floats": _typed(pa.float32(), pa.float64(), _FLOATS, *_NUMBER),
    "dates": _typed(pa.date32(), pa.date64(), _DAYS, "v > DATE '2000-01-01'", _above(dt.date(2000, 1, 1))),
    "milliseconds": _typed(pa.timestamp("ms"), pa.timestamp("us"), _TIMES, *_TIME),
    "nanoseconds": _typed(_UTC, pa.timestamp("ns", "UTC"), _INSTANTS, *_TIME),
    "decimals": _typed(pa.decimal128(5, 2), pa.decimal128(10, 4), _MONEY, *_NUMBER),
    "lists": _typed(pa.list_(pa.int32()), pa.large_list(pa.int64()), _LISTS),
    "structs": _typed(_STRUCT, pa.struct({"a": pa.int64(), "b": pa.string()}), _ONE, other=_TWO),
    "lists of structs": _typed(
        pa.list_(_STRUCT),
        pa.list_(pa.struct({"a": pa.int64(), "b": pa.list_(pa.string())})),
        _NESTED_ONE,
        other=_NESTED_TWO,
    ),
    "nulls only": _typed(pa.null(), pa.int64(), [None] * _ROWS, other=_INTEGERS),
    "keys": Pair(Side(_V, id_type=pa.int32()), Side(_V), *_TEXT[1:]),
    "column order": Pair(Side(_V), Side(_V, order=("v", "id", "k")), *_TEXT[1:]),
    "nullability": Pair(
        Side({"v": (pa.string(), ["x"] * _ROWS)}, required=("id", "v")), Side(_V, required=("id",)), *_TEXT[1:]
    ),
    "added column": Pair(Side(_V), Side({**_W, **_V}), *_TEXT[1:]),
    "missing column": Pair(Side({**_V, **_W}), Side(_V), *_TEXT[1:]),
    "text beside integers": _typed(pa.string(), pa.int64(), _TEXTS, other=_INTEGERS, meets=False),
    "64 bits beside doubles": _typed(pa.int64(), pa.float64(), _INTEGERS, other=_FLOATS, meets=False),
    "booleans beside integers": _typed(pa.bool_(), pa.int8(), [True, None] * 3, other=_INTEGERS, meets=False),
    "time zones": _typed(_UTC, pa.timestamp("us", "Europe/Berlin"), _INSTANTS, *_TIME, meets=False),
    "zone beside none": _typed(_UTC, pa.timestamp("us"), _INSTANTS, other=_TIMES, meets=False),
    "struct beside list": _typed(
        pa.struct({"a": pa.int32()}), pa.list_(pa.int32()), _ONE, other=_LISTS, meets=False
    ),
    "text inside structs": _typed(
        _STRUCT, pa.struct({"a": pa.string()}), _ONE, other=[{"a": "x"}] * _ROWS, meets=False
    ),
}


def _write_pyarrow(rows: pa.Table, path: str) -> None:
    pq.write_table(rows, path, row_group_size=3)


def _write_pandas(rows: pa.Table, path: str) -> None:
    import pandas as pd

    # Without these, pandas would store integers with NULLs as floats.
    nullable = {
        pa.int8(): pd.Int8Dtype(),
        pa.int16(): pd.Int16Dtype(),
        pa.int32(): pd.Int32Dtype(),
        pa.int64(): pd.Int64Dtype(),
        pa.uint8(): pd.UInt8Dtype(),
        pa.uint32(): pd.UInt32Dtype(),
        pa.bool_(): pd.BooleanDtype(),
    }
    rows.to_pandas(types_mapper=nullable.get).to_parquet(path, row_group_size=3)


def _write_polars(rows: pa.Table, path: str) -> None:
    import polars as pl

    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)
    frame.write_parquet(path, row_group_size=3)


def _write_duckdb(rows: pa.Table, path: str) -> None:
    import duckdb

    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.from_arrow(rows).write_parquet(path)


# Types that Spark lacks, and what its users have instead.
_IN_SPARK = {
    pa.uint8(): pa.int16(),
    pa.uint32(): pa.int64(),
    pa.date64(): pa.date32(),
    pa.string_view(): pa.string(),
}


def _for_spark(rows: pa.Table) -> pa.Table:
    for at, item in reversed(list(enumerate(rows.schema))):
        kind = item.type.value_type if pat.is_dictionary(item.type) else _IN_SPARK.get(item.type, item.type)
        if pat.is_null(kind):
            rows = rows.remove_column(at)  # Spark does not store columns without a type
        elif kind != item.type:
            rows = rows.set_column(at, item.with_type(kind), rows.column(at).cast(kind))
    return rows


def _write_spark(rows: pa.Table, path: str, session: Any) -> None:
    session.createDataFrame(_for_spark(rows)).coalesce(1).write.parquet(f"{path}.folder")
    [found] = Path(f"{path}.folder").glob("*.parquet")
    found.rename(path)
    shutil.rmtree(f"{path}.folder")


_WRITERS = {"pyarrow": _write_pyarrow, "pandas": _write_pandas, "polars": _write_polars, "duckdb": _write_duckdb}
PROGRAMS = (*_WRITERS, "spark")


@dataclass(frozen=True)
class Files:
    """Files of each program, written once and copied afterwards."""

    folder: Path
    spark: Callable[[], Any]

    def copy(self, program: str, pair: str, side: int, path: str) -> None:
        """A program's file with one side of a pair, at a path."""
        cached = self.folder / f"{program}-{pair}-{side}.parquet"
        if not cached.exists():
            rows = PAIRS[pair].table(side)
            if program == "spark":
                _write_spark(rows, str(cached), self.spark())
            else:
                _WRITERS[program](rows, str(cached))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        shutil.copyfile(cached, path)


class NoCommonType(Exception):
    """Two files cannot be one dataset."""


def meet(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type that holds the values of both exactly."""
    if one == other or pat.is_null(other):
        return one
    if pat.is_null(one):
        return other
    if pat.is_dictionary(one) and pat.is_dictionary(other) and one.ordered == other.ordered:
        index, value = meet(one.index_type, other.index_type), meet(one.value_type, other.value_type)
        return pa.dictionary(index, value, one.ordered)
    one, other = (each.value_type if pat.is_dictionary(each) else each for each in (one, other))
    if one == other:
        return one
    for names, rule in _RULES:
        if all(str(each).partition("[")[0].partition("<")[0].partition("(")[0] in names for each in (one, other)):
            return rule(one, other)
    raise NoCommonType(f"{one} and {other}")


def _integers(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    signed = [each.bit_width for each in (one, other) if pat.is_signed_integer(each)]
    unsigned = [each.bit_width for each in (one, other) if pat.is_unsigned_integer(each)]
    bits = max([*signed, *(2 * each for each in unsigned)] if signed else unsigned)
    if bits > 64:
        raise NoCommonType(f"{one} and {other}")
    return pa.type_for_alias(f"int{bits}" if signed else f"uint{bits}")


def _numbers(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if any(pat.is_integer(each) and each.bit_width > 32 for each in (one, other)):
        raise NoCommonType(f"{one} and {other}")
    return pa.float64()


def _timestamps(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    zones = {"UTC" if each.tz in ("UTC", "+00:00", "Etc/UTC") else each.tz for each in (one, other)}
    if len(zones) > 1:
        raise NoCommonType(f"{one} and {other}")
    return pa.timestamp(max((one.unit, other.unit), key=["s", "ms", "us", "ns"].index), *zones)


def _decimals(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    scale = max(one.scale, other.scale)
    return pa.decimal128(max(one.precision - one.scale, other.precision - other.scale) + scale, scale)


def _lists(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    value = _field(one.value_field, other.value_field)
    return pa.large_list(value) if any(map(pat.is_large_list, (one, other))) else pa.list_(value)


def _structs(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    return pa.struct(common_schema(pa.schema(list(one)), pa.schema(list(other))))


def _field(one: pa.Field, other: pa.Field) -> pa.Field:
    nullable = any(each.nullable or pat.is_null(each.type) for each in (one, other))
    return pa.field(one.name, meet(one.type, other.type), nullable)


_INTEGER = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_RULES: tuple[tuple[set[str], Callable[[pa.DataType, pa.DataType], pa.DataType]], ...] = (
    ({"string", "large_string", "string_view"}, lambda *_: pa.large_string()),
    ({"binary", "large_binary", "binary_view"}, lambda *_: pa.large_binary()),
    (_INTEGER, _integers),
    ({*_INTEGER, "float", "double"}, _numbers),
    ({"date32", "date64"}, lambda *_: pa.date32()),
    ({"timestamp"}, _timestamps),
    ({"decimal128"}, _decimals),
    ({"list", "large_list"}, _lists),
    ({"struct"}, _structs),
)


def common_schema(one: pa.Schema, other: pa.Schema) -> pa.Schema:
    """The columns of both, in the order of the first."""
    fields = []
    for name in dict.fromkeys([*one.names, *other.names]):
        found = [each.field(name) for each in (one, other) if name in each.names]
        fields.append(_field(*found) if len(found) == 2 else found[0].with_nullable(True))
    return pa.schema([item.remove_metadata() for item in fields])


def in_type(value: Any, kind: pa.DataType) -> Any:
    """A Python value as a column of a common type returns it: with all fields of its structs."""
    if value is None:
        return None
    if pat.is_struct(kind):
        return {item.name: in_type(value.get(item.name), item.type) for item in kind}
    if pat.is_list(kind) or pat.is_large_list(kind):
        return [in_type(each, kind.value_type) for each in value]
    return value


def in_schema(row: Row, schema: pa.Schema) -> Row:
    return {item.name: in_type(row.get(item.name), item.type) for item in schema}


def stored(path: str) -> pa.Table:
    """A file as PyArrow reads it. INT96 is an instant: Spark has nothing else in it."""
    file = pq.ParquetFile(path, coerce_int96_timestamp_unit="us")
    rows = file.read()
    int96 = {
        column.path
        for column in map(file.schema.column, range(file.metadata.num_columns))
        if column.physical_type == "INT96"
    }
    for at, item in enumerate(rows.schema):
        if item.name in int96:
            kind = pa.timestamp("us", "UTC")
            rows = rows.set_column(at, item.with_type(kind), rows.column(at).cast(kind))
    return rows.replace_schema_metadata(None)


def expected(paths: list[str]) -> tuple[pa.Schema, list[Row]]:
    """The schema and the rows of a dataset of one or more files.

    Raises:
        NoCommonType: They are not one dataset.
    """
    tables = [stored(path) for path in paths]
    schema = tables[0].schema
    for table in tables:
        schema = common_schema(schema, table.schema)
    return schema, [in_schema(row, schema) for table in tables for row in table.to_pylist()]

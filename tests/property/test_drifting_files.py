"""Random datasets whose files differ, and random operations: rows equal those of plain Python, in one schema."""

from __future__ import annotations

import datetime as dt
import itertools
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers import oracle
from parketto import Dataset
from parketto.parquet.promotion import common_type, promoted

_numbers = itertools.count()
FS = fsspec.filesystem("memory")
Row = dict[str, Any]

SMALL = st.integers(0, 100)
# Types that meet, and values that all of them hold.
FAMILIES: dict[str, tuple[list[pa.DataType], st.SearchStrategy[Any]]] = {
    "integer": ([pa.int8(), pa.int32(), pa.int64(), pa.uint8(), pa.uint32()], SMALL),
    "number": ([pa.int16(), pa.float32(), pa.float64(), pa.uint8()], SMALL),
    "text": (
        [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int16(), pa.string())],
        st.text("abü", max_size=3),
    ),
    "time": (
        [pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("ns")],
        st.integers(-(10**9), 10**9).map(lambda seconds: dt.datetime(2000, 1, 1) + dt.timedelta(seconds=seconds)),  # noqa: DTZ001
    ),
    "list": ([pa.list_(pa.int16()), pa.large_list(pa.int64())], st.lists(SMALL, max_size=3)),
    "struct": (
        [pa.struct({"x": pa.int8()}), pa.struct({"x": pa.int64()})],
        st.fixed_dictionaries({"x": st.one_of(st.none(), SMALL)}),
    ),
}


@st.composite
def datasets(draw: st.DrawFn) -> list[pa.Table]:
    """Files with a key, and some of the columns in some types and orders."""
    names = draw(st.lists(st.sampled_from(sorted(FAMILIES)), min_size=1, max_size=3, unique=True))
    tables, key = [], 0
    for _ in range(draw(st.integers(1, 5))):
        kept = draw(st.permutations([name for name in names if draw(st.booleans())]))
        rows = draw(st.integers(0, 6))
        columns: dict[str, pa.Array] = {
            "key": pa.array(range(key, key + rows), draw(st.sampled_from([pa.int16(), pa.int64()])))
        }
        key += rows
        for name in kept:
            types, values = FAMILIES[name]
            found = draw(st.lists(st.one_of(st.none(), values), min_size=rows, max_size=rows))
            columns[name] = pa.array(found, draw(st.sampled_from(types)))
        tables.append(pa.table(columns))
    return tables


def expected_rows(tables: list[pa.Table]) -> tuple[pa.Schema, list[Row]]:
    """The rows of all files in the types that hold all of them."""
    names = list(dict.fromkeys(name for table in tables for name in table.schema.names))
    schema = pa.schema(
        {
            name: common_type([t.schema.field(name).type for t in tables if name in t.schema.names])
            for name in names
        }
    )
    rows = []
    for table in tables:
        columns = {
            name: promoted(table.column(name).combine_chunks(), kind).to_pylist()
            if name in table.schema.names
            else [None] * table.num_rows
            for name, kind in zip(schema.names, schema.types, strict=True)
        }
        rows += [dict(zip(names, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return schema, rows


OPERATIONS = st.lists(
    st.sampled_from(["compact", "delete", "update", "merge", "append", "unify", "optimize", "repartition"]),
    min_size=1,
    max_size=4,
)


def apply(dataset: Dataset, operation: str, rows: list[Row], schema: pa.Schema) -> list[Row]:
    """Run an operation, and return the rows that it should leave."""
    last = max((row["key"] for row in rows), default=0)
    empty = dict.fromkeys(schema.names)
    match operation:
        case "compact":
            dataset.compact(target_rows_per_file=5)
        case "optimize":
            dataset.optimize(["key"], target_rows_per_file=5)
        case "unify":
            dataset.unify_schema()
            assert dataset.unify_schema()["files_rewritten"] == 0
        case "repartition":
            dataset.repartition(None)
        case "delete":
            dataset.delete(f"key % 3 = 1 AND key < {last}")
            return [row for row in rows if not (row["key"] % 3 == 1 and row["key"] < last)]
        case "update":
            name = schema.names[-1]
            if name != "key":
                dataset.update("key % 2 = 0", {name: None})
                return [{**row, name: None} if row["key"] % 2 == 0 else row for row in rows]
        case "append":
            dataset.write(pa.table({"key": pa.array([last + 1], pa.int8())}))
            return [*rows, {**empty, "key": last + 1}]
        case "merge":
            source = pa.Table.from_pylist([{**empty, "key": 1}, {**empty, "key": last + 1}], dataset.schema)
            dataset.merge(source, "key")
            return [*(row for row in rows if row["key"] not in (1, last + 1)), *source.to_pylist()]
    return rows


def check(tables: list[pa.Table], operations: list[str]) -> None:
    root = f"/drift-{next(_numbers)}/events"
    oracle.write_files(root, {f"{number}.parquet": table for number, table in enumerate(tables)}, FS)
    schema, rows = expected_rows(tables)
    dataset = Dataset(root, "pyarrow", filesystem=FS)
    try:
        assert dataset.schema == schema
        for operation in operations:
            rows = apply(dataset, operation, rows, schema)
            found = dataset.read()
            assert sorted(found.to_pylist(), key=lambda row: row["key"]) == sorted(
                rows, key=lambda row: row["key"]
            )
            assert {item.name: item.type for item in found.schema} == {item.name: item.type for item in schema}
            assert dataset.count() == len(rows)
        assert dataset.check(deep=True)["healthy"]
    finally:
        FS.rm(root.rpartition("/")[0], recursive=True)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(datasets(), OPERATIONS)
def test_rows_of_drifting_files_survive(tables: list[pa.Table], operations: list[str]) -> None:
    check(tables, operations)


@pytest.mark.sweep
@settings(deadline=None, max_examples=2000, suppress_health_check=[HealthCheck.too_slow])
@given(datasets(), OPERATIONS)
def test_rows_of_drifting_files_survive_in_many_examples(tables: list[pa.Table], operations: list[str]) -> None:
    check(tables, operations)


ANY = st.sampled_from(
    [kind for types, _ in FAMILIES.values() for kind in types] + [pa.null(), pa.bool_(), pa.date32()]
)


@settings(deadline=None, max_examples=300, derandomize=True)
@given(st.lists(ANY, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_common_type_does_not_depend_on_order_or_repetition(types: list[pa.DataType], chance: Any) -> None:
    shuffled = types * 2
    chance.shuffle(shuffled)
    assert common_type(types) == common_type(shuffled)

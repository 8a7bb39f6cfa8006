"""Pruning: a file without matching rows may be kept, a file with one must be."""

from __future__ import annotations

import io
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.conditions import conditions, tables
from helpers.files import file_of
from parketto.expressions.conditions import predicate
from parketto.expressions.pruning import may_match, row_groups_may_match
from parketto.expressions.values import plain, plain_type
from parketto.parquet.file_info import FileInfo
from parketto.parquet.partition_spec import partition_types
from parketto.parquet.row_group_info import ColumnStats, RowGroupInfo


def kept(where, *files, types=None):
    schema = files[0].schema
    for name, kind in (types or {}).items():
        schema = schema.append(pa.field(name, kind))
    return may_match(predicate(where, schema), files, types)


NUMBERS = file_of(pa.table({"x": [5, 9], "s": ["b", "d"], "f": [1.0, 2.0]}))
HOLED = file_of(pa.table({"x": [5, None], "s": ["b", None], "f": [1.0, None]}))
EMPTY = file_of(pa.table({"x": pa.nulls(2, pa.int64()), "s": pa.nulls(2, pa.string()), "f": [float("nan")] * 2}))


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("x > 9", [False, False, False]),
        ("x = 6", [True, False, False]),
        ("x IS NULL", [False, True, True]),
        ("x IS NOT NULL", [True, True, False]),
        ("NOT x > 4", [False, False, False]),
        ("x IN (1, 2)", [False, False, False]),
        ("x IN (1, 2, 3, 4, 10, 11, 12, 13, 14, 15)", [False, False, False]),
        ("x BETWEEN 6 AND 8", [True, False, False]),
        ("s = 'c' OR x > 100", [True, False, False]),
        ("s < 'b'", [False, False, False]),
        ("x > 9.5 OR s IS NULL", [False, True, True]),
        ("f < 1", [False, False, True]),
        ("f > 2", [True, True, True]),
        ("NOT f <= 2", [True, True, True]),
        ("x + 1 = 100", [True, True, False]),
        ("FALSE", [False, False, False]),
        ("NULL", [False, False, False]),
        ("x > 1e30", [False, False, False]),
    ],
)
def test_files_are_pruned_by_bounds(where, expected):
    assert kept(where, NUMBERS, HOLED, EMPTY) == expected


def test_files_are_pruned_by_partition_values():
    days = [file_of(pa.table({"x": [1]}), (("day", day),)) for day in ("1", "2", None)]
    types = partition_types(days)
    assert types == {"day": pa.int64()}
    assert kept("day = 2", *days, types=types) == [False, True, False]
    assert kept("day IS NULL OR day < 2", *days, types=types) == [True, False, True]
    assert kept("day + 1 = 3 AND x = 1", *days, types=types) == [False, True, False]


def test_a_stored_column_is_not_taken_from_the_path():
    file = file_of(pa.table({"day": [7]}), (("day", "1"),))
    assert partition_types([file]) == {}
    assert may_match(predicate("day = 7", file.schema), [file], {"day": pa.int64()}) == [True]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["0", "-5", "12", None], pa.int64()),
        (["007", "1"], pa.string()),
        (["-0"], pa.string()),
        (["9223372036854775808"], pa.string()),
        (["2024-01-31"], pa.date32()),
        (["2024-02-31"], pa.string()),
        (["2024-01-31", "1"], pa.string()),
        ([None], pa.string()),
        (["1.5"], pa.string()),
    ],
)
def test_partition_types_are_inferred_from_paths(values, kind):
    files = [FileInfo("a", 1, 1, partition=(("p", value),)) for value in values]
    assert partition_types(files) == {"p": kind}


def test_overflow_while_pruning_keeps_the_file():
    files = [file_of(pa.table({"x": [1]}), (("p", text),)) for text in ("9223372036854775807", "1", "2")]
    assert kept("p + 1 = 2", *files, types={"p": pa.int64()}) == [True, True, False]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([2**64 - 1, 2**63], pa.uint64()),
        pa.array([250, 255], pa.uint8()),
        pa.array([Decimal("5.25"), Decimal("7.00")], pa.decimal128(9, 2)),
        pa.array([Decimal("5.25"), Decimal("7.00")], pa.decimal256(50, 2)),
        pa.array([Decimal("5.25"), Decimal("7.00")], pa.decimal32(9, 2)),
        pa.array([10**18, 10**18 + 1000], pa.timestamp("ns")),
        pa.array([10**12, 10**12 + 1], pa.timestamp("s")),
        pa.array([10**15], pa.timestamp("us", "Europe/Berlin")),
        pa.array([5, 6], pa.time32("s")),
        pa.array([5, 6], pa.time64("ns")),
        pa.array([86_400_000], pa.date64()),
        pa.array([5, 6], pa.duration("s")),
        pa.array([1.5, -2], pa.float16()),
        pa.array([1.5, -2], pa.float32()),
        pa.array(["a", "ä"], pa.string_view()),
        pa.array(["a", "ä"], pa.large_string()),
        pa.array(["a", "b"]).dictionary_encode(),
        pa.array([b"\x00", b"\xff"]),
        pa.array([b"ab", b"\xff\x00"], pa.binary(2)),
        pa.array([True, True]),
    ],
    ids=lambda column: str(column.type),
)
@pytest.mark.parametrize("options", [{}, {"version": "1.0"}, {"use_deprecated_int96_timestamps": True}], ids=str)
def test_pruning_keeps_files_with_matching_rows_of_every_type(column, options):
    file = file_of(pa.table({"c": column}), **options)
    sink = io.BytesIO()
    pq.write_table(pa.table({"c": column}), sink, **options)
    rows = pq.read_table(sink).combine_chunks().to_batches()[0]
    for at in range(rows.num_rows):
        value = rows.column(0)[at]
        kind = plain_type(value.type)
        condition = predicate(pc.field("c") == plain(rows.column(0).slice(at, 1)).cast(kind)[0], rows.schema)
        assert condition.matches(rows).to_pylist()[at]
        assert may_match(condition, [file]) == [True]
        assert row_groups_may_match(condition, file) == [True]


def test_bounds_of_exact_types_prune():
    file = file_of(
        pa.table(
            {
                "u": pa.array([2**64 - 2], pa.uint64()),
                "d": pa.array([Decimal("5.25")], pa.decimal128(9, 2)),
                "n": pa.array([10**18], pa.timestamp("ns")),
                "k": pa.array(["b"]).dictionary_encode(),
            }
        )
    )
    for where in ("u = 18446744073709551615", "d > 5.25", "n > '2001-09-09 01:46:40'", "k = 'c'"):
        assert kept(where, file) == [False], where
    for where in ("u = 18446744073709551614", "d >= 5.25", "n >= '2001-09-09 01:46:40'", "k = 'b'"):
        assert kept(where, file) == [True], where


def test_a_row_group_without_bounds_keeps_its_file():
    schema = pa.schema({"x": pa.int64()})
    groups = (
        RowGroupInfo(2, 1, columns={"x": ColumnStats(1, 2, 0)}),
        RowGroupInfo(2, 1, columns={"x": ColumnStats(None, None, 1)}),
    )
    file = FileInfo("a", 1, 4, schema=schema, row_groups=groups)
    condition = predicate("x = 9", schema)
    assert may_match(condition, [file]) == [True]
    assert row_groups_may_match(condition, file) == [False, True]


def test_arrow_expressions_prune_but_not_by_floats():
    assert kept(pc.field("x") > 9, NUMBERS, HOLED, EMPTY) == [False, False, False]
    assert kept(~(pc.field("f") <= 2), NUMBERS) == [True]


def test_files_of_another_type_are_kept():
    other = file_of(pa.table({"x": pa.array([1], pa.int32())}))
    assert may_match(predicate("x = 5", NUMBERS.schema), [other]) == [True]


def check_pruning(contents, where, group_rows):
    files = [file_of(table, row_group_size=group_rows) for table in contents]
    condition = predicate(where, contents[0].schema)
    for table, file, keep in zip(contents, files, may_match(condition, files), strict=True):
        found = condition.matches(table.to_batches()[0]).to_pylist()
        assert keep or not any(found), where
        for at, group in enumerate(row_groups_may_match(condition, file)):
            assert group or not any(found[at * group_rows : (at + 1) * group_rows]), where


CASES = (st.lists(tables(), min_size=1, max_size=3), conditions(), st.sampled_from([1, 2, 100]))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(*CASES)
def test_no_file_with_a_matching_row_is_pruned(contents, where, group_rows):
    check_pruning(contents, where, group_rows)


@pytest.mark.sweep
@settings(max_examples=2000, deadline=None)
@given(*CASES)
def test_no_file_of_many_with_a_matching_row_is_pruned(contents, where, group_rows):
    check_pruning(contents, where, group_rows)

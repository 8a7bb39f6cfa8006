"""The rules of a merge as a table of cases. Every implementation of the rules has to pass all of them.

They exist for broadcast sources (NumPy), for DuckDB (SQL) and for Spark's shuffle (a join per hash bucket). A
matched row is updated in place if the source row belongs to its partition; else it moves. Further rows of the same
key are duplicates, and are deleted.
"""

from __future__ import annotations

import posixpath
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from conftest import Place
from helpers import oracle
from parketto.engines.base import Engine

SCHEMA = pa.schema({"id": pa.int64(), "p": pa.string(), "v": pa.int64(), "kept": pa.string()})
Row = tuple[int, str, int]


class Case(NamedTuple):
    """Files (rows by path), source rows, and what comes out: rows by partition, and inserted, updated, deleted."""

    files: dict[str, list[Row]]
    source: list[Row]
    expected: dict[str, list[tuple[int, int]]]
    counts: tuple[int, int, int]
    options: dict[str, Any] = {}  # noqa: RUF012 - never changed


A, B = "p=a/1.parquet", "p=b/1.parquet"
CASES = {
    "updated in place": Case({A: [(1, "a", 0), (2, "a", 0)]}, [(1, "a", 9)], {"a": [(1, 9), (2, 0)]}, (0, 1, 0)),
    "moved to another partition": Case(
        {A: [(1, "a", 0), (2, "a", 0)]}, [(1, "b", 9)], {"a": [(2, 0)], "b": [(1, 9)]}, (0, 1, 0)
    ),
    "moved, and its file is empty then": Case(
        {A: [(1, "a", 0)], B: [(2, "b", 0)]}, [(1, "b", 9)], {"b": [(1, 9), (2, 0)]}, (0, 1, 0)
    ),
    "inserted": Case(
        {A: [(1, "a", 0)]}, [(7, "a", 9), (8, "c", 9)], {"a": [(1, 0), (7, 9)], "c": [(8, 9)]}, (2, 0, 0)
    ),
    "duplicate in one file": Case(
        {A: [(1, "a", 0), (1, "a", 5), (2, "a", 0)]}, [(1, "a", 9)], {"a": [(1, 9), (2, 0)]}, (0, 1, 1)
    ),
    "duplicate in two files of a partition": Case(
        {A: [(1, "a", 0), (2, "a", 0)], "p=a/2.parquet": [(1, "a", 5), (3, "a", 0)]},
        [(1, "a", 9)],
        {"a": [(1, 9), (2, 0), (3, 0)]},
        (0, 1, 1),
    ),
    "duplicate in another partition": Case(
        {A: [(1, "a", 0), (2, "a", 0)], B: [(1, "b", 0)]}, [(1, "b", 9)], {"a": [(2, 0)], "b": [(1, 9)]}, (0, 1, 1)
    ),
    "duplicates, none in the source's partition": Case(
        {A: [(1, "a", 0), (2, "a", 0)], B: [(1, "b", 0), (3, "b", 0)]},
        [(1, "c", 9)],
        {"a": [(2, 0)], "b": [(3, 0)], "c": [(1, 9)]},
        (0, 1, 1),
    ),
    "two rows swap partitions": Case(
        {A: [(1, "a", 0)], B: [(2, "b", 0)]}, [(1, "b", 8), (2, "a", 9)], {"a": [(2, 9)], "b": [(1, 8)]}, (0, 2, 0)
    ),
    "nothing matches an update": Case(
        {A: [(1, "a", 0)]}, [(7, "a", 9)], {"a": [(1, 0)]}, (0, 0, 0), {"strategy": "update"}
    ),
    "an update moves, and inserts nothing": Case(
        {A: [(1, "a", 0), (2, "a", 0)]},
        [(1, "b", 9), (7, "a", 9)],
        {"a": [(2, 0)], "b": [(1, 9)]},
        (0, 1, 0),
        {"strategy": "update"},
    ),
    "an insert leaves existing keys and duplicates alone": Case(
        {A: [(1, "a", 0), (1, "a", 5)]},
        [(1, "b", 9), (7, "b", 9)],
        {"a": [(1, 0), (1, 5)], "b": [(7, 9)]},
        (1, 0, 0),
        {"strategy": "insert"},
    ),
    "a full merge deletes the rest": Case(
        {A: [(1, "a", 0), (2, "a", 0), (1, "a", 5)], B: [(3, "b", 0)]},
        [(1, "a", 9), (7, "b", 9)],
        {"a": [(1, 9)], "b": [(7, 9)]},
        (1, 1, 3),
        {"strategy": "full_merge"},
    ),
    "a full merge moves": Case(
        {A: [(1, "a", 0)], B: [(2, "b", 0)]}, [(1, "b", 9)], {"b": [(1, 9)]}, (0, 1, 1), {"strategy": "full_merge"}
    ),
    "deduplicate: the last source row wins": Case(
        {A: [(1, "a", 0)]}, [(1, "b", 7), (1, "a", 9)], {"a": [(1, 9)]}, (0, 1, 0), {"strategy": "deduplicate"}
    ),
    "deduplicate: the highest source row wins": Case(
        {A: [(1, "a", 0)]},
        [(1, "b", 9), (1, "a", 7), (2, "a", 3), (2, "b", 4)],
        {"b": [(1, 9), (2, 4)]},
        (1, 1, 0),
        {"strategy": "deduplicate", "dedup_order_by": ["v"]},
    ),
    "an update of one column in place": Case(
        {A: [(1, "a", 0), (2, "a", 0)]},
        [(1, "a", 9)],
        {"a": [(1, 9), (2, 0)]},
        (0, 1, 0),
        {"update_columns": ["v"]},
    ),
    "one column is updated, and the partition is not": Case(
        {A: [(1, "a", 0)]}, [(1, "b", 9)], {"a": [(1, 9)]}, (0, 1, 0), {"update_columns": ["v"]}
    ),
    "a moved row keeps the columns that are not updated": Case(
        {A: [(1, "a", 5), (2, "a", 0)]},
        [(1, "b", 9)],
        {"a": [(2, 0)], "b": [(1, 5)]},
        (0, 1, 0),
        {"update_columns": ["p"]},
    ),
    "a moved duplicate keeps the columns of the first file": Case(
        {A: [(1, "a", 5)], B: [(1, "b", 6), (3, "b", 0)]},
        [(1, "c", 9)],
        {"b": [(3, 0)], "c": [(1, 5)]},
        (0, 1, 1),
        {"update_columns": ["p"]},
    ),
}


def table(rows: list[Row], kept: str) -> pa.Table:
    return pa.table(
        [[row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows], [kept] * len(rows)],
        schema=SCHEMA,
    )


@pytest.mark.parametrize("name", CASES)
def test_rules(local: Place, merge_engine: Engine, name: str) -> None:
    case = CASES[name]
    local.write_files({path: table(rows, "old") for path, rows in case.files.items()})
    dataset = local.dataset(engine=merge_engine)
    planned = dataset.merge(table(case.source, "new"), ["id"], **case.options, dry_run=True)
    stats = dataset.merge(table(case.source, "new"), ["id"], **case.options)

    before = sum(map(len, case.files.values()))
    inserted, updated, deleted = case.counts
    expected = {"inserted": inserted, "updated": updated, "deleted": deleted, "total": before + inserted - deleted}
    assert stats == expected
    assert planned == expected
    found: dict[str, list[tuple[int, int]]] = {}
    for path in oracle.data_files(local.root, local.fs):
        folder = posixpath.basename(posixpath.dirname(path)).removeprefix("p=")
        for row in oracle.read_file(path, local.fs).to_pylist():
            assert row["p"] == folder, "a row is in the folder of its partition"
            assert row["kept"] == ("old" if "update_columns" in case.options or row["v"] in (0, 5) else "new")
            found.setdefault(folder, []).append((row["id"], row["v"]))
    assert {folder: sorted(rows) for folder, rows in found.items()} == case.expected


def test_duplicate_source_keys_are_refused(local: Place, merge_engine: Engine) -> None:
    local.write_files({A: table([(1, "a", 0)], "old")})
    before = local.state()
    with pytest.raises(ValueError, match=r"1 key\(s\) of 'id' more than once, such as \{'id': 7\}"):
        local.dataset(engine=merge_engine).merge(table([(7, "a", 1), (7, "b", 2)], "new"), ["id"])
    assert local.state() == before


REPEATED = {
    "upsert": {},
    "update": {"strategy": "update"},
    "deduplicate": {"strategy": "deduplicate"},
    "full_merge": {"strategy": "full_merge"},
    "one column": {"update_columns": ["v"]},
    "partition": {"update_columns": ["p"]},
}


@pytest.mark.parametrize("name", REPEATED)
def test_a_repeated_merge_changes_nothing(local: Place, merge_engine: Engine, name: str) -> None:
    options: dict[str, Any] = REPEATED[name]
    local.write_files({A: table([(1, "a", 0), (2, "a", 0)], "old"), B: table([(3, "b", 0), (4, "b", 0)], "old")})
    dataset = local.dataset(engine=merge_engine)
    source = table([(1, "a", 9), (2, "b", 9), (3, "b", 9), (4, "c", 9)], "new")
    dataset.merge(source, ["id"], **options)
    state, commits = local.state(), len(dataset.history())
    counts = {"inserted": 0, "updated": 4, "deleted": 0, "total": 4}
    assert dataset.merge(source, ["id"], **options) == counts
    assert local.state() == state, "no file is rewritten"
    assert len(dataset.history()) == commits, "nothing is committed"


def test_files_with_equal_rows_are_not_rewritten(local: Place, merge_engine: Engine) -> None:
    schema = pa.schema({"id": pa.int64(), "x": pa.float64(), "l": pa.list_(pa.int8())})
    rows = [(1, float("nan"), [1, None]), (2, 0.0, None), (3, None, []), (4, 0.5, [2])]
    tables = [pa.Table.from_pylist([dict(zip(schema.names, row, strict=True))], schema) for row in rows]
    local.write_files({f"{at}.parquet": each for at, each in enumerate(tables)})
    source = pa.concat_tables(tables).set_column(1, "x", pa.array([float("nan"), -0.0, None, 0.5]))
    stats = local.dataset(engine=merge_engine).merge(source, "id")
    assert stats == {"inserted": 0, "updated": 4, "deleted": 0, "total": 4}
    assert sorted(set(local.files()) - {"1.parquet"})[:3] == ["0.parquet", "2.parquet", "3.parquet"]
    assert "1.parquet" not in local.files(), "zeros of different signs differ"

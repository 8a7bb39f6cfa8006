"""The rules of a merge as a table of cases. Every implementation of the rules has to pass all of them.

They exist for broadcast sources (NumPy), for DuckDB (SQL) and for Spark's shuffle (a join per hash bucket). A
matched row is updated in place if the source row belongs to its partition; else it moves. Further rows of the same
key are duplicates, and are deleted.
"""

from __future__ import annotations

import posixpath
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from conftest import Place
from helpers import oracle
from helpers.merge_oracle import merged
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
    "a full merge within a partition": Case(
        {A: [(1, "a", 0), (2, "a", 0)], B: [(3, "b", 0)]},
        [(1, "a", 9), (7, "a", 9)],
        {"a": [(1, 9), (7, 9)], "b": [(3, 0)]},
        (1, 1, 1),
        {"strategy": "full_merge", "within": "p = 'a'"},
    ),
    "a full merge within some rows of a file": Case(
        {A: [(1, "a", 0), (2, "a", 5), (3, "a", 0)]},
        [(1, "a", 4)],
        {"a": [(1, 4), (2, 5)]},
        (0, 1, 1),
        {"strategy": "full_merge", "within": "v < 5"},
    ),
    "a full merge does not match keys outside of its scope": Case(
        {A: [(1, "a", 5), (2, "a", 0)]},
        [(1, "a", 4)],
        {"a": [(1, 4), (1, 5)]},
        (1, 0, 1),
        {"strategy": "full_merge", "within": "v < 5"},
    ),
    "a full merge deletes rows of its scope in files without a match": Case(
        {A: [(1, "a", 0), (2, "a", 5)], B: [(3, "b", 0), (4, "b", 0)], "p=c/1.parquet": [(5, "c", 0)]},
        [(3, "b", 4)],
        {"a": [(2, 5)], "b": [(3, 4)]},
        (0, 1, 3),
        {"strategy": "full_merge", "within": "v < 5"},
    ),
    "a full merge moves rows of its scope": Case(
        {A: [(1, "a", 0), (2, "a", 5)]},
        [(1, "b", 4)],
        {"a": [(2, 5)], "b": [(1, 4)]},
        (0, 1, 0),
        {"strategy": "full_merge", "within": "v < 5"},
    ),
    "a full merge within a scope, with a condition": Case(
        {A: [(1, "a", 0), (2, "a", 5), (3, "a", 0)]},
        [(1, "a", -1), (3, "a", 4)],
        {"a": [(1, 0), (2, 5), (3, 4)]},
        (0, 1, 0),
        {"strategy": "full_merge", "within": "v < 5", "update_when": "source.v > target.v"},
    ),
    "update_when: only newer rows": Case(
        {A: [(1, "a", 0), (2, "a", 5)]},
        [(1, "a", 9), (2, "a", 4), (3, "a", 9)],
        {"a": [(1, 9), (2, 5), (3, 9)]},
        (1, 1, 0),
        {"update_when": "source.v > target.v"},
    ),
    "delete_when on the source alone: not inserted either": Case(
        {A: [(1, "a", 0), (2, "a", 0)]},
        [(1, "a", 8), (2, "a", 9), (3, "a", 8), (4, "a", 9)],
        {"a": [(2, 9), (4, 9)]},
        (1, 1, 1),
        {"delete_when": "source.v = 8"},
    ),
    "delete_when on both sides: other rows are inserted": Case(
        {A: [(1, "a", 0), (2, "a", 5)]},
        [(1, "a", 9), (2, "a", 9), (3, "b", 9)],
        {"a": [(1, 9)], "b": [(3, 9)]},
        (1, 1, 1),
        {"delete_when": "target.v = 5 AND source.v > target.v"},
    ),
    "delete_when before update_when": Case(
        {A: [(1, "a", 0), (2, "a", 0), (3, "a", 5)]},
        [(1, "a", 8), (2, "b", 9), (3, "b", 4)],
        {"a": [(3, 5)], "b": [(2, 9)]},
        (0, 1, 1),
        {"delete_when": "source.v = 8", "update_when": "source.v > target.v"},
    ),
    "insert_when": Case(
        {A: [(1, "a", 0)]},
        [(1, "a", 7), (2, "a", 8), (3, "b", 9)],
        {"a": [(1, 7)], "b": [(3, 9)]},
        (1, 1, 0),
        {"insert_when": "source.v = 9"},
    ),
    "insert with delete_when": Case(
        {A: [(1, "a", 0), (2, "a", 0)]},
        [(1, "a", 8), (2, "a", 9), (3, "a", 9)],
        {"a": [(2, 0), (3, 9)]},
        (1, 0, 1),
        {"strategy": "insert", "delete_when": "source.v = 8"},
    ),
    "a full merge keeps matched rows that are not updated": Case(
        {A: [(1, "a", 5), (2, "a", 0)], B: [(3, "b", 5)], "p=c/1.parquet": [(4, "c", 0)]},
        [(1, "a", 1), (3, "b", 1), (7, "a", 9)],
        {"a": [(1, 5), (7, 9)], "b": [(3, 5)]},
        (1, 0, 2),
        {"strategy": "full_merge", "update_when": "source.v > target.v"},
    ),
    "a full merge with delete_when": Case(
        {A: [(1, "a", 0), (2, "a", 0)]},
        [(1, "a", 8), (2, "a", 9)],
        {"a": [(2, 9)]},
        (0, 1, 1),
        {"strategy": "full_merge", "delete_when": "source.v = 8"},
    ),
    "duplicates are judged one by one": Case(
        {A: [(1, "a", 0), (1, "a", 5), (2, "a", 0)], B: [(1, "b", 0), (3, "b", 0)]},
        [(1, "a", 4)],
        {"a": [(1, 4), (1, 5), (2, 0)], "b": [(3, 0)]},
        (0, 1, 1),
        {"update_when": "source.v > target.v"},
    ),
    "only duplicates elsewhere are updated, so the row moves": Case(
        {A: [(1, "a", 5)], B: [(1, "b", 0), (3, "b", 0)]},
        [(1, "a", 4)],
        {"a": [(1, 4), (1, 5)], "b": [(3, 0)]},
        (0, 1, 0),
        {"update_when": "source.v > target.v"},
    ),
    "deduplicate before conditions": Case(
        {A: [(1, "a", 5)]},
        [(1, "a", 9), (1, "a", 4)],
        {"a": [(1, 5)]},
        (0, 0, 0),
        {"strategy": "deduplicate", "update_when": "source.v > target.v"},
    ),
    "update_when on a partition column": Case(
        {A: [(1, "a", 0)], B: [(2, "b", 0)]},
        [(1, "b", 9), (2, "b", 9)],
        {"a": [(1, 0)], "b": [(2, 9)]},
        (0, 1, 0),
        {"update_when": "source.p = target.p"},
    ),
    "update_when with update_columns": Case(
        {A: [(1, "a", 0), (2, "a", 5)]},
        [(1, "b", 9), (2, "b", 4)],
        {"a": [(1, 9), (2, 5)]},
        (0, 1, 0),
        {"update_when": "source.v > target.v", "update_columns": ["v"]},
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
    with pytest.raises(ValueError, match=r"1 key of 'id' more than once, such as \{'id': 7\}"):
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
    assert {"0.parquet", "2.parquet", "3.parquet"} <= set(local.files())
    assert "1.parquet" not in local.files(), "zeros of different signs differ"


def test_columns_that_only_conditions_use_are_not_written(local: Place, merge_engine: Engine) -> None:
    local.write_files({A: table([(1, "a", 0), (2, "a", 0)], "old"), B: table([(3, "b", 0)], "old")})
    dataset = local.dataset(engine=merge_engine)
    source = table([(1, "a", 8), (2, "b", 8), (7, "a", 8), (9, "a", 8)], "new")
    source = source.append_column("op", pa.array(["D", None, "I", "D"]))
    options: dict[str, Any] = {"delete_when": "source.op = 'D'", "insert_when": "source.op <> 'D'"}
    planned = dataset.merge(source, "id", **options, dry_run=True)
    assert dataset.merge(source, "id", **options) == planned
    assert planned == {"inserted": 1, "updated": 1, "deleted": 1, "total": 3}
    assert all(schema.equals(SCHEMA) for schema in oracle.schemas(local.root, local.fs))
    found = [oracle.read_file(path, local.fs) for path in oracle.data_files(local.root, local.fs)]
    assert sorted(number for each in found for number in each.column("id").to_pylist()) == [2, 3, 7]
    with pytest.raises(ValueError, match="only the source has 'op'"):
        dataset.merge(source, "id")


def test_conditions_on_columns_of_the_path(local: Place, merge_engine: Engine) -> None:
    """They have the type of the partition column, not that of its text."""
    schema = pa.schema({"id": pa.int64(), "v": pa.int64()})
    files = {f"n={n}/1.parquet": pa.table({"id": [n], "v": [0]}, schema) for n in (9, 10)}
    local.write_files(files)
    source = pa.table({"id": [9, 10], "v": [1, 1], "n": [10, 9]})
    dataset = local.dataset(engine=merge_engine)
    stats = dataset.merge(source, "id", update_when="source.n > target.n AND target.n = 9")
    assert stats == {"inserted": 0, "updated": 1, "deleted": 0, "total": 2}
    assert {path.partition("/")[0] for path in local.files()} == {"n=10"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"update_when": "v > 1"}, "'v' must be written as source.<column> or target.<column>"),
        ({"insert_when": "target.v > 1"}, "'target.v' must be written as source.<column>"),
        ({"delete_when": "source.nope = 1"}, "delete_when: columns of the source not found: 'nope'"),
        ({"delete_when": "target.v + 1"}, "not a condition"),
        ({"delete_when": 7}, "delete_when must be an SQL string"),
        ({"update_when": "source.v > 1", "strategy": "insert"}, "update_when makes no sense"),
        ({"insert_when": "source.v > 1", "strategy": "update"}, "insert_when makes no sense"),
    ],
)
def test_invalid_conditions(local: Place, merge_engine: Engine, options: dict[str, Any], message: str) -> None:
    local.write_files({A: table([(1, "a", 0)], "old")})
    before = local.state()
    with pytest.raises(ValueError, match=message):
        local.dataset(engine=merge_engine).merge(table([(1, "a", 1)], "new"), "id", **options)
    assert local.state() == before


def test_details_name_the_files(local: Place, merge_engine: Engine) -> None:
    local.write_files({A: table([(1, "a", 0), (2, "a", 0)], "old"), B: table([(3, "b", 0)], "old")})
    dataset = local.dataset(engine=merge_engine)
    before = set(local.files())
    source = table([(1, "a", 9), (7, "c", 9)], "new")
    planned = dataset.merge(source, "id", details=True, dry_run=True)
    assert (planned["rewritten_files"], planned["added_files"]) == ([A], [])
    stats = dataset.merge(source, "id", details=True)
    assert list(stats)[:4] == ["inserted", "updated", "deleted", "total"]
    after = set(local.files())
    assert stats["rewritten_files"] == sorted(before - after) == [A]
    assert stats["added_files"] == sorted(after - before)
    assert len(stats["added_files"]) == 2
    again = dataset.merge(source, "id", details=True)
    assert (again["rewritten_files"], again["added_files"]) == ([], [])
    emptied = dataset.merge(source.slice(0, 0), "id", strategy="full_merge", details=True, commit_id="a:1")
    assert (emptied["rewritten_files"], emptied["added_files"]) == (sorted(after), local.files())
    repeated = dataset.merge(source.slice(0, 0), "id", strategy="full_merge", details=True, commit_id="a:1")
    assert repeated == {**emptied, "repeated_commit": dataset.history()[0]["number"]}


class TestNullKeys:
    """With `null_keys="match"`, NULL keys equal each other, in each key column."""

    SCHEMA = pa.schema({"a": pa.string(), "b": pa.int64(), "v": pa.int64()})

    def rows(self, *rows: tuple[str | None, int | None, int]) -> pa.Table:
        return pa.table([list(column) for column in zip(*rows, strict=True)], schema=self.SCHEMA)

    @pytest.mark.parametrize("statistics", [True, False])
    @pytest.mark.parametrize("keys", [["a"], ["b"], ["a", "b"], ["b", "a"]])
    @pytest.mark.parametrize("strategy", ["upsert", "full_merge"])
    def test_null_keys_match(
        self, local: Place, merge_engine: Engine, keys: list[str], strategy: str, statistics: bool
    ) -> None:
        files = {
            "1.parquet": self.rows(("x", 1, 0), ("y", 2, 0)),
            "2.parquet": self.rows((None, None, 0), ("z", 3, 0)),
            "3.parquet": self.rows(("", 0, 0)),
        }
        local.write_files(files, write_statistics=statistics)
        source = self.rows((None, None, 9), ("y", 2, 9), ("q", 7, 9))
        target = [row for each in files.values() for row in each.to_pylist()]
        expected, stats = merged(target, source.to_pylist(), keys, strategy)
        dataset = local.dataset(engine=merge_engine)
        options: dict[str, Any] = {"null_keys": "match", "strategy": strategy}
        assert dataset.merge(source, keys, **options, dry_run=True) == stats
        assert dataset.merge(source, keys, **options) == stats
        found = [oracle.read_file(path, local.fs) for path in oracle.data_files(local.root, local.fs)]
        rows = [repr(row) for each in found for row in each.to_pylist()]
        assert sorted(rows) == sorted(map(repr, expected))
        with pytest.raises(ValueError, match="NULL values in key column"):
            dataset.merge(source, keys)

    def test_duplicate_null_keys_are_refused(self, local: Place, merge_engine: Engine) -> None:
        local.write_files({"1.parquet": self.rows(("x", 1, 0))})
        source = self.rows((None, 1, 0), (None, 1, 1))
        dataset = local.dataset(engine=merge_engine)
        with pytest.raises(ValueError, match=r"1 key.*'a': None"):
            dataset.merge(source, ["a", "b"], null_keys="match")
        stats = dataset.merge(source, ["a", "b"], null_keys="match", strategy="deduplicate")
        assert stats == {"inserted": 1, "updated": 0, "deleted": 0, "total": 2}

    def test_null_partitions(self, local: Place, merge_engine: Engine) -> None:
        null = "p=__HIVE_DEFAULT_PARTITION__"
        schema = pa.schema({"id": pa.int64(), "v": pa.int64()})
        local.write_files({f"{each}/1.parquet": pa.table([[1], [0]], schema=schema) for each in (null, "p=a")})
        source = pa.table({"id": [1, 1], "p": pa.array([None, "b"]), "v": [9, 9]})
        stats = local.dataset(engine=merge_engine).merge(source, ["id", "p"], null_keys="match")
        assert stats == {"inserted": 1, "updated": 1, "deleted": 0, "total": 3}
        assert {path.partition("/")[0] for path in local.files()} == {null, "p=a", "p=b"}

    def test_unknown_choice(self, local: Place) -> None:
        with pytest.raises(ValueError, match="valid choices: 'refuse', 'match'"):
            local.dataset().merge(self.rows(("x", 1, 0)), "a", null_keys="equal")


class TestScope:
    WITHIN: ClassVar[dict[str, Any]] = {"strategy": "full_merge", "within": "p = 'a'"}

    def test_files_outside_of_the_scope_are_not_read(self, local: Place, merge_engine: Engine) -> None:
        local.write_files({A: table([(1, "a", 0), (2, "a", 0)], "old"), B: table([(1, "b", 0)], "old")})
        content = local.fs.cat_file(f"{local.root}/{B}")
        damaged = content[:4] + bytes(40) + content[44:]
        local.fs.pipe_file(f"{local.root}/{B}", damaged)
        dataset = local.dataset(engine=merge_engine)
        source = table([(1, "a", 9)], "new")
        counts = {"inserted": 0, "updated": 1, "deleted": 1, "total": 2}
        assert dataset.merge(source, "id", **self.WITHIN, dry_run=True) == counts
        assert dataset.merge(source, "id", **self.WITHIN) == counts
        assert local.fs.cat_file(f"{local.root}/{B}") == damaged

    @pytest.mark.parametrize("inside", [True, False], ids=["inside", "path only"])
    def test_an_empty_source_empties_the_scope(self, local: Place, merge_engine: Engine, inside: bool) -> None:
        files = {A: table([(1, "a", 0)], "old"), B: table([(2, "b", 0)], "old")}
        local.write_files({path: each if inside else each.drop_columns("p") for path, each in files.items()})
        dataset = local.dataset(engine=merge_engine)
        stats = dataset.merge(table([], "new"), "id", **self.WITHIN)
        assert stats == {"inserted": 0, "updated": 0, "deleted": 1, "total": 1}
        assert local.files() == [B]
        stats = dataset.merge(table([(7, "a", 9)], "new"), "id", **self.WITHIN)
        assert stats == {"inserted": 1, "updated": 0, "deleted": 0, "total": 2}

    def test_source_rows_must_be_in_the_scope(self, local: Place, merge_engine: Engine) -> None:
        local.write_files({A: table([(1, "a", 0)], "old")})
        before = local.state()
        source = table([(1, "a", 9), (2, "b", 9)], "new")
        with pytest.raises(ValueError, match=r"outside of within=\"p = 'a'\", such as \{'id': 2, 'p': 'b'\}"):
            local.dataset(engine=merge_engine).merge(source, "id", **self.WITHIN)
        assert local.state() == before

    def test_only_for_full_merges(self, local: Place) -> None:
        with pytest.raises(ValueError, match="within applies to the strategy 'full_merge', not to 'upsert'"):
            local.dataset().merge(table([], "new"), "id", within="v = 1")

    def test_a_repeated_merge_changes_nothing(self, local: Place, merge_engine: Engine) -> None:
        local.write_files({A: table([(1, "a", 0), (2, "a", 5), (3, "a", 0)], "old")})
        dataset = local.dataset(engine=merge_engine)
        options: dict[str, Any] = {"strategy": "full_merge", "within": pc.field("v") < 5}
        dataset.merge(table([(1, "a", 4)], "new"), "id", **options)
        state = local.state()
        assert dataset.merge(table([(1, "a", 4)], "new"), "id", **options)["updated"] == 1
        assert local.state() == state

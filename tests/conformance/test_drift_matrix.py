"""Files of two programs in two schemas: every operation on every engine does what plain Python says.

Programs decide themselves how they store a column. So an oracle reads each file alone, and applies the rule of
docs/internals/schemas.md: either to one schema and its rows, or to an error that leaves every byte as it was.

The whole matrix is a sweep. The default share has each pair of programs, each pair of schemas and each operation.
"""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.types as pat
import pytest

from conftest import Place
from helpers import drift, oracle
from helpers.drift import PAIRS, PROGRAMS, NoCommonType, Row
from parketto import Dataset, IncompatibleTypes
from parketto.engines.base import Engine

Fields = list[tuple[str, pa.DataType, bool]]
#: A path for each of the two files. Only one operation needs partitions.
FLAT, PARTITIONED = ("a.parquet", "b.parquet"), ("part=1/a.parquet", "part=2/b.parquet")


@dataclass(frozen=True)
class Case:
    """A dataset of two files, and what it contains."""

    dataset: Dataset
    pair: str
    schema: pa.Schema
    rows: list[Row]
    sources: tuple[pa.Schema, pa.Schema]

    def row(self, key: int) -> Row:
        return next(row for row in self.rows if row["id"] == key)

    def without(self, *keys: int) -> list[Row]:
        return [row for row in self.rows if row["id"] not in keys]

    def table(self, rows: list[Row], side: int | None = None) -> pa.Table:
        """Rows in the dataset's schema, or in that of one of its files."""
        schema = self.schema if side is None else self.sources[side]
        return pa.Table.from_pylist([drift.in_schema(row, schema) for row in rows], schema)

    def matches(self, row: Row) -> bool:
        return PAIRS[self.pair].test(row.get("v"))


def fields(schema: pa.Schema) -> Fields:
    return [(item.name, item.type, item.nullable) for item in schema]


def by_id(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row["id"])


Operation = Callable[[Case], list[Row]]


def read(case: Case) -> list[Row]:
    dataset, condition = case.dataset, PAIRS[case.pair].sql
    assert fields(dataset.read().schema) == fields(dataset.schema) == fields(case.schema)
    assert by_id(dataset.read().to_pylist()) == case.rows
    assert dataset.read(["v"], limit=5).num_rows == 5
    expected = [row for row in case.rows if case.matches(row) and row["id"] > 3]
    assert by_id(dataset.read(where=f"id > 3 AND {condition}").to_pylist()) == expected
    return case.rows


def views(case: Case) -> list[Row]:
    assert by_id(case.dataset.to_pyarrow().to_table().to_pylist()) == case.rows
    nulls = sum(row["v"] is None for row in case.rows)
    assert case.dataset.to_polars().collect()["v"].null_count() == nulls
    assert len(case.dataset.to_duckdb().filter("v IS NULL").fetchall()) == nulls
    if case.dataset.engine.name == "spark":
        assert case.dataset.to_spark().filter("v IS NULL").count() == nulls
    return case.rows


def count(case: Case) -> list[Row]:
    assert case.dataset.count() == len(case.rows)
    assert case.dataset.count(PAIRS[case.pair].sql) == sum(map(case.matches, case.rows))
    assert case.dataset.count("v IS NULL") == sum(row["v"] is None for row in case.rows)
    return case.rows


def delete(case: Case) -> list[Row]:
    gone = [row["id"] for row in case.rows if case.matches(row) and row["id"] not in (5, 11)]
    assert case.dataset.delete(f"({PAIRS[case.pair].sql}) AND id NOT IN (5, 11)")["rows_matched"] == len(gone)
    return case.without(*gone)


def update(case: Case) -> list[Row]:
    value = None if case.schema.field("v").nullable else "new"
    assert case.dataset.update("id IN (1, 8)", {"v": value, "k": 77})["rows_matched"] == 2
    return [{**row, "v": value, "k": 77} if row["id"] in (1, 8) else row for row in case.rows]


def merge(case: Case) -> list[Row]:
    source = [{**case.row(4), "id": 10}, {**case.row(11), "id": 1}, {**case.row(12), "id": 99}]
    stats = case.dataset.merge(case.table(source), ["id"])
    assert (stats["inserted"], stats["updated"]) == (1, 2)
    return [*case.without(1, 10), *source]


def compact(case: Case) -> list[Row]:
    assert case.dataset.compact()["after_file_count"] == 1
    return case.rows


def optimize(case: Case) -> list[Row]:
    assert case.dataset.optimize(["k", "id"])["after_file_count"] == 1
    return case.rows


def repartition(case: Case) -> list[Row]:
    assert case.dataset.repartition(["k"])["files_written"] == 4
    return case.rows


def unify_schema(case: Case) -> list[Row]:
    case.dataset.unify_schema()
    assert case.dataset.unify_schema()["files_rewritten"] == 0
    assert [fields(drift.stored(file.path).schema) for file in case.dataset.files()] == [fields(case.schema)] * 2
    return case.rows


def alter(case: Case) -> list[Row]:
    case.dataset.alter(rename={"v": "u"}, cast={"k": "bigint"}, add={"n": "int"})
    return [{**{"u" if name == "v" else name: row[name] for name in row}, "n": None} for row in case.rows]


def append(case: Case) -> list[Row]:
    added = [{**case.row(key), "id": key + 100} for key in (1, 2, 4)]
    case.dataset.write(case.table(added, 0))
    kept = set(case.sources[0].names)
    return [*case.rows, *({name: row[name] if name in kept else None for name in row} for row in added)]


def overwrite_partitions(case: Case) -> list[Row]:
    added = [{**case.row(key), "id": key + 100} for key in (8, 9)]
    rows = case.table(added, 1).append_column("part", pa.array([2, 2], pa.int32()))
    case.dataset.write(rows, mode="overwrite_partitions")
    return [*case.without(*drift.IDS[1]), *added]


def deduplicate(case: Case) -> list[Row]:
    key = "k" if pat.is_nested(case.schema.field("v").type) else "v"
    kept = {row[key]: row for row in sorted(case.rows, key=lambda row: (row["k"], row["id"]))}
    assert case.dataset.deduplicate(key, order_by=["k", "id"])["rows_matched"] == len(case.rows) - len(kept)
    return list(kept.values())


def apply_changes(case: Case) -> list[Row]:
    updated, inserted = {**case.row(9), "id": 3, "k": 1000}, {**case.row(4), "id": 50, "k": 1000}
    records = [updated, inserted, {**case.row(8), "k": 1000}, {**case.row(7), "id": 2, "k": -1}]
    rows = case.table(records).append_column("op", pa.array(["u", "u", "d", "u"]))
    options: dict[str, Any] = {"sequence_by": "k", "delete_when": "op = 'd'", "except_columns": ["op"]}
    stats = case.dataset.apply_changes(rows, ["id"], **options)
    assert {name: stats[name] for name in ("inserted", "updated", "deleted", "ignored")} == {
        "inserted": 1, "updated": 1, "deleted": 1, "ignored": 1
    }  # fmt: skip
    assert case.dataset.apply_changes(rows, ["id"], **options)["ignored"] == 4
    return [*case.without(3, 8), updated, inserted]


OPERATIONS: tuple[Operation, ...] = (
    read,
    views,
    count,
    delete,
    update,
    merge,
    compact,
    optimize,
    repartition,
    unify_schema,
    alter,
    append,
    overwrite_partitions,
    deduplicate,
    apply_changes,
)


@pytest.fixture(scope="session")
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> drift.Files:
    return drift.Files(tmp_path_factory.mktemp("programs"), lambda: request.getfixturevalue("spark"))


def check(
    files: drift.Files,
    place: Place,
    engine: Engine | str,
    programs: tuple[str, str],
    pair: str,
    operation: Operation,
) -> None:
    """Run an operation on a fresh dataset, and compare its result with the oracle's."""
    paths = [f"{place.root}/{path}" for path in (PARTITIONED if operation is overwrite_partitions else FLAT)]
    for side, (program, path) in enumerate(zip(programs, paths, strict=True)):
        files.copy(program, pair, side, path)
    sources = tuple(drift.stored(path).schema for path in paths)
    dataset = place.dataset(engine=engine)
    try:
        schema, rows = drift.expected(paths)
    except NoCommonType:
        check_refused(place, dataset, pair, operation)
        return
    expected = operation(Case(dataset, pair, schema, rows, sources))
    check_result(place, expected, schema, operation)


def check_result(place: Place, expected: list[Row], schema: pa.Schema, operation: Operation) -> None:
    after, rows = drift.expected(oracle.data_files(place.root))
    assert by_id(rows) == by_id([drift.in_schema(row, after) for row in expected])
    assert {*expected[0]} == {*after.names}
    if operation is alter:
        schema = pa.schema(
            [
                *(item.with_name("u") if item.name == "v" else item for item in schema),
                pa.field("n", pa.int32()),
            ]
        )
        schema = schema.set(schema.names.index("k"), schema.field("k").with_type(pa.int64()))
    if operation is not overwrite_partitions:  # which replaces a file with its schema
        assert fields(after) == fields(schema)
    dataset = place.dataset(engine="pyarrow")
    found = dataset.read()
    if operation is overwrite_partitions:
        assert {(row["id"], row["part"]) for row in found.to_pylist()} == {
            (row["id"], 1 if row["id"] in drift.IDS[0] else 2) for row in expected
        }
        found = found.drop_columns("part")
    assert fields(found.schema) == fields(after)
    assert by_id(found.to_pylist()) == by_id(rows)
    assert dataset.check(deep=True)["healthy"]
    tombstones = operation is apply_changes
    assert [path for path in place.left_behind() if not (tombstones and "/changes/" in path)] == []


def check_refused(place: Place, dataset: Dataset, pair: str, operation: Operation) -> None:
    """The error names the column, its types and the files, and says how to repair it."""
    table = drift.stored(oracle.data_files(place.root)[0])
    rows = [{**row, "id": key} for keys in drift.IDS for key, row in zip(keys, table.to_pylist(), strict=True)]
    # Rows that fit one file are appended: an append costs the same at any size of the dataset.
    narrow = table.schema.remove(table.schema.names.index("v"))
    before = place.state()
    with pytest.raises(
        IncompatibleTypes, match=r"column 'v' is .* in '.*a\.parquet' and .* in '.*b\.parquet'.*unify_schema"
    ):
        operation(Case(dataset, pair, table.schema, rows, (narrow, narrow)))
    assert place.state() == before
    assert place.left_behind() == []


WRITERS = list(itertools.product(PROGRAMS, repeat=2))


def share() -> list[Any]:
    """Cases that have each pair of programs, each pair of schemas and each operation. Always the same ones."""
    chance, cases = random.Random(7), max(len(WRITERS), len(PAIRS), 3 * len(OPERATIONS))

    def shuffled(choices: Any) -> list[Any]:
        found = list(choices)
        chance.shuffle(found)
        return list(itertools.islice(itertools.cycle(found), cases))

    return [
        pytest.param(*programs, pair, operation, id=f"{programs[0]}-{programs[1]}-{pair}-{operation.__name__}")
        for programs, pair, operation in zip(shuffled(WRITERS), shuffled(PAIRS), shuffled(OPERATIONS), strict=True)
    ]


@pytest.mark.parametrize(("first", "second", "pair", "operation"), share())
def test_operations_on_files_of_two_programs(
    files: drift.Files,
    local: Place,
    engine: Engine | str,
    first: str,
    second: str,
    pair: str,
    operation: Operation,
) -> None:
    check(files, local, engine, (first, second), pair, operation)


@pytest.mark.sweep
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("pair", PAIRS)
def test_operations_on_files_of_all_programs(
    files: drift.Files, tmp_path: Any, engine: Engine | str, spark: Any, pair: str, operation: Operation
) -> None:
    """All failures are shown together. Spark takes a second for each case: it gets two pairs of programs."""
    failures, start = [], zlib.crc32(f"{pair} {operation.__name__}".encode()) % len(WRITERS)
    chosen = [WRITERS[start], WRITERS[start - 12]] if engine == "spark" else WRITERS
    for number, programs in enumerate(chosen):
        place = Place(f"{tmp_path}/{number}/events", fsspec.filesystem("file"))
        try:
            check(files, place, engine, programs, pair, operation)
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001
            failures.append(f"{programs}: {type(error).__name__}: {error}")
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("pair", PAIRS)
def test_oracle_knows_which_files_meet(files: drift.Files, tmp_path: Any, pair: str) -> None:
    paths = [f"{tmp_path}/{name}" for name in FLAT]
    for side, path in enumerate(paths):
        files.copy("pyarrow", pair, side, path)
    try:
        schema, rows = drift.expected(paths)
    except NoCommonType:
        assert not PAIRS[pair].meets
    else:
        assert PAIRS[pair].meets
        assert len(rows) == 12
        assert {"id", "k", "v"} <= {*schema.names}

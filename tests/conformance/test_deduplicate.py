"""Deduplication in place, the same on every engine: which row wins, and which files are rewritten."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from conftest import Place
from helpers import oracle
from parketto import ColumnNotFound, CommitConflict, Dataset, Progress
from parketto.engines.base import Engine
from parketto.engines.pyarrow.engine import PyArrowEngine

Row = dict[str, Any]


def in_path_order(place: Place) -> list[Row]:
    paths = sorted(oracle.data_files(place.root, place.fs))
    return [row for path in paths for row in oracle.read_file(path, place.fs).to_pylist()]


def winners(rows: list[Row], keys: list[str], order_by: list[str]) -> Counter[str]:
    """Plain Python: NULLs are lowest, the later row wins a tie."""
    best: dict[str, tuple[Any, Row]] = {}
    for position, row in enumerate(rows):
        rank = (*((row[name] is not None, row[name]) for name in order_by), position)
        key = repr([row[name] for name in keys])
        if key not in best or _is_higher(rank, best[key][0]):
            best[key] = (rank, row)
    return Counter(repr(row) for _, row in best.values())


def _is_higher(rank: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    for mine, theirs in zip(rank, other, strict=True):
        if mine != theirs:
            if isinstance(mine, tuple) and mine[0] != theirs[0]:
                return bool(mine[0])
            return bool(mine > theirs)
    return False


def contents(place: Place) -> Counter[str]:
    return Counter(repr(row) for row in in_path_order(place))


def table(rows: list[tuple[Any, Any, Any]]) -> pa.Table:
    schema = pa.schema({"id": pa.int64(), "at": pa.int32(), "name": pa.string()})
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def mixed() -> dict[str, pa.Table]:
    return {
        "a.parquet": table([(1, 5, "a1"), (2, 1, "a2"), (1, 9, "a3"), (None, 1, "a4")]),
        "b.parquet": table([(3, 1, "b1"), (4, 1, "b2")]),
        "c.parquet": table([(1, 7, "c1"), (2, None, "c2"), (None, 0, "c3")]),
    }


@pytest.mark.parametrize("order_by", [[], ["at"], ["at", "name"]])
def test_one_row_of_each_key_is_left(place: Place, engine: Engine, order_by: list[str]) -> None:
    place.write_files(mixed())
    expected = winners(in_path_order(place), ["id"], order_by)
    before = place.state()
    stats = place.dataset(engine=engine).deduplicate(["id"], order_by or None)
    assert contents(place) == expected
    assert (stats["rows_matched"], stats["rows_before"], stats["rows_after"]) == (4, 9, 5)
    # The file without duplicates is the same file.
    assert place.state()["/b.parquet"] == before["/b.parquet"]
    assert not place.left_behind()


def test_it_is_idempotent(place: Place, engine: Engine) -> None:
    place.write_files(mixed())
    dataset = place.dataset(engine=engine)
    dataset.deduplicate("id", "at")
    before = place.state()
    stats = dataset.deduplicate("id", "at")
    assert (stats["rows_matched"], stats["files_rewritten"], stats["files_removed"]) == (0, 0, 0)
    assert place.state() == before


def test_a_dry_run_counts_and_changes_nothing(place: Place, engine: Engine) -> None:
    place.write_files(mixed())
    before = place.state()
    dataset = place.dataset(engine=engine)
    planned = dataset.deduplicate("id", "at", dry_run=True)
    assert place.state() == before
    assert not place.left_behind()
    done = dataset.deduplicate("id", "at")
    assert planned == {**done, "dry_run": True, "added_files": []}
    assert (done["files_rewritten"], done["files_removed"]) == (1, 1)
    assert done["partitions_affected"] == 1


def test_exact_duplicates_of_whole_rows(place: Place, engine: Engine) -> None:
    schema = pa.schema(
        {
            "n": pa.float64(),
            "tags": pa.list_(pa.string()),
            "point": pa.struct({"x": pa.int32(), "at": pa.timestamp("ns", "UTC")}),
            "side": pa.dictionary(pa.int8(), pa.string()),
            "raw": pa.binary(3),
            "amount": pa.decimal128(9, 2),
            "open": pa.bool_(),
        }
    )
    rows: list[Row] = [
        {"n": float("nan"), "tags": ["a", None], "point": {"x": 1, "at": 1}, "side": "ask", "raw": b"abc"},
        {"n": float("nan"), "tags": ["a"], "point": {"x": 1, "at": 1}, "side": "ask", "raw": b"abc"},
        {"n": 1.0, "tags": [], "point": None, "side": None, "raw": None, "open": True},
        {"n": 1.0, "tags": None, "point": None, "side": None, "raw": None, "open": True},
        {"n": 1.0, "tags": None, "point": {"x": None, "at": None}, "side": None, "raw": None, "open": False},
    ]
    whole = pa.Table.from_pylist(rows, schema)
    place.write_files({"a.parquet": whole, "b.parquet": whole.take([3, 1]), "c.parquet": whole.slice(0, 1)})
    stats = place.dataset(engine=engine).deduplicate()
    assert (stats["rows_matched"], stats["rows_after"]) == (3, 5)
    assert contents(place) == Counter(repr(row) for row in whole.to_pylist())
    assert place.dataset(engine=engine).deduplicate(None)["rows_matched"] == 0


def test_keys_in_the_path_and_removed_files(place: Place, engine: Engine) -> None:
    place.write_files(
        {
            "day=1/a.parquet": table([(1, 1, "x"), (2, 1, "x")]),
            "day=1/b.parquet": table([(1, 2, "y"), (2, 2, "y")]),
            "day=2/a.parquet": table([(1, 1, "z")]),
        }
    )
    stats = place.dataset(engine=engine).deduplicate(["day", "id"], "at")
    assert (stats["rows_matched"], stats["files_removed"], stats["files_rewritten"]) == (2, 1, 0)
    assert place.files() == ["day=1/b.parquet", "day=2/a.parquet"]


def test_only_some_partitions(place: Place, engine: Engine) -> None:
    twice = table([(1, 1, "x"), (1, 1, "x")])
    place.write_files({"day=1/a.parquet": twice, "day=2/a.parquet": twice})
    stats = place.dataset(engine=engine).deduplicate("id", partition_filter={"day": 1})
    assert (stats["rows_matched"], stats["rows_before"]) == (1, 2)
    assert len(in_path_order(place)) == 3


def test_files_of_different_schemas(place: Place, engine: Engine) -> None:
    place.write_files(
        {
            "a.parquet": pa.table({"id": pa.array([1, 2], pa.int32()), "n": ["a", "b"]}),
            "b.parquet": pa.table({"id": pa.array([2, 3], pa.int64())}),
        }
    )
    assert place.dataset(engine=engine).deduplicate("id")["rows_matched"] == 1
    found = place.dataset(engine="pyarrow").read()
    assert sorted(zip(found["id"].to_pylist(), found["n"].to_pylist(), strict=True)) == [
        (1, "a"),
        (2, None),
        (3, None),
    ]


def test_many_rows_in_little_memory(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Buckets, chunks and passes: all are larger than the memory of a worker."""
    monkeypatch.setattr("parketto.operations.deduplicate._BUCKET_BYTES", 1 << 20)
    ids = [n * 7919 % 60_000 for n in range(200_000)]
    whole = pa.table({"id": ids, "at": list(range(200_000)), "name": [f"name {n % 5}" for n in ids]})
    local.write_files({f"{n}.parquet": whole.slice(n * 20_000, 20_000) for n in range(10)}, row_group_size=5_000)
    expected = winners(whole.to_pylist(), ["id", "name"], ["at"])
    dataset = local.dataset(engine=PyArrowEngine(memory_mb=3, threads=2))
    stats = dataset.deduplicate(["id", "name"], "at")
    assert stats["rows_after"] == 60_000
    assert contents(local) == expected


def test_one_frequent_key(local: Place) -> None:
    whole = pa.table({"id": [7] * 50_000, "at": list(range(50_000))})
    local.write_files({f"{n}.parquet": whole.slice(n * 10_000, 10_000) for n in range(5)})
    stats = local.dataset(engine=PyArrowEngine(memory_mb=2, threads=1)).deduplicate("id", "at")
    assert (stats["rows_after"], stats["files_removed"], stats["files_rewritten"]) == (1, 4, 1)
    assert in_path_order(local) == [{"id": 7, "at": 49_999}]


def test_backup_commit_id_and_progress(local: Place, engine: Engine) -> None:
    local.write_files({**mixed(), "d.parquet": table([(4, 2, "d1"), (5, 1, "d2"), (5, 2, "d3")])})
    before = contents(local)
    seen: list[Progress] = []
    dataset = local.dataset(engine=engine)
    stats = dataset.deduplicate("id", backup=f"{local.root}-backups", commit_id="nightly:1", progress=seen.append)
    assert stats["backup_path"] is not None
    assert list(dict.fromkeys(each.operation for each in seen)) == ["match", "deduplicate"]
    dataset.restore(stats["backup_path"])
    assert contents(local) == before
    assert dataset.deduplicate("id", commit_id="nightly:1") == {**stats, "repeated_commit": 1}
    assert contents(local) == before
    assert [commit["operation"] for commit in dataset.history()] == ["restore", "deduplicate"]


def test_appended_rows_are_a_conflict(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    local.write_files(mixed())
    run = PyArrowEngine.run
    appended: list[object] = []

    def append_once(self: PyArrowEngine, tasks: Any, context: Any) -> Any:
        if not appended:
            appended.append(local.dataset(engine="duckdb").write(table([(3, 9, "late")])))
        return run(self, tasks, context)

    monkeypatch.setattr(PyArrowEngine, "run", append_once)
    with pytest.raises(CommitConflict, match="may have the same keys"):
        local.dataset(engine="pyarrow").deduplicate("id")
    appended.clear()
    assert local.dataset(engine="pyarrow", retries=1).deduplicate("id")["rows_after"] == 5
    appended.clear()
    local.dataset(engine="pyarrow").deduplicate("id", isolation="snapshot")
    assert len(in_path_order(local)) == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"key_columns": ["nope"]}, "nope"),
        ({"key_columns": []}, "key_columns is empty"),
        ({"key_columns": ["id"], "order_by": ["id", "id"]}, "order_by names a column twice"),
        ({"key_columns": None, "order_by": "at"}, "order_by needs key_columns"),
        ({"key_columns": ["id"], "order_by": "tags"}, "rows cannot be ordered by 'tags'"),
    ],
)
def test_wrong_arguments_are_refused(local: Place, arguments: Row, message: str) -> None:
    local.write_files({"a.parquet": pa.table({"id": [1], "at": [1], "tags": [["x"]]})})
    before = local.state()
    with pytest.raises(ValueError, match=message):
        local.dataset().deduplicate(**arguments)
    assert local.state() == before


def test_unknown_columns_are_named(local: Place) -> None:
    local.write_files(mixed())
    with pytest.raises(ColumnNotFound, match="order_by"):
        local.dataset().deduplicate("id", "nope")


def test_times_and_days_order_rows(local: Place, engine: Engine) -> None:
    day = dt.datetime(2026, 11, 18, tzinfo=dt.UTC)
    rows = pa.table({"id": [1, 1, 1], "at": [day, day + dt.timedelta(days=1), None], "n": [1, 2, 3]})
    dataset = Dataset(local.root, engine=engine)
    dataset.write(rows)
    dataset.deduplicate("id", "at")
    assert dataset.read().column("n").to_pylist() == [2]

"""The operations on rows, columns and partitions on S3: results, files that stay, and nothing left behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from helpers import oracle
from helpers.s3 import S3Place
from parketto import CommitConflict, Dataset, IncompatibleTypes

pytest.importorskip("s3fs")

Row = dict[str, Any]


@pytest.fixture(params=["pyarrow", "duckdb"])
def local_engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def rows(*days: int, start: int = 0) -> pa.Table:
    return pa.table({"id": range(start, start + len(days)), "day": pa.array(days, pa.int32())})


def found(dataset: Dataset) -> list[Row]:
    return sorted(dataset.read().to_pylist(), key=lambda row: row["id"])


def folders(place: S3Place) -> set[str]:
    return {path.partition("/")[0] for path in place.files()}


def kept(before: dict[str, str], place: S3Place) -> list[str]:
    """The data files that an operation has not touched."""
    return sorted(path for path, content in place.state().items() if before.get(path) == content)


@pytest.mark.parametrize(("local_engine", "form"), [("pyarrow", "path"), ("duckdb", "files")])
def test_partitions_are_replaced(s3: S3Place, local_engine: str, form: Any) -> None:
    dataset = s3.dataset(local_engine)
    dataset.write(rows(1, 1, 2, 3), partition_by="day", partition_columns=form)
    before = s3.state()
    dataset.write(rows(2, 4, start=10), mode="overwrite_partitions")
    assert found(dataset) == [
        *rows(1, 1).to_pylist(),
        *rows(3, start=3).to_pylist(),
        *rows(2, 4, start=10).to_pylist(),
    ]
    assert {path.split("/")[1] for path in kept(before, s3)} == {"day=1", "day=3"}
    assert folders(s3) == {"day=1", "day=2", "day=3", "day=4"}
    (first, *_) = oracle.data_files(s3.root, s3.fs)
    assert ("day" in oracle.read_file(first, s3.fs).schema.names) == (form == "files")
    assert s3.left_behind() == []


def test_matching_rows_are_replaced(s3: S3Place, local_engine: str) -> None:
    dataset = s3.dataset(local_engine)
    s3.write_files({"a.parquet": rows(1, 2), "b.parquet": rows(3, 3, start=2)})
    before = s3.state()
    stats = dataset.write(rows(2, 2, start=10), mode="overwrite", replace_where="day = 2")
    assert (stats["rows_written"], stats["rows_deleted"]) == (2, 1)
    assert [row["id"] for row in found(dataset)] == [0, 2, 3, 10, 11]
    assert kept(before, s3) == ["/b.parquet"]
    assert s3.left_behind() == []


def test_partition_columns_move_into_the_path_and_back(s3: S3Place) -> None:
    dataset = s3.dataset()
    dataset.write(rows(1, 2, 2))
    dataset.repartition(["day"], partition_columns="path")
    assert all(schema.names == ["id"] for schema in oracle.schemas(s3.root, s3.fs))
    assert found(dataset) == rows(1, 2, 2).to_pylist()
    dataset.repartition(["day"], partition_columns="files")
    assert all(schema.names == ["id", "day"] for schema in oracle.schemas(s3.root, s3.fs))
    assert found(dataset) == rows(1, 2, 2).to_pylist()
    assert s3.left_behind() == []


ALTERED: dict[str, tuple[dict[str, Any], Callable[[Row], Row]]] = {
    "rename": ({"rename": {"day": "date"}}, lambda row: {"id": row["id"], "date": row["day"]}),
    "drop": ({"drop": "day"}, lambda row: {"id": row["id"]}),
    "add": ({"add": {"note": "string"}}, lambda row: {**row, "note": None}),
    "cast": ({"cast": {"day": "bigint"}}, lambda row: row),
}


@pytest.mark.parametrize("change", ALTERED)
def test_columns_are_altered(s3: S3Place, change: str) -> None:
    s3.write_files({"a.parquet": rows(1, 2), "b.parquet": rows(3, start=2)})
    arguments, altered = ALTERED[change]
    dataset = s3.dataset()
    assert dataset.alter(**arguments)["files_rewritten"] == 2
    assert found(dataset) == [altered(row) for row in rows(1, 2, 3).to_pylist()]
    assert len(set(map(str, oracle.schemas(s3.root, s3.fs)))) == 1
    assert s3.left_behind() == []


def test_schemas_are_unified(s3: S3Place, local_engine: str) -> None:
    texts = pa.table({"id": pa.array([2, 3], pa.int32()), "day": ["3", "4"]})
    s3.write_files({"a.parquet": rows(1, 2), "b.parquet": texts})
    dataset, before = s3.dataset(local_engine), s3.state()
    with pytest.raises(IncompatibleTypes, match=r"column 'day' is int32 in .*a\.parquet' and string in"):
        dataset.compact()
    assert s3.state() == before
    assert dataset.unify_schema(cast={"day": "int"})["files_rewritten"] == 1
    assert kept(before, s3) == ["/a.parquet"]
    assert found(dataset) == rows(1, 2, 3, 4).to_pylist()
    assert dataset.unify_schema()["files_rewritten"] == 0
    assert s3.left_behind() == []


def test_deletes_are_remembered_between_calls(s3: S3Place, local_engine: str) -> None:
    """The tombstones are an object beside the dataset."""

    def apply(*records: tuple[int, str, int, str]) -> Any:
        changes = pa.Table.from_pylist(
            [dict(zip(["id", "name", "at", "op"], each, strict=True)) for each in records]
        )
        # A new object each time: nothing is remembered in memory.
        return s3.dataset(local_engine).apply_changes(
            changes, ["id"], sequence_by="at", delete_when="op = 'd'", except_columns=["op"]
        )

    assert apply((1, "Ada", 10, "u"), (2, "Bob", 11, "u"))["inserted"] == 2
    assert apply((2, "", 20, "d"))["deleted"] == 1
    (tombstones,) = s3.left_behind()
    assert tombstones.endswith(".arrow")
    assert apply((2, "Ben", 15, "u"), (1, "Ann", 9, "u"))["ignored"] == 2
    assert apply((2, "Eve", 30, "u"))["inserted"] == 1
    assert found(s3.dataset()) == [{"id": 1, "name": "Ada", "at": 10}, {"id": 2, "name": "Eve", "at": 30}]


@pytest.mark.parametrize(
    ("change", "ids", "untouched"),
    [
        (lambda dataset: dataset.deduplicate("day", order_by="id"), [1, 3, 4, 5], "/c.parquet"),
        (
            lambda dataset: dataset.delete(keys=pa.table({"id": [0, 2, 77]}), key_columns="id"),
            [1, 3, 4, 5],
            "/c.parquet",
        ),
    ],
    ids=["deduplicate", "delete by keys"],
)
def test_rows_are_deleted_by_key(
    s3: S3Place, local_engine: str, change: Callable[[Dataset], Any], ids: list[int], untouched: str
) -> None:
    s3.write_files({"a.parquet": rows(1, 1), "b.parquet": rows(2, 2, start=2), "c.parquet": rows(5, 6, start=4)})
    before, dataset = s3.state(), s3.dataset(local_engine)
    assert change(dataset)["rows_matched"] == 2
    assert [row["id"] for row in found(dataset)] == ids
    assert kept(before, s3) == [untouched]
    assert s3.left_behind() == []


SOURCES = {
    "csv": b"id,day\n0,1\n1,2\n",
    "jsonl": b'{"id": 0, "day": 1}\n{"id": 1, "day": 2}\n',
}


@pytest.mark.parametrize("suffix", [*SOURCES, "parquet"])
def test_files_of_a_landing_zone_are_written(s3: S3Place, suffix: str) -> None:
    landing = f"{s3.root.rpartition('/')[0]}/landing"
    path = f"{landing}/1.{suffix}"
    if suffix == "parquet":
        oracle.write_files(landing, {"1.parquet": rows(1, 2)}, s3.fs)
    else:
        s3.fs.pipe_file(path, SOURCES[suffix])
    dataset = s3.dataset()
    stats = dataset.write_from(f"s3://{landing}/*.{suffix}")
    assert stats["source_files"] == [f"s3://{path}"]
    assert found(dataset) == rows(1, 2).to_pylist()
    assert s3.left_behind() == [path]


def test_queries_and_views(s3: S3Place, local_engine: str) -> None:
    dataset = s3.dataset(local_engine)
    assert not dataset.exists()
    dataset.write(rows(1, 2, 2, 3), partition_by="day", partition_columns="path")
    assert dataset.exists()
    assert dataset.schema.names == ["id", "day"]
    assert dataset.read(["id"], where="day = 2 AND id > 1").to_pylist() == [{"id": 2}]
    assert (dataset.count(), dataset.count("day >= 2")) == (4, 3)
    assert [(each["values"], each["rows"]) for each in dataset.partitions()] == [
        ({"day": 1}, 1),
        ({"day": 2}, 2),
        ({"day": 3}, 1),
    ]
    assert sum(batch.num_rows for batch in dataset.scan(limit=3)) == 3
    assert sorted(dataset.to_pyarrow().to_table().to_pylist(), key=str) == sorted(found(dataset), key=str)
    assert dataset.to_polars().collect()["day"].sum() == 8
    with duckdb.connect() as connection:
        assert dataset.to_duckdb(connection).aggregate("sum(day)").fetchall() == [(8,)]
    assert s3.left_behind() == []


def test_concurrent_alter_is_a_conflict(s3: S3Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that arrives meanwhile has the old schema."""
    s3.write_files({"a.parquet": rows(1)})
    dataset = s3.dataset()
    run = dataset.engine.run

    def slow(*arguments: Any) -> Any:
        s3.write_files({"b.parquet": rows(2, start=1)})
        return run(*arguments)

    monkeypatch.setattr(dataset.engine, "run", slow)
    with pytest.raises(CommitConflict, match=r"b\.parquet.*has the schema before the change"):
        dataset.alter(rename={"day": "date"})
    assert found(dataset) == rows(1, 2).to_pylist()
    assert s3.left_behind() == []


def test_small_files_that_an_edit_rewrites_become_one(s3: S3Place, local_engine: str) -> None:
    dataset = s3.dataset(local_engine)
    for number in range(4):
        dataset.write(rows(1, 2, start=2 * number))
    (stays, *_) = before = s3.state()
    assert dataset.update("id > 1", {"day": 7})["files_written"] == 1
    assert kept(before, s3) == [stays]
    source = pa.table({"id": range(0, 8, 2), "day": pa.array([9] * 4, pa.int32())})
    assert dataset.merge(source, "id", details=True)["files_written"] == 1
    days = [9, 2, 9, 7, 9, 7, 9, 7]
    assert dataset.read().to_pylist() == [{"id": at, "day": day} for at, day in enumerate(days)]
    assert s3.left_behind() == []

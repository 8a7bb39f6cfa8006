"""Reading: columns of files and paths, conditions, limits, counts, and views for other libraries."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from conftest import Place
from parketto import ColumnNotFound, InvalidArgument
from parketto.engines.base import Engine


def numbers(start: int, stop: int) -> pa.Table:
    return pa.table({"id": range(start, stop), "half": [n / 2 for n in range(start, stop)]})


@pytest.fixture
def days(local: Place) -> Place:
    """Hive's form: the day is only in the path."""
    local.write_files({f"day=2026-11-0{day}/a.parquet": numbers(day * 10, day * 10 + 10) for day in (1, 2, 3)})
    return local


class TestPathColumns:
    def test_columns_of_the_path_are_read(self, days: Place, engine: Engine) -> None:
        dataset = days.dataset(engine=engine)
        assert dataset.schema.field("day").type == pa.date32()
        found = dataset.read()
        assert found.schema.names == ["id", "half", "day"]
        assert set(found.column("day").to_pylist()) == {dt.date(2026, 11, day) for day in (1, 2, 3)}
        only = dataset.read(["day"])
        assert (only.num_rows, only.schema.names) == (30, ["day"])

    def test_types_come_from_all_paths(self, local: Place, engine: Engine) -> None:
        """A filter does not change the type of a column, and leading zeros are kept."""
        local.write_files({f"k={key}/a.parquet": pa.table({"n": [n]}) for n, key in enumerate(["01", "2A", "7"])})
        dataset = local.dataset(engine=engine)
        for wanted in ("01", "7"):
            found = dataset.read(partition_filter=f"k={wanted}")
            assert found.column("k").to_pylist() == [wanted]
        assert dataset.count("k = '01'") == 1
        dataset.delete("k = '7'", partition_filter="k=7")
        assert sorted(dataset.read().column("k").to_pylist()) == ["01", "2A"]

    def test_texts_like_null_are_refused_in_paths(self, local: Place, engine: Engine) -> None:
        local.write_files({"k=x/a.parquet": pa.table({"n": [1]})})
        before = local.state()
        for text in ("", "__HIVE_DEFAULT_PARTITION__"):
            with pytest.raises(InvalidArgument, match="cannot tell from NULL"):
                local.dataset(engine=engine).write(pa.table({"n": [2], "k": [text]}))
        assert local.state() == before
        local.dataset(engine=engine).write(pa.table({"n": [2], "k": pa.array([None], pa.string())}))
        assert sorted(local.dataset(engine=engine).read().column("k").to_pylist(), key=str) == [None, "x"]

    def test_texts_like_null_are_kept_in_files(self, local: Place, engine: Engine) -> None:
        texts = ["", "__HIVE_DEFAULT_PARTITION__", None, "x"]
        local.dataset(engine=engine).write(pa.table({"n": range(4), "k": texts}), partition_by="k")
        found = sorted(local.dataset(engine=engine).read().to_pylist(), key=lambda row: row["n"])
        assert [row["k"] for row in found] == texts


class TestConditions:
    @pytest.mark.parametrize(
        "where",
        ["id >= 25 AND half < 14", (pc.field("id") >= 25) & (pc.field("half") < 14.0)],
        ids=["SQL", "PyArrow"],
    )
    def test_rows_that_match(self, days: Place, engine: Engine, where: Any) -> None:
        dataset = days.dataset(engine=engine)
        assert sorted(dataset.read(["id"], where=where).column("id").to_pylist()) == [25, 26, 27]
        assert dataset.count(where) == 3

    def test_columns_of_the_condition_need_not_be_read(self, days: Place, engine: Engine) -> None:
        found = days.dataset(engine=engine).read(["half"], where="day = DATE '2026-11-02' AND id % 2 = 0")
        assert found.schema.names == ["half"]
        assert sorted(found.column("half").to_pylist()) == [10.0, 11.0, 12.0, 13.0, 14.0]

    def test_null_is_no_match(self, local: Place, engine: Engine) -> None:
        local.write_files({"a.parquet": pa.table({"x": [1, None, 3]})})
        assert local.dataset(engine=engine).read(where="x > 1").column("x").to_pylist() == [3]
        assert local.dataset(engine=engine).count("x <> 1") == 1

    def test_files_that_cannot_match_are_not_opened(self, days: Place) -> None:
        """Their bytes are gone, and nothing notices."""
        dataset = days.dataset(engine="pyarrow")
        path = dataset.files()[0].path
        size = days.fs.size(path)
        with days.fs.open(path, "r+b") as file:
            file.seek(4)
            file.write(bytes(size // 4))
        assert dataset.read(where="id >= 20").num_rows == 20
        assert dataset.count() == 30

    def test_footers_suffice_to_count_rows_that_all_match(self, days: Place) -> None:
        """No page is read: all but the footers is gone."""
        dataset = days.dataset(engine="pyarrow")
        for file in dataset.files():
            content = days.fs.cat_file(file.path)
            length = int.from_bytes(content[-8:-4], "little") + 8
            days.fs.pipe_file(file.path, b"PAR1" + bytes(len(content) - length - 4) + content[-length:])
        assert dataset.count("id >= 10") == 30
        assert dataset.count("id BETWEEN 20 AND 29 OR id < 0") == 10
        assert dataset.count("day = DATE '2026-11-03'") == 10

    @pytest.mark.parametrize("limit", [0, 1, 15, 1000])
    def test_limit(self, days: Place, engine: Engine, limit: int) -> None:
        assert days.dataset(engine=engine).read(limit=limit).num_rows == min(limit, 30)

    @pytest.mark.parametrize("limit", [-1, 1.5, True, "3"])
    def test_invalid_limit(self, days: Place, limit: Any) -> None:
        with pytest.raises(InvalidArgument, match="limit must be a whole number"):
            days.dataset(engine="pyarrow").read(limit=limit)

    def test_unknown_columns(self, days: Place, engine: Engine) -> None:
        with pytest.raises(ColumnNotFound, match="'nope'; available columns: 'id', 'half', 'day'"):
            days.dataset(engine=engine).read(["nope"])
        with pytest.raises(ColumnNotFound, match="nope"):
            days.dataset(engine=engine).count("nope = 1")
        with pytest.raises(InvalidArgument, match="columns is empty"):
            days.dataset(engine=engine).read([])
        assert days.dataset(engine=engine).read("id").column_names == ["id"]


def test_scan_streams_in_bounded_memory(local: Place) -> None:
    """Batches come before the last file is read, and are a fraction of the data."""
    rows = pa.table({"x": np.arange(400_000), "s": ["text" * 10] * 400_000})
    local.write_files({f"{n}.parquet": rows for n in range(4)}, row_group_size=50_000)
    reader = local.dataset(engine="pyarrow").scan()
    assert isinstance(reader, pa.RecordBatchReader)
    sizes = [batch.nbytes for batch in reader]
    assert len(sizes) > 8
    assert max(sizes) < sum(sizes) / 4


def test_dictionaries_and_types_are_read_as_they_are(local: Place, engine: Engine) -> None:
    kinds = pa.schema(
        {
            "d": pa.dictionary(pa.int8(), pa.string()),
            "v": pa.string_view(),
            "u": pa.uint64(),
            "t": pa.time64("ns"),
            "l": pa.large_list(pa.float16()),
        }
    )
    rows = pa.table(
        {
            "d": ["a", "b", None],
            "v": ["x", None, "z"],
            "u": [0, 2**64 - 1, None],
            "t": [1, 2, None],
            "l": [[1.5], [], None],
        },
        schema=kinds,
    )
    local.write_files({f"{n}.parquet": rows for n in range(2)})
    found = local.dataset(engine=engine).read()
    assert found.schema == kinds
    assert found.to_pylist() == rows.to_pylist() * 2
    assert local.dataset(engine=engine).read(where="u = 0").to_pylist() == [rows.to_pylist()[0]] * 2


def test_partitions(days: Place, engine: Engine) -> None:
    found = days.dataset(engine=engine).partitions()
    assert [(each["values"], each["files"], each["rows"]) for each in found] == [
        ({"day": dt.date(2026, 11, day)}, 1, 10) for day in (1, 2, 3)
    ]
    assert all(each["bytes"] > 0 for each in found)
    (only,) = days.dataset(engine=engine).partitions("day=2026-11-02")
    assert only["values"] == {"day": dt.date(2026, 11, 2)}


def test_partitions_of_categories(local: Place, engine: Engine) -> None:
    dataset = local.dataset(engine=engine)
    dataset.write(pa.table({"id": [1, 2], "p": pa.array(["a", "b"]).dictionary_encode()}), partition_by="p")
    assert [each["values"] for each in dataset.partitions()] == [{"p": "a"}, {"p": "b"}]


def test_exists(place: Place) -> None:
    dataset = place.dataset(engine="pyarrow")
    assert not dataset.exists()
    place.write_files({"a.parquet": pa.table({"x": [1]})})
    assert dataset.exists()


class TestViews:
    @pytest.fixture
    def mixed(self, days: Place) -> Place:
        days.write_files(
            {
                "day=2026-11-04/b.parquet": pa.table(
                    {"half": pa.array([1.5], pa.float32()), "id": pa.array([90], pa.int8())}
                )
            }
        )
        return days

    def expected(self, place: Place) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = place.dataset(engine="pyarrow").read().to_pylist()
        return sorted(rows, key=lambda row: row["id"])

    def test_pyarrow(self, mixed: Place) -> None:
        view = mixed.dataset(engine="pyarrow").to_pyarrow()
        found = view.to_table().to_pylist()
        assert sorted(found, key=lambda row: row["id"]) == self.expected(mixed)
        assert view.to_table(filter=pc.field("day") == dt.date(2026, 11, 4)).column("id").to_pylist() == [90]

    def test_polars(self, mixed: Place) -> None:
        import polars as pl

        view = mixed.dataset(engine="pyarrow").to_polars()
        assert isinstance(view, pl.LazyFrame)
        assert view.sort("id").collect().to_dicts() == self.expected(mixed)
        assert view.filter(pl.col("day") == dt.date(2026, 11, 4)).collect()["id"].to_list() == [90]

    def test_duckdb(self, mixed: Place) -> None:
        import duckdb

        with duckdb.connect() as connection:
            view = mixed.dataset(engine="pyarrow").to_duckdb(connection)
            rows = view.order("id").fetchall()
            assert rows == [tuple(row.values()) for row in self.expected(mixed)]
            assert view.filter("day = DATE '2026-11-04'").project("id").fetchall() == [(90,)]

    def test_spark(self, mixed: Place, spark: Any) -> None:
        rows = mixed.dataset(engine="pyarrow").to_spark(spark).orderBy("id").collect()
        assert [row.asDict() for row in rows] == self.expected(mixed)

    def test_spark_reads_equal_schemas_itself(self, days: Place, spark: Any) -> None:
        frame = days.dataset(engine="spark").to_spark()
        assert [row.asDict() for row in frame.orderBy("id").collect()] == self.expected(days)
        assert len(frame.inputFiles()) == 3

    def test_view_is_one_snapshot(self, days: Place) -> None:
        view = days.dataset(engine="pyarrow").to_pyarrow()
        days.write_files({"day=2026-11-09/z.parquet": numbers(500, 501)})
        assert view.count_rows() == 30


@pytest.mark.parametrize("form", ["files", "path"])
def test_what_was_read_can_be_written_back(local: Place, engine: Engine, form: Any) -> None:
    """No column is lost, and the partitions stay as they were."""
    dataset = local.dataset(engine=engine)
    rows = pa.table({"n": [1, 2, 3], "day": [7, 7, 8]})
    dataset.write(rows, partition_by="day", partition_columns=form)
    dataset.write(dataset.read(), mode="overwrite")
    assert sorted(dataset.read().to_pylist(), key=lambda row: row["n"]) == rows.to_pylist()
    assert {file.partition for file in dataset.files()} == {(("day", "7"),), (("day", "8"),)}
    assert {"day" in file.schema.names for file in dataset.files()} == {form == "files"}
    dataset.write(dataset.read(), mode="overwrite", partition_by=[])
    assert {file.partition for file in dataset.files()} == {()}

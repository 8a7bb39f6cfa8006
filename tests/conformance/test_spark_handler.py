"""SparkParquetHandler from the outside: what goes in, what comes out, and that both ways of reading agree.

How merging, compacting and ordering behave is tested in depth elsewhere; here it is that the handler hands it on.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import inspect
import os
import re
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import functions as F  # noqa: N812 - the customary name
from pyspark.sql import types as T  # noqa: N812

from conftest import Place
from helpers import oracle
from parketto import SparkParquetHandler
from parketto.engines.spark import reading
from parketto.errors import ColumnNotFound, CommitFailed, InvalidArgument, UnreadableFile

pytestmark = pytest.mark.own_spark

TABLE = pa.table({"id": pa.array(range(10), pa.int64()), "name": [f"n{n}" for n in range(10)]})
UTC = dt.timezone.utc  # noqa: UP017 - shorter beside the values
NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
HOSTILE = ["a.b", "`", "", 'x y;"', "é\n"]


@pytest.fixture
def handler(spark: Any) -> Iterator[SparkParquetHandler]:
    made = SparkParquetHandler(spark)
    yield made
    made.close()


def written(place: Place) -> pa.Table:
    """All files put together, read without us."""
    found = [oracle.read_file(path, place.fs) for path in oracle.data_files(place.root, place.fs)]
    return pa.concat_tables(found)


def by_id(rows: Any) -> list[dict[str, Any]]:
    table = rows if isinstance(rows, pa.Table) else rows.toArrow()
    return sorted(table.to_pylist(), key=lambda row: row["id"])


def pairs(*rows: tuple[Any, Any]) -> pa.Table:
    return pa.table({"id": pa.array([id_ for id_, _ in rows], pa.int64()), "v": [value for _, value in rows]})


class ReadOnly(DirFileSystem):  # type: ignore[misc]
    """Storage whose owner has not given us leave to write."""

    def makedirs(self, *_args: Any, **_options: Any) -> None:
        raise PermissionError("403: no write access to this bucket")

    mkdir = makedirs


class TestInitialisation:
    def test_default_filesystem(self, spark: Any, local: Place) -> None:
        local.write_files({"a.parquet": TABLE})
        assert SparkParquetHandler().read_parquet(local.root).count() == 10

    def test_given_filesystem(self, spark: Any, local: Place) -> None:
        """Stands for remote storage: Spark itself knows nothing of this filesystem."""
        fs = DirFileSystem(local.root, fsspec.filesystem("file"))
        handler = SparkParquetHandler(spark, filesystem=fs)
        handler.write_parquet_dataset(TABLE, "inside")
        handler.write_parquet(TABLE, "single/one.parquet")
        assert sorted(path.split("/")[0] for path in local.files()) == ["inside", "single"]
        assert by_id(handler.read_parquet("inside")) == TABLE.to_pylist()
        assert by_id(handler.read_parquet("single/one.parquet", columns=["id"])) == [{"id": n} for n in range(10)]
        query = "SELECT max(id) AS top FROM t"
        assert handler.execute_sql(query, tables={"t": "inside"}).collect()[0].top == 9
        handler.close()

    def test_storage_options_reach_the_filesystem(self, spark: Any, local: Place) -> None:
        local.write_files({"a.parquet": TABLE})
        options = {"path": os.path.dirname(local.root), "target_protocol": "file"}
        handler = SparkParquetHandler(storage_options=options)
        assert handler.read_parquet("dir://events").count() == 10

    def test_a_session_that_is_none_is_refused(self) -> None:
        with pytest.raises(InvalidArgument, match="SparkSession"):
            _ = SparkParquetHandler("local[2]").spark  # type: ignore[arg-type]


class TestWriteDataset:
    def test_folder_and_unique_names(self, handler: SparkParquetHandler, local: Place) -> None:
        for _ in range(3):
            stats = handler.write_parquet_dataset(TABLE, local.root)
        assert stats["rows_written"] == 10
        assert len(set(local.files())) == 3
        assert all(re.fullmatch(r"part-[0-9a-f-]{8,}\.parquet", name) for name in local.files())
        assert written(local).slice(0, 10).equals(TABLE)

    def test_split_by_rows(self, handler: SparkParquetHandler, local: Place) -> None:
        handler.write_parquet_dataset(TABLE, local.root, max_rows_per_file=4, compression="gzip")
        files = oracle.data_files(local.root)
        assert sorted(oracle.read_file(path).num_rows for path in files) == [2, 4, 4]
        footers = [pq.ParquetFile(path).metadata.row_group(0).column(0) for path in files]
        assert [column.compression for column in footers] == ["GZIP"] * 3
        assert by_id(handler.read_parquet(local.root)) == TABLE.to_pylist()

    def test_template_numbers_files(self, handler: SparkParquetHandler, local: Place) -> None:
        for _ in range(2):
            handler.write_parquet_dataset(
                TABLE, local.root, max_rows_per_file=5, basename_template="data_{}.parquet"
            )
        assert local.files() == [f"data_00{n}.parquet" for n in range(4)]

    def test_timestamps_sort_chronologically(self, handler: SparkParquetHandler, local: Place) -> None:
        for number in range(3):
            handler.write_parquet_dataset(pairs((number, "x")), local.root, naming="timestamp")
        assert written(local).column("id").to_pylist() == [0, 1, 2]

    def test_empty_table_keeps_its_columns(self, handler: SparkParquetHandler, local: Place) -> None:
        handler.write_parquet_dataset(TABLE.slice(0, 0), local.root)
        assert written(local).schema.equals(TABLE.schema)
        assert handler.read_parquet(local.root).columns == ["id", "name"]
        assert handler.read_parquet(local.root).count() == 0

    @pytest.mark.parametrize("mode", ["append", "overwrite"])
    @pytest.mark.parametrize("exists", [False, True])
    def test_first_write(self, handler: SparkParquetHandler, local: Place, mode: Any, exists: bool) -> None:
        if exists:
            os.makedirs(local.root)
        handler.write_parquet_dataset(TABLE, local.root, mode=mode)
        assert written(local).equals(TABLE)

    def test_overwrite_replaces_parquet_and_nothing_else(self, handler: SparkParquetHandler, local: Place) -> None:
        local.write_files({"old.parquet": TABLE, "day=1/old.parquet": TABLE})
        for name in ("_metadata", "notes.txt"):
            Path(local.root, name).write_text("mine")
        handler.write_parquet_dataset(pairs((1, "new")), local.root, mode="overwrite")
        assert written(local).to_pylist() == [{"id": 1, "v": "new"}]
        assert Path(local.root, "_metadata").read_text() == Path(local.root, "notes.txt").read_text() == "mine"

    def test_append_leaves_the_others_alone(self, handler: SparkParquetHandler, local: Place) -> None:
        local.write_files({"old.parquet": TABLE})
        before = local.state()
        handler.write_parquet_dataset(TABLE, local.root)
        assert before.items() < local.state().items()
        assert handler.read_parquet(local.root).count() == 20

    def test_concurrent_writers_never_collide(self, handler: SparkParquetHandler, local: Place) -> None:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: handler.write_parquet_dataset(TABLE, local.root), range(6)))
        assert len(local.files()) == 6

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"mode": "replace"}, "'append', 'overwrite'"),
            ({"max_rows_per_file": 0}, "greater than 0"),
            ({"max_rows_per_file": -1}, "greater than 0"),
            ({"compression": "zip"}, "'snappy', 'gzip'"),
            ({"partition_by": ["nope"]}, "nope"),
        ],
    )
    def test_bad_arguments(
        self, handler: SparkParquetHandler, local: Place, arguments: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(ValueError, match=message):
            handler.write_parquet_dataset(TABLE, local.root, **arguments)
        assert not os.path.exists(local.root)

    def test_path_that_is_a_file(self, handler: SparkParquetHandler, local: Place) -> None:
        os.makedirs(os.path.dirname(local.root))
        Path(local.root).write_text("mine")
        with pytest.raises(NotADirectoryError, match="directory"):
            handler.write_parquet_dataset(TABLE, local.root)
        assert Path(local.root).read_text() == "mine"

    def test_storage_without_write_access(self, spark: Any, local: Place) -> None:
        fs = ReadOnly(os.path.dirname(local.root), fsspec.filesystem("file"))
        with pytest.raises(CommitFailed, match="no permission") as caught:
            SparkParquetHandler(filesystem=fs).write_parquet_dataset(TABLE, "events")
        assert isinstance(caught.value.__cause__, PermissionError)


class TestInputs:
    """Everything that has rows can be written and merged."""

    MAKERS: ClassVar[dict[str, Callable[[Any, str], Any]]] = {
        "spark": lambda spark, _: spark.createDataFrame(TABLE).repartition(3),
        "table": lambda *_: TABLE,
        "reader": lambda *_: TABLE.to_reader(max_chunksize=3),
        "pandas": lambda *_: TABLE.to_pandas(),
        "polars": lambda *_: pl.from_arrow(TABLE).with_columns(pl.col("name").cast(pl.Utf8)),
        "lazy": lambda *_: pl.from_arrow(TABLE).lazy(),
        "file": lambda _, folder: f"{folder}/a.parquet",
        "dataset": lambda _, folder: Path(folder),
    }

    @pytest.mark.parametrize("kind", list(MAKERS))
    def test_written_and_merged(
        self, handler: SparkParquetHandler, local: Place, tmp_path: Path, kind: str
    ) -> None:
        folder = str(tmp_path / "source")
        oracle.write_files(folder, {"a.parquet": TABLE})
        handler.write_parquet_dataset(self.MAKERS[kind](handler.spark, folder), local.root)
        assert by_id(written(local)) == TABLE.to_pylist()
        stats = handler.merge_parquet_dataset(self.MAKERS[kind](handler.spark, folder), local.root, ["id"])
        assert stats == {"inserted": 0, "updated": 10, "deleted": 0, "total": 10}
        assert by_id(written(local)) == TABLE.to_pylist()

    def test_frame_keeps_nullability_and_types(self, handler: SparkParquetHandler, local: Place) -> None:
        frame = handler.spark.sql(
            "SELECT 1 AS id, cast(null AS string) AS s, cast(1.5 AS decimal(38, 18)) AS d, "
            "timestamp_ntz'1960-01-01 00:00:00.000001' AS z, interval '1 02:00:00' day to second AS i, "
            "interval '3' day AS days, array(map('k', cast(null AS date))) AS a, null AS nothing"
        )
        handler.write_parquet_dataset(frame, local.root)
        table = written(local)
        assert [item.nullable for item in table.schema] == [False, True, False, False, False, False, False, True]
        assert table.to_pylist() == [
            {
                "id": 1,
                "s": None,
                "d": Decimal("1.5"),
                "z": dt.datetime(1960, 1, 1, 0, 0, 0, 1),  # noqa: DTZ001
                "i": 93_600_000_000,  # as Spark stores it; a note says that it is an interval
                "days": 259_200_000_000,
                "a": [[("k", None)]],
                "nothing": None,
            }
        ]
        shown = dict(handler.spark.read.parquet(local.root).dtypes)
        assert (shown["i"], shown["days"]) == ("interval day to second", "interval day")

    def test_instants_do_not_depend_on_the_zone_of_the_session(
        self, handler: SparkParquetHandler, local: Place, zone: Any
    ) -> None:
        zone("Asia/Tokyo")
        frame = handler.spark.sql("SELECT 1 AS id, timestamp'2024-01-01 00:00:00' AS t, array(now()) AS l")
        handler.write_parquet_dataset(frame, local.root)
        handler.merge_parquet_dataset(frame, local.root, "id")
        assert written(local)["t"].to_pylist() == [dt.datetime(2023, 12, 31, 15, tzinfo=UTC)]
        read = handler.read_parquet(local.root).selectExpr("unix_micros(t) AS t").collect()
        assert read[0].t == 1704034800000000

    def test_empty_frame_keeps_its_columns(self, handler: SparkParquetHandler, local: Place) -> None:
        schema = T.StructType([T.StructField("id", T.IntegerType(), False), T.StructField("s", T.StringType())])
        handler.write_parquet_dataset(handler.spark.createDataFrame([], schema), local.root)
        expected = pa.schema([pa.field("id", pa.int32(), False), pa.field("s", pa.string())])
        assert written(local).schema.equals(expected)

    def test_frame_that_says_something_else_each_time_is_asked_once(
        self, handler: SparkParquetHandler, local: Place
    ) -> None:
        handler.write_parquet_dataset(handler.spark.range(50).selectExpr("id", "0D AS v"), local.root)
        frame = handler.spark.range(0, 100, 1, 4).select((F.rand() * 1000).cast("long").alias("id"))
        frame = frame.groupBy("id").count().select("id", F.rand().alias("v"))
        stats = handler.merge_parquet_dataset(frame, local.root, "id")
        ids = written(local)["id"].to_pylist()
        assert len(ids) == len(set(ids)) == stats["total"] == 50 + stats["inserted"]
        assert sum(value != 0 for value in written(local)["v"].to_pylist()) == stats["inserted"] + stats["updated"]

    @pytest.mark.parametrize("partition_by", [None, ["a.b"]])
    def test_hostile_names(self, handler: SparkParquetHandler, local: Place, partition_by: Any) -> None:
        def frame(*rows: tuple[int, ...]) -> Any:
            return handler.spark.createDataFrame(list(rows), HOSTILE)

        handler.write_parquet_dataset(frame((1, 2, 3, 4, 5)), local.root, partition_by=partition_by)
        stats = handler.merge_parquet_dataset(frame((1, 9, 9, 9, 9), (2, 8, 8, 8, 8)), local.root, HOSTILE[:1])
        assert stats == {"inserted": 1, "updated": 1, "deleted": 0, "total": 2}
        assert sorted(map(tuple, handler.read_parquet(local.root).collect())) == [(1, 9, 9, 9, 9), (2, 8, 8, 8, 8)]

    @pytest.mark.parametrize(
        ("query", "message"),
        [
            ("SELECT 1 AS id, 2 AS id", "distinct"),
            ("SELECT make_interval(1, 2) AS id", "interval"),
            ("SELECT named_struct() AS id", "struct"),
        ],
    )
    def test_frames_that_cannot_be_written(
        self, handler: SparkParquetHandler, local: Place, query: str, message: str
    ) -> None:
        frame = handler.spark.sql(query)
        with pytest.raises(InvalidArgument, match=message):
            handler.write_parquet_dataset(frame, local.root)
        with pytest.raises(InvalidArgument, match=message):
            handler.merge_parquet_dataset(frame, local.root, "id")
        assert not os.path.exists(local.root)

    def test_frame_without_columns_does_not_lose_its_rows(
        self, handler: SparkParquetHandler, local: Place
    ) -> None:
        with pytest.raises(InvalidArgument, match="without any column"):
            handler.write_parquet_dataset(handler.spark.range(3).select(), local.root)

    def test_uuids_travel_through_spark(self, handler: SparkParquetHandler, local: Place, tmp_path: Path) -> None:
        table = pa.table({"id": [1, 2], "u": pa.array([b"u" * 16, None], pa.uuid()), "k": ["a", "b"]})
        oracle.write_files(str(tmp_path / "source"), {"a.parquet": table})
        handler.write_parquet_dataset(str(tmp_path / "source"), local.root, partition_by="k")
        assert written(local).sort_by("id").equals(table)

    def test_something_without_rows(self, handler: SparkParquetHandler, local: Place) -> None:
        with pytest.raises(InvalidArgument, match="not int"):
            handler.write_parquet_dataset(7, local.root)


@pytest.fixture
def zone(spark: Any) -> Iterator[Callable[[str], None]]:
    before = spark.conf.get("spark.sql.session.timeZone")
    yield lambda name: spark.conf.set("spark.sql.session.timeZone", name)
    spark.conf.set("spark.sql.session.timeZone", before)


def counted(values: list[int | None], kind: pa.DataType) -> pa.Array:
    return pa.array(values, pa.int64()).cast(kind)


def nested(values: list[Any], plain: pa.DataType, kind: pa.DataType) -> pa.Array:
    return pa.array(values, plain).cast(kind)


def moment(micros: int, zone: Any = None) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=zone) + dt.timedelta(microseconds=micros)


FOLD = 1729992600  # half past two in Berlin, for the second time on that day
COLUMNS: dict[str, tuple[pa.Array, str, list[Any]]] = {
    # Name: the column, Spark's type for it, and its values there.
    "uint8": (pa.array([255, None], pa.uint8()), "smallint", [255, None]),
    "uint16": (pa.array([65535, None], pa.uint16()), "int", [65535, None]),
    "uint32": (pa.array([2**32 - 1, None], pa.uint32()), "bigint", [2**32 - 1, None]),
    "uint64": (pa.array([2**64 - 1, None], pa.uint64()), "decimal(20,0)", [Decimal(2**64 - 1), None]),
    "int8": (pa.array([-128, None], pa.int8()), "tinyint", [-128, None]),
    "float16": (pa.array([1.5, None], pa.float16()), "float", [1.5, None]),
    "float64": (pa.array([float("-inf"), None]), "double", [float("-inf"), None]),
    "bool": (pa.array([True, None]), "boolean", [True, None]),
    "s": (counted([-1, None], pa.timestamp("s")), "timestamp_ntz", [moment(-1_000_000), None]),
    "ms": (counted([-1, None], pa.timestamp("ms")), "timestamp_ntz", [moment(-1000), None]),
    "us": (counted([-1, None], pa.timestamp("us")), "timestamp_ntz", [moment(-1), None]),
    "ns": (counted([-1, 1999], pa.timestamp("ns")), "timestamp_ntz", [moment(-1), moment(1)]),
    "ms utc": (counted([-1, None], pa.timestamp("ms", "UTC")), "timestamp", [moment(-1000, UTC), None]),
    "us zone": (counted([-1, None], pa.timestamp("us", "Asia/Tokyo")), "timestamp", [moment(-1, UTC), None]),
    "ns utc": (counted([-1001, None], pa.timestamp("ns", "UTC")), "timestamp", [moment(-2, UTC), None]),
    "ns zone": (
        counted([FOLD * 10**9 + 1, (FOLD - 3600) * 10**9], pa.timestamp("ns", "Europe/Berlin")),
        "timestamp",
        [moment(FOLD * 10**6, UTC), moment((FOLD - 3600) * 10**6, UTC)],
    ),
    "year 1": (
        counted([-62135596800_000_000, None], pa.timestamp("us", "UTC")),
        "timestamp",
        [dt.datetime(1, 1, 1, tzinfo=UTC), None],
    ),
    "date32": (pa.array([dt.date(1582, 10, 1), None], pa.date32()), "date", [dt.date(1582, 10, 1), None]),
    "date64": (pa.array([dt.date(1969, 12, 31), None], pa.date64()), "date", [dt.date(1969, 12, 31), None]),
    "time32": (pa.array([1, None], pa.int32()).cast(pa.time32("ms")), "bigint", [1_000_000, None]),
    "time64": (counted([1, None], pa.time64("us")), "bigint", [1000, None]),
    "duration s": (counted([-1, None], pa.duration("s")), "interval day to second", [dt.timedelta(0, -1), None]),
    "duration ns": (
        counted([1999, None], pa.duration("ns")),
        "interval day to second",
        [dt.timedelta(microseconds=1), None],
    ),
    "decimal128": (
        pa.array([Decimal("1.50"), None], pa.decimal128(38, 2)),
        "decimal(38,2)",
        [Decimal("1.5"), None],
    ),
    "decimal256": (
        pa.array([Decimal("1.50"), None], pa.decimal256(10, 2)),
        "decimal(10,2)",
        [Decimal("1.5"), None],
    ),
    "decimal wide": (pa.array([Decimal("1.50"), None], pa.decimal256(60, 2)), "string", ["1.50", None]),
    "string": (pa.array(["é", None]), "string", ["é", None]),
    "binary": (pa.array([b"\x00\xff", None]), "binary", [b"\x00\xff", None]),
    "large string": (pa.array(["x", None], pa.large_string()), "string", ["x", None]),
    "large binary": (pa.array([b"x", None], pa.large_binary()), "binary", [b"x", None]),
    "fixed binary": (pa.array([b"ab", None], pa.binary(2)), "binary", [b"ab", None]),
    "dictionary": (pa.array(["x", None]).dictionary_encode(), "string", ["x", None]),
    "null": (pa.nulls(2), "void", [None, None]),
    "uuid": (pa.array([b"u" * 16, None], pa.uuid()), "binary", [b"u" * 16, None]),
    "json": (pa.array(["{}", None], pa.json_()), "string", ["{}", None]),
    "list": (pa.array([[1, None], None], pa.list_(pa.int32())), "array<int>", [[1, None], None]),
    "large list": (pa.array([["x"], None], pa.large_list(pa.large_string())), "array<string>", [["x"], None]),
    "fixed list": (pa.array([[1, 2], None], pa.list_(pa.int64(), 2)), "array<bigint>", [[1, 2], None]),
    "list of ns": (
        nested([[-1, None], None], pa.list_(pa.int64()), pa.list_(pa.timestamp("ns"))),
        "array<timestamp_ntz>",
        [[moment(-1), None], None],
    ),
    "list of times": (
        nested([[1], None], pa.list_(pa.int32()), pa.list_(pa.time32("ms"))),
        "array<bigint>",
        [[1_000_000], None],
    ),
    "list of nulls": (pa.array([[None], []], pa.list_(pa.null())), "array<void>", [[None], []]),
    "struct": (
        nested(
            [{"a": -1, "b": 5}, None],
            pa.struct({"a": pa.int64(), "b": pa.uint64()}),
            pa.struct({"a": pa.timestamp("ns", "UTC"), "b": pa.uint64()}),
        ),
        "struct<a:timestamp,b:decimal(20,0)>",
        [{"a": moment(-1, UTC), "b": Decimal(5)}, None],
    ),
    "struct a A": (pa.array([{"a": 1, "A": 2}, None]), "struct<a:bigint,A:bigint>", [{"a": 1, "A": 2}, None]),
    "map": (
        nested(
            [[(1, -1), (2, None)], None], pa.map_(pa.int64(), pa.int64()), pa.map_(pa.int64(), pa.timestamp("ns"))
        ),
        "map<bigint,timestamp_ntz>",
        [[(1, moment(-1)), (2, None)], None],
    ),
    "map of categories": (
        pa.MapArray.from_arrays(pa.array([0, 1, 1]), pa.array(["k"]), pa.array(["v"]).dictionary_encode()),
        "map<string,string>",
        [[("k", "v")], []],
    ),
    "deep": (
        pa.array(
            [[{"x": [("k", [1.5])]}], None],
            pa.list_(pa.struct({"x": pa.map_(pa.string(), pa.list_(pa.float32()))})),
        ),
        "array<struct<x:map<string,array<float>>>>",
        [[{"x": [("k", [1.5])]}], None],
    ),
}


@pytest.fixture(scope="module")
def every_type(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every type once alone, in a folder of its own; what Spark says, by the name of the type.

    Columns that Spark's own reader can have are read by it, and once more through Arrow.
    """
    root = tmp_path_factory.mktemp("types")
    handler = SparkParquetHandler(spark)
    found: dict[str, Any] = {}
    original = reading._spark_can
    alone = [
        name
        for name, (column, _, _) in COLUMNS.items()
        if reading._same(pa.table({"v": column}).schema.field(0).type)
    ]
    groups = {"spark": alone, "arrow": [name for name in COLUMNS if name not in alone], "forced": alone}
    for group, names in groups.items():
        path = str(root / f"{group}.parquet")
        pq.write_table(pa.table({name: COLUMNS[name][0] for name in names}), path)
        with pytest.MonkeyPatch.context() as patch:
            if group == "forced":
                patch.setattr(reading, "_spark_can", lambda *_: False)
            else:
                patch.setattr(reading, "_spark_can", lambda *given, g=group: _noted(found, g, original(*given)))
            frame = handler.read_parquet(path)
        types = {item.name: item.dataType.simpleString() for item in frame.schema}
        rows = frame.toArrow()
        found[group] = {name: (types[name], rows.column(name).to_pylist()) for name in names}
    return found


def _noted(found: dict[str, Any], group: str, answer: bool) -> bool:
    found[f"{group} was read by Spark"] = answer
    return answer


class TestTypes:
    @pytest.mark.parametrize("name", list(COLUMNS))
    def test_every_type_arrives(self, every_type: dict[str, Any], name: str) -> None:
        _, kind, values = COLUMNS[name]
        found = (every_type["spark"] | every_type["arrow"])[name]
        assert found == (kind, values)

    def test_both_ways_of_reading_agree(self, every_type: dict[str, Any]) -> None:
        assert every_type["spark was read by Spark"]
        assert not every_type["arrow was read by Spark"]
        assert len(every_type["spark"]) > 10
        assert every_type["forced"] == every_type["spark"]

    def test_non_nullable_columns(self, handler: SparkParquetHandler, local: Place) -> None:
        schema = pa.schema([pa.field("id", pa.int64(), False), pa.field("u", pa.uint64(), False)])
        local.write_files({"a.parquet": pa.table([[1], [2]], schema=schema)})
        assert by_id(handler.read_parquet(local.root)) == [{"id": 1, "u": Decimal(2)}]

    def test_int96_timestamps(self, handler: SparkParquetHandler, local: Place) -> None:
        table = pa.table({"t": counted([-1000, None], pa.timestamp("ns"))})
        local.write_files({"a.parquet": table}, use_deprecated_int96_timestamps=True)
        found = handler.read_parquet(local.root)
        assert found.dtypes == [("t", "timestamp")]
        assert found.toArrow()["t"].to_pylist() == [moment(-1, dt.UTC), None]

    @pytest.mark.parametrize("zone_name", ["Asia/Tokyo", "America/New_York"])
    def test_zone_of_the_session_changes_no_instant(
        self, handler: SparkParquetHandler, local: Place, zone: Any, zone_name: str
    ) -> None:
        zone(zone_name)
        kinds = {"native": pa.timestamp("us", "UTC"), "arrow": pa.timestamp("ns", "Europe/Berlin")}
        local.write_files({"a.parquet": pa.table({name: counted([-1000], kind) for name, kind in kinds.items()})})
        for columns, micros in ((["native"], -1000), (["native", "arrow"], -1000), (["arrow"], -1)):
            frame = handler.read_parquet(local.root, columns=columns)
            assert frame.selectExpr(f"unix_micros({columns[0]}) AS t").collect()[0].t == micros

    @pytest.mark.parametrize("codec", ["snappy", "gzip", "lz4", "zstd", "brotli", "none"])
    def test_codecs(self, handler: SparkParquetHandler, local: Place, codec: str) -> None:
        path = f"{local.root}/{codec}.parquet"
        handler.write_parquet(TABLE, path, compression=codec)
        stored = pq.ParquetFile(path).metadata.row_group(0).column(0).compression
        assert stored == {"none": "UNCOMPRESSED"}.get(codec, codec.upper())
        assert by_id(handler.read_parquet(path)) == TABLE.to_pylist()


def both_ways(handler: SparkParquetHandler, path: Any, **options: Any) -> tuple[list[tuple[str, str]], list[Any]]:
    """Columns with their types, and sorted rows: read as always, and then again through Arrow."""
    results = []
    for forced in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            if forced:
                patch.setattr(reading, "_spark_can", lambda *_: False)
            frame = handler.read_parquet(path, **options)
        rows = sorted((tuple(row) for row in frame.collect()), key=repr)
        results.append(([(item.name, item.dataType.simpleString()) for item in frame.schema], rows))
    assert results[0] == results[1]
    return results[0]


class TestPartitions:
    @pytest.mark.parametrize(
        ("folders", "kind", "values"),
        [
            (["k=1", "k=-2", f"k={NULL_FOLDER}"], "bigint", [1, -2, None]),
            (["k=2024-01-31", f"k={NULL_FOLDER}"], "date", [dt.date(2024, 1, 31), None]),
            (["k=a", "k=b%2Fc", "k=d e", f"k={NULL_FOLDER}"], "string", ["a", "b/c", "d e", None]),
            (["k=01", "k=2"], "string", ["01", "2"]),
            (["k=caf%C3%A9", "k=tè"], "string", ["café", "tè"]),
            (["k=", "k=a"], "string", ["", "a"]),
            (["raw/k=1", "more/k=2"], "bigint", [1, 2]),
            (["k=1/raw", "k=2/raw"], "bigint", [1, 2]),
        ],
    )
    def test_columns_that_stand_only_in_the_path(
        self, handler: SparkParquetHandler, local: Place, folders: list[str], kind: str, values: list[Any]
    ) -> None:
        local.write_files({f"{folder}/a.parquet": pa.table({"n": [at]}) for at, folder in enumerate(folders)})
        found = both_ways(handler, local.root)
        assert found == ([("n", "bigint"), ("k", kind)], list(enumerate(values)))

    def test_a_folder_between_two_partitions(self, handler: SparkParquetHandler, local: Place) -> None:
        local.write_files({"y=1/raw/k=2/a.parquet": pa.table({"n": [3]})})
        assert both_ways(handler, local.root)[1] == [(3, 1, 2)]

    def test_names_that_differ_only_in_case_are_two_columns(
        self, handler: SparkParquetHandler, local: Place
    ) -> None:
        local.write_files({"N=1/a.parquet": pa.table({"n": [3], "x": [4], "X": [5]})})
        assert both_ways(handler, local.root)[1] == [(3, 4, 5, 1)]
        assert both_ways(handler, local.root, columns=["X"])[1] == [(5,)]

    def test_in_the_path_and_in_the_file_the_file_counts(self, handler: SparkParquetHandler, local: Place) -> None:
        local.write_files({"k=1/a.parquet": pa.table({"n": [3], "k": ["one"]})})
        assert both_ways(handler, local.root) == ([("n", "bigint"), ("k", "string")], [(3, "one")])

    @pytest.mark.parametrize(
        "columns", [["n"], ["k"], ["j"], ["k", "j"], ["j", "k"], ["j", "n"], ["m", "k", "n"], ["n", "m", "k", "j"]]
    )
    def test_selected_columns_and_no_others_in_that_order(
        self, handler: SparkParquetHandler, local: Place, columns: list[str]
    ) -> None:
        row = {"n": 3, "m": "x", "k": 1, "j": "a"}
        local.write_files({"k=1/j=a/a.parquet": pa.table({"n": [3], "m": ["x"]})})
        found, rows = both_ways(handler, local.root, columns=columns)
        assert [name for name, _ in found] == columns
        assert rows == [tuple(row[name] for name in columns)]

    def test_filter(self, handler: SparkParquetHandler, local: Place) -> None:
        local.write_files({f"k={n}/a.parquet": pa.table({"n": [n]}) for n in range(3)})
        assert both_ways(handler, local.root, partition_filter={"k": [0, 2]})[1] == [(0, 0), (2, 2)]
        assert both_ways(handler, local.root, partition_filter="k=1", columns=["n"])[1] == [(1,)]
        with pytest.raises(FileNotFoundError):
            handler.read_parquet(local.root, partition_filter="k=9")


class TestRead:
    @pytest.mark.parametrize(
        "name",
        [
            "a b",
            "a'b",
            'a"b',
            "a[b]",
            "a{b,c}",
            "a;b",
            "a*b",
            "a?",
            "a%20b",
            "%",
            "a:b",
            "a#b",
            "é",
            "k=v",
            "_x",
            ".x",
        ],
    )
    def test_paths_with_any_characters(self, handler: SparkParquetHandler, tmp_path: Path, name: str) -> None:
        """A folder of that name and a file of that name: all rows of both, and of nothing else."""
        folder, file = str(tmp_path / name), str(tmp_path / "files" / f"{name}.parquet")
        handler.write_parquet_dataset(pairs((1, "x")), folder)
        handler.write_parquet(pairs((2, "y")), file)
        both = handler.read_parquet(folder).union(handler.read_parquet(file))
        assert by_id(both) == [{"id": 1, "v": "x"}, {"id": 2, "v": "y"}]

    def test_all_folders_below(self, handler: SparkParquetHandler, local: Place) -> None:
        local.write_files({"a.parquet": pairs((1, "a")), "deep/down/b.parquet": pairs((2, "b"))})
        Path(local.root, "notes.txt").write_text("no data")
        assert by_id(handler.read_parquet(Path(local.root))) == [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]

    def test_a_file_in_a_partition_is_only_a_file(self, handler: SparkParquetHandler, local: Place) -> None:
        local.write_files({"k=1/a.parquet": TABLE})
        assert handler.read_parquet(f"{local.root}/k=1/a.parquet").columns == ["id", "name"]

    def test_files_with_columns_in_another_order(self, handler: SparkParquetHandler, local: Place) -> None:
        local.write_files({"a.parquet": pairs((1, "a")), "b.parquet": pairs((2, "b")).select(["v", "id"])})
        assert both_ways(handler, local.root)[1] == [(1, "a"), (2, "b")]

    def test_hostile_names(self, handler: SparkParquetHandler, local: Place) -> None:
        local.write_files({"k=7/a.parquet": pa.table({name: [at] for at, name in enumerate(HOSTILE)})})
        assert both_ways(handler, local.root)[1] == [(0, 1, 2, 3, 4, 7)]
        assert both_ways(handler, local.root, columns=["k", "`", "a.b", ""])[1] == [(7, 1, 0, 2)]

    @pytest.mark.parametrize(
        ("columns", "error", "message"),
        [
            (["id", "nope"], ColumnNotFound, "'nope'; available columns: 'id', 'name', 'k'"),
            (["ID"], ColumnNotFound, "'ID'"),
            (["id", "id"], InvalidArgument, "twice"),
            ([], InvalidArgument, "at least one"),
            ("id", InvalidArgument, "list of column names"),
        ],
    )
    def test_columns_that_make_no_sense(
        self, handler: SparkParquetHandler, local: Place, columns: Any, error: type[Exception], message: str
    ) -> None:
        local.write_files({"k=1/a.parquet": TABLE})
        with pytest.raises(error, match=message):
            handler.read_parquet(local.root, columns=columns)

    def test_nothing_to_read(self, handler: SparkParquetHandler, local: Place) -> None:
        with pytest.raises(FileNotFoundError, match="does not exist"):
            handler.read_parquet(local.root)
        os.makedirs(local.root)
        with pytest.raises(FileNotFoundError, match="no parquet files"):
            handler.read_parquet(local.root)

    def test_memory_of_this_process_is_not_sparks(self, handler: SparkParquetHandler) -> None:
        with pytest.raises(InvalidArgument, match="memory://"):
            handler.read_parquet("memory://events")


class TestWriteFile:
    @pytest.mark.parametrize("source", ["table", "frame", "empty frame", "path"])
    def test_one_file_in_new_folders(self, handler: SparkParquetHandler, local: Place, source: str) -> None:
        path = f"{local.root}/deep/down/one.parquet"
        oracle.write_files(f"{local.root}-2", {"a.parquet": TABLE, "b.parquet": TABLE.slice(0, 0)})
        frame = handler.spark.createDataFrame(TABLE).repartition(4)
        given = {"table": TABLE, "frame": frame, "empty frame": frame.limit(0), "path": f"{local.root}-2"}
        handler.write_parquet(given[source], path)
        assert by_id(oracle.read_file(path)) == ([] if source == "empty frame" else TABLE.to_pylist())
        assert os.listdir(os.path.dirname(path)) == ["one.parquet"]
        assert pq.ParquetFile(path).metadata.num_columns == 2

    def test_what_is_read_can_be_replaced_by_it(self, handler: SparkParquetHandler, local: Place) -> None:
        path = f"{local.root}/one.parquet"
        handler.write_parquet(TABLE, path)
        handler.write_parquet(handler.read_parquet(path).where("id > 6"), path)
        assert [row["id"] for row in by_id(oracle.read_file(path))] == [7, 8, 9]

    @pytest.mark.parametrize("source", ["reader", "frame"])
    def test_failure_in_the_middle_keeps_the_old_file(
        self, handler: SparkParquetHandler, local: Place, source: str
    ) -> None:
        def batches() -> Iterator[pa.RecordBatch]:
            yield from TABLE.to_batches()
            raise RuntimeError("boom")

        path = f"{local.root}/one.parquet"
        handler.write_parquet(TABLE, path)
        before = local.state()
        if source == "reader":
            rows = pa.RecordBatchReader.from_batches(TABLE.schema, batches())
        else:
            rows = handler.spark.range(0, 4, 1, 2).selectExpr("if(id < 3, id, raise_error('boom')) AS id")
        with pytest.raises(Exception, match="boom"):
            handler.write_parquet(rows, path)
        assert local.state() == before
        assert os.listdir(local.root) == ["one.parquet"]

    def test_path_that_is_a_directory(self, handler: SparkParquetHandler, local: Place) -> None:
        os.makedirs(local.root)
        with pytest.raises(NotADirectoryError, match="is a directory; expected the path of a file"):
            handler.write_parquet(TABLE, local.root)
        assert os.listdir(local.root) == []

    def test_file_that_breaks_under_a_reader(self, handler: SparkParquetHandler, local: Place) -> None:
        """What Arrow reads for Spark fails as it does elsewhere: a typed error that names the file."""
        path = f"{local.root}/one.parquet"
        handler.write_parquet(TABLE, path, compression="brotli")
        frame = handler.read_parquet(path)
        with open(path, "r+b") as file:
            file.seek(4)
            file.write(b"\xff" * 40)
        with pytest.raises(UnreadableFile, match=re.escape(path)):
            handler.write_parquet(frame, f"{local.root}/two.parquet")
        assert os.listdir(local.root) == ["one.parquet"]

    def test_unknown_codec(self, handler: SparkParquetHandler, local: Place) -> None:
        with pytest.raises(ValueError, match="'snappy', 'gzip', 'lz4', 'zstd', 'brotli', 'none'"):
            handler.write_parquet(TABLE, f"{local.root}/one.parquet", compression="zip")
        assert not os.path.exists(local.root)

    def test_private_file_stays_private(self, handler: SparkParquetHandler, local: Place) -> None:
        path = f"{local.root}/one.parquet"
        handler.write_parquet(TABLE, path)
        os.chmod(path, 0o600)
        handler.write_parquet(TABLE, path)
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600

    def test_name_as_long_as_names_can_be(self, handler: SparkParquetHandler, local: Place) -> None:
        path = f"{local.root}/{'x' * 247}.parquet"
        handler.write_parquet(TABLE, path)
        assert oracle.read_file(path).equals(TABLE)


class TestSql:
    VALUES: ClassVar[list[Any]] = [
        "'; DROP TABLE x; --",
        "a\\'b\n",
        None,
        dt.date(1969, 12, 31),
        Decimal("1.50"),
        b"\x00'",
        2**40,
        -1.5,
        True,
        [1, 2],
    ]

    def test_values_are_bound_and_never_pasted(self, handler: SparkParquetHandler) -> None:
        some = self.VALUES[:4]
        assert list(handler.execute_sql("SELECT ?, ?, ?, ?", some).collect()[0]) == some
        marks = ", ".join(f"? AS c{at}" for at in range(len(self.VALUES)))
        if handler.spark.version >= "4.3":
            assert list(handler.execute_sql(f"SELECT {marks}", self.VALUES).collect()[0]) == self.VALUES
        else:
            # Older ones would mix the values up.
            with pytest.raises(ValueError, match="Name them"):
                handler.execute_sql(f"SELECT {marks}", self.VALUES)
        named = {f"p{at}": value for at, value in enumerate(self.VALUES)}
        marks = ", ".join(f":{name} AS {name}" for name in named)
        assert handler.execute_sql(f"SELECT {marks}", named).collect()[0].asDict() == named

    def test_parameters_that_are_missing(self, handler: SparkParquetHandler) -> None:
        with pytest.raises(AnalysisException, match="UNBOUND_SQL_PARAMETER"):
            handler.execute_sql("SELECT ?, ?", [1])

    def test_parquet_named_in_the_query(self, handler: SparkParquetHandler, local: Place) -> None:
        local.write_files({"a.parquet": TABLE})
        query = f"SELECT name FROM parquet.`{local.root}/a.parquet` WHERE id > ?"
        assert [row.name for row in handler.execute_sql(query, (8,)).collect()] == ["n9"]

    def test_tables_are_paths_and_frames(self, handler: SparkParquetHandler, local: Place) -> None:
        local.write_files({"k=a/a.parquet": TABLE, "k=b/a.parquet": TABLE.slice(5)})
        query = """
            SELECT k, count(*) AS n, max(sum(id)) OVER (ORDER BY k) AS top
            FROM events JOIN wanted USING (id) GROUP BY k HAVING count(*) > :least ORDER BY k
        """
        wanted = handler.spark.createDataFrame(pa.table({"id": [1, 6, 7]}))
        result = handler.execute_sql(query, {"least": 1}, {"events": local.root, "wanted": wanted})
        assert [tuple(row) for row in result.collect()] == [("a", 3, 14), ("b", 2, 14)]
        session = handler.spark
        handler.close()  # over Connect views must stay as long as somebody may use the result
        assert session.catalog.listTables() == []

    def test_views_of_the_session_are_left_alone(self, handler: SparkParquetHandler) -> None:
        handler.spark.range(3).createTempView("mine")
        try:
            for name in ("mine", "Mine"):
                with pytest.raises(InvalidArgument, match="already"):
                    handler.execute_sql("SELECT 1", tables={name: handler.spark.range(1)})
                assert handler.spark.table("mine").count() == 3
        finally:
            handler.spark.catalog.dropTempView("mine")

    def test_a_frame_of_another_session_leaves_no_view_there(self, handler: SparkParquetHandler) -> None:
        other = handler.spark.newSession()
        with contextlib.suppress(AnalysisException):  # Spark Connect can do it
            assert handler.execute_sql("SELECT * FROM t", tables={"t": other.range(1)}).count() == 1
        assert other.catalog.listTables() == []

    @pytest.mark.parametrize("name", ["t", "no name", "a.b"])
    def test_tables_that_make_no_sense_leave_nothing_behind(self, handler: SparkParquetHandler, name: str) -> None:
        given = TABLE if name == "t" else handler.spark.range(1)
        with pytest.raises((InvalidArgument, PySparkException), match=re.escape(name)):
            handler.execute_sql("SELECT 1", tables={"fine": handler.spark.range(1), name: given})
        session = handler.spark
        handler.close()  # over Connect views must stay as long as somebody may use the result
        assert session.catalog.listTables() == []

    def test_errors_are_sparks(self, handler: SparkParquetHandler) -> None:
        with pytest.raises(ParseException, match="PARSE_SYNTAX_ERROR"):
            handler.execute_sql("SELEC 1")
        with pytest.raises(AnalysisException, match=r"UNRESOLVED_COLUMN.*`nope`"):
            handler.execute_sql("SELECT nope FROM t", tables={"t": handler.spark.range(1)})
        session = handler.spark
        handler.close()  # over Connect views must stay as long as somebody may use the result
        assert session.catalog.listTables() == []


class TestMerge:
    """The scenarios of each strategy, once through the handler."""

    TARGET: ClassVar[pa.Table] = pairs((1, "a"), (2, "b"), (9, "z"))

    @pytest.mark.parametrize(
        ("strategy", "source", "stats", "expected"),
        [
            ("upsert", [(1, "A"), (2, "B"), (3, "C")], (1, 2, 0), [(1, "A"), (2, "B"), (3, "C"), (9, "z")]),
            ("insert", [(1, "A"), (2, "B"), (3, "C")], (1, 0, 0), [(1, "a"), (2, "b"), (3, "C"), (9, "z")]),
            ("insert", [(1, "A"), (2, "B")], (0, 0, 0), [(1, "a"), (2, "b"), (9, "z")]),
            ("insert", [(3, "C")], (1, 0, 0), [(1, "a"), (2, "b"), (3, "C"), (9, "z")]),
            ("update", [(1, "A"), (2, "B"), (3, "C")], (0, 2, 0), [(1, "A"), (2, "B"), (9, "z")]),
            ("update", [(3, "C")], (0, 0, 0), [(1, "a"), (2, "b"), (9, "z")]),
            ("update", [(1, "A"), (2, "B"), (9, "Z")], (0, 3, 0), [(1, "A"), (2, "B"), (9, "Z")]),
            ("full_merge", [(2, "B"), (9, "Z"), (4, "D")], (1, 2, 1), [(2, "B"), (4, "D"), (9, "Z")]),
            ("full_merge", [], (0, 0, 3), []),
            ("deduplicate", [(1, "x"), (1, "A"), (3, "C")], (1, 1, 0), [(1, "A"), (2, "b"), (3, "C"), (9, "z")]),
            ("deduplicate", [(1, "A"), (3, "C")], (1, 1, 0), [(1, "A"), (2, "b"), (3, "C"), (9, "z")]),
        ],
    )
    def test_strategies(
        self, handler: SparkParquetHandler, local: Place, strategy: Any, source: Any, stats: Any, expected: Any
    ) -> None:
        local.write_files({"a.parquet": self.TARGET})
        found = handler.merge_parquet_dataset(pairs(*source), local.root, ["id"], strategy)
        assert found == {
            **dict(zip(("inserted", "updated", "deleted"), stats, strict=True)),
            "total": len(expected),
        }
        assert found["total"] == 3 + found["inserted"] - found["deleted"]
        assert [(row["id"], row["v"]) for row in by_id(written(local))] == expected

    def test_composite_key(self, handler: SparkParquetHandler, local: Place) -> None:
        day = [dt.date(2025, 1, 1), dt.date(2025, 1, 2)]
        local.write_files({"a.parquet": pa.table({"id": [1, 1], "day": day, "v": ["a", "b"]})})
        source = pa.table({"id": [1, 2], "day": [day[1], day[1]], "v": ["B", "C"]})
        stats = handler.merge_parquet_dataset(source, local.root, ["id", "day"])
        assert stats == {"inserted": 1, "updated": 1, "deleted": 0, "total": 3}
        assert sorted(written(local)["v"].to_pylist()) == ["B", "C", "a"]

    def test_highest_of_the_duplicates(self, handler: SparkParquetHandler, local: Place) -> None:
        source = pa.table({"id": [1, 1, 1], "at": [2, 3, 1], "v": ["b", "c", "a"]})
        handler.merge_parquet_dataset(source, local.root, "id", "deduplicate", dedup_order_by=["at"])
        assert written(local).to_pylist() == [{"id": 1, "at": 3, "v": "c"}]

    @pytest.mark.parametrize(("strategy", "total"), [("upsert", 1), ("insert", 1), ("update", 0)])
    def test_target_that_does_not_exist(
        self, handler: SparkParquetHandler, local: Place, strategy: Any, total: int
    ) -> None:
        stats = handler.merge_parquet_dataset(pairs((1, "a")), local.root, "id", strategy)
        assert stats == {"inserted": total, "updated": 0, "deleted": 0, "total": total}

    def test_compression(self, handler: SparkParquetHandler, local: Place) -> None:
        for options, expected in (({}, "SNAPPY"), ({"compression": "gzip"}, "GZIP")):
            handler.merge_parquet_dataset(self.TARGET, local.root, "id", **options)
            (path,) = oracle.data_files(local.root)
            assert pq.ParquetFile(path).metadata.row_group(0).column(0).compression == expected

    @pytest.mark.parametrize(
        ("source", "options", "error", "message"),
        [
            (pa.table({"v": ["x"]}), {}, ValueError, "id"),
            (pa.table({"id": [1], "v": ["x"], "k": [1]}), {"key_columns": ["k"]}, ValueError, "k"),
            (pairs((None, "x")), {}, ValueError, "NULL"),
            (pairs((1, "x"), (1, "y")), {}, ValueError, "1"),
            (pa.table({"id": [1], "v": ["x"], "more": [1]}), {}, ValueError, "more"),
            (pa.table({"id": [1]}), {}, ValueError, "v"),
            (pa.table({"id": [1], "v": [1]}), {}, TypeError, "v"),
            (pairs((1, "x")), {"strategy": "replace"}, ValueError, "full_merge"),
            (pairs((1, "x")), {"compression": "zip"}, ValueError, "snappy"),
        ],
    )
    def test_refused_before_anything_is_changed(
        self, handler: SparkParquetHandler, local: Place, source: Any, options: Any, error: Any, message: str
    ) -> None:
        local.write_files({"a.parquet": self.TARGET})
        before = local.state()
        with pytest.raises(error, match=message):
            handler.merge_parquet_dataset(source, local.root, **{"key_columns": ["id"], **options})
        assert (local.state(), local.left_behind()) == (before, [])

    def test_failure_in_the_middle_changes_nothing(self, handler: SparkParquetHandler, local: Place) -> None:
        local.write_files({"a.parquet": self.TARGET})
        before = local.state()
        query = "SELECT id, if(id < 3, 'x', raise_error('boom')) AS v FROM range(1, 5)"
        with pytest.raises(PySparkException, match="boom"):
            handler.merge_parquet_dataset(handler.spark.sql(query), local.root, "id")
        assert (local.state(), local.left_behind()) == (before, [])


class TestMaintenance:
    @pytest.fixture
    def parts(self, local: Place) -> Place:
        local.write_files({f"day={n % 2}/{n}.parquet": pairs((9 - n, "x"), (n, "y")) for n in range(6)})
        return local

    @pytest.mark.parametrize(
        ("options", "files"),
        [
            ({"target_mb_per_file": 128}, 2),
            ({"target_rows_per_file": 4}, 4),
            ({"target_mb_per_file": 128, "compression": "zstd"}, 2),
            ({"partition_filter": ["day=0"]}, 4),
        ],
    )
    def test_compact(self, handler: SparkParquetHandler, parts: Place, options: Any, files: int) -> None:
        rows, before = parts.rows(), parts.state()
        planned = handler.compact_parquet_dataset(parts.root, **options, dry_run=True)
        assert (parts.state(), parts.rows()) == (before, rows)
        stats = handler.compact_parquet_dataset(parts.root, **options)
        assert (
            planned["after_file_count"]
            == stats["after_file_count"]
            == (files if "partition_filter" not in options else 1)
        )
        assert len(parts.files()) == files
        assert parts.rows() == rows
        again = handler.compact_parquet_dataset(parts.root, **options)
        assert again["compacted_file_count"] == 0
        assert stats.keys() >= {
            *("before_file_count", "after_file_count", "before_total_bytes", "after_total_bytes"),
            *("compacted_file_count", "rewritten_bytes", "compression_codec"),
        }
        if "compression" in options:
            assert {file.codec for file in parts.dataset().files()} == {"zstd"}

    def test_optimize(self, handler: SparkParquetHandler, parts: Place) -> None:
        rows, before = parts.rows(), parts.state()
        planned = handler.optimize_parquet_dataset(parts.root, ["id", "v"], target_mb_per_file=64, dry_run=True)
        assert parts.state() == before
        stats = handler.optimize_parquet_dataset(parts.root, ["id", "v"], target_mb_per_file=64)
        assert planned["after_file_count"] == stats["after_file_count"] == len(parts.files()) == 2
        assert stats["zorder_columns"] == ["id", "v"]
        assert stats.keys() >= {"before_file_count", "compacted_file_count", "dry_run", "compression_codec"}
        assert parts.rows() == rows
        for path in oracle.data_files(parts.root):
            ids = oracle.read_file(path)["id"].to_pylist()
            assert ids == sorted(ids)
        assert (
            handler.optimize_parquet_dataset(parts.root, ["id", "v"], target_mb_per_file=64)[
                "compacted_file_count"
            ]
            == 0
        )

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda h, path: h.compact_parquet_dataset(path, target_mb_per_file=0), "greater than 0"),
            (lambda h, path: h.compact_parquet_dataset(path, target_rows_per_file=-1), "greater than 0"),
            (lambda h, path: h.optimize_parquet_dataset(path, ["nope"]), "available columns: 'id', 'v'"),
            (lambda h, path: h.optimize_parquet_dataset(path, ["id"], target_mb_per_file=-1), "greater than 0"),
        ],
    )
    def test_bad_arguments(self, handler: SparkParquetHandler, parts: Place, call: Any, message: str) -> None:
        before = parts.state()
        with pytest.raises(ValueError, match=message):
            call(handler, parts.root)
        assert parts.state() == before

    def test_no_dataset(self, handler: SparkParquetHandler, local: Place) -> None:
        with pytest.raises(FileNotFoundError, match="no dataset"):
            handler.compact_parquet_dataset(local.root)
        with pytest.raises(FileNotFoundError, match="no dataset"):
            handler.optimize_parquet_dataset(local.root, ["id"])


class TestSessions:
    def test_a_session_that_was_there_stays_open(self, spark: Any) -> None:
        for given in (None, spark):
            with SparkParquetHandler(given) as handler:
                assert handler.spark is spark
            handler.close()
            assert spark.range(1).count() == 1

    def test_a_closed_handler_is_not_used(self, spark: Any, local: Place) -> None:
        handler = SparkParquetHandler(spark)
        handler.close()
        for use in (
            lambda: handler.spark,
            lambda: handler.execute_sql("SELECT 1"),
            lambda: handler.read_parquet(local.root),
            lambda: handler.write_parquet_dataset(TABLE, local.root),
        ):
            with pytest.raises(InvalidArgument, match="SparkParquetHandler is closed; make a new one"):
                use()
        assert local.left_behind() == []

    def test_only_a_session_of_ours_is_stopped(self) -> None:
        script = """
            from pyspark.sql import SparkSession
            from parketto import SparkParquetHandler
            from parketto.engines.spark.session import active_session

            with SparkParquetHandler() as handler:
                assert active_session() is None, "nothing is started before it is needed"
                session = handler.spark
                assert session.range(3).count() == 3
            assert active_session() is None, "the session that the handler started"
            handler.close()

            early = SparkParquetHandler()
            theirs = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
            with early:
                assert early.spark is theirs
            assert theirs.range(1).count() == 1, "somebody else's session"
            theirs.stop()
            print("done")
        """
        result = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            env={name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert result.stdout.strip() == "done", result.stderr


class TestDocumentation:
    METHODS: ClassVar[list[Any]] = [
        method
        for name, method in inspect.getmembers(SparkParquetHandler, inspect.isfunction)
        if not name.startswith("_")
    ]

    @pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__name__)
    def test_every_method_is_typed_and_explained(self, method: Any) -> None:
        signature = inspect.signature(method)
        assert signature.return_annotation is not inspect.Signature.empty
        for name, parameter in list(signature.parameters.items())[1:]:
            assert parameter.annotation is not inspect.Parameter.empty, name
        assert method.__name__ == "close" or ">>> " in inspect.getdoc(method)

"""Features of SparkParquetHandler only: its session, Spark DataFrames and types, views, and both readers.

Features that DuckDBParquetHandler shares are tested in `test_handlers.py`.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as F  # noqa: N812 - the customary name
from pyspark.sql import types as T  # noqa: N812

from conftest import Place
from helpers import oracle
from helpers.handlers import SQL_VALUES, TABLE, by_id, counted, nested, pairs, read_both_ways, tuples, written
from parketto import SparkParquetHandler
from parketto.engines.spark import reading
from parketto.errors import InvalidArgument, UnreadableFile

pytestmark = pytest.mark.own_spark

UTC = dt.timezone.utc  # noqa: UP017 - shorter beside the values
HOSTILE = ["a.b", "`", "", 'x y;"', "é\n"]


@pytest.fixture
def handler(spark: Any) -> Iterator[SparkParquetHandler]:
    made = SparkParquetHandler(spark)
    yield made
    made.close()


class TestInitialisation:
    def test_without_a_session_the_active_one_is_used(self, spark: Any, local: Place) -> None:
        local.write_files({"a.parquet": TABLE})
        assert SparkParquetHandler().read_parquet(local.root).count() == 10

    def test_only_a_spark_session_is_accepted(self) -> None:
        with pytest.raises(InvalidArgument, match="SparkSession"):
            _ = SparkParquetHandler("local[2]").spark  # type: ignore[arg-type]


class TestInputs:
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
                "i": 93_600_000_000,  # as Spark stores it; metadata says that it is an interval
                "days": 259_200_000_000,
                "a": [[("k", None)]],
                "nothing": None,
            }
        ]
        shown = dict(handler.spark.read.parquet(local.root).dtypes)
        assert (shown["i"], shown["days"]) == ("interval day to second", "interval day")

    def test_instants_do_not_depend_on_the_session_time_zone(
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

    def test_a_nondeterministic_frame_is_evaluated_once(self, handler: SparkParquetHandler, local: Place) -> None:
        handler.write_parquet_dataset(handler.spark.range(50).selectExpr("id", "0D AS v"), local.root)
        frame = handler.spark.range(0, 100, 1, 4).select((F.rand() * 1000).cast("long").alias("id"))
        frame = frame.groupBy("id").count().select("id", F.rand().alias("v"))
        stats = handler.merge_parquet_dataset(frame, local.root, "id")
        ids = written(local)["id"].to_pylist()
        assert len(ids) == len(set(ids)) == stats["total"] == 50 + stats["inserted"]
        assert sum(value != 0 for value in written(local)["v"].to_pylist()) == stats["inserted"] + stats["updated"]

    @pytest.mark.parametrize("partition_by", [None, ["a.b"]])
    def test_columns_of_any_name_are_written_and_merged(
        self, handler: SparkParquetHandler, local: Place, partition_by: Any
    ) -> None:
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
    def test_frames_that_parquet_cannot_store_are_refused(
        self, handler: SparkParquetHandler, local: Place, query: str, message: str
    ) -> None:
        frame = handler.spark.sql(query)
        with pytest.raises(InvalidArgument, match=message):
            handler.write_parquet_dataset(frame, local.root)
        with pytest.raises(InvalidArgument, match=message):
            handler.merge_parquet_dataset(frame, local.root, "id")
        assert not os.path.exists(local.root)

    def test_a_frame_without_columns_is_refused(self, handler: SparkParquetHandler, local: Place) -> None:
        with pytest.raises(InvalidArgument, match="without any column"):
            handler.write_parquet_dataset(handler.spark.range(3).select(), local.root)

    def test_uuids_stay_uuids(self, handler: SparkParquetHandler, local: Place, tmp_path: Path) -> None:
        table = pa.table({"id": [1, 2], "u": pa.array([b"u" * 16, None], pa.uuid()), "k": ["a", "b"]})
        oracle.write_files(str(tmp_path / "source"), {"a.parquet": table})
        handler.write_parquet_dataset(str(tmp_path / "source"), local.root, partition_by="k")
        assert written(local).sort_by("id").equals(table)


@pytest.fixture
def zone(spark: Any) -> Iterator[Callable[[str], None]]:
    before = spark.conf.get("spark.sql.session.timeZone")
    yield lambda name: spark.conf.set("spark.sql.session.timeZone", name)
    spark.conf.set("spark.sql.session.timeZone", before)


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
    """What Spark reads for every type, each in a folder of its own; by the name of the type.

    Columns that Spark's own reader supports are read by it, and once more through Arrow.
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
    def test_every_type_gets_its_spark_type(self, every_type: dict[str, Any], name: str) -> None:
        _, kind, values = COLUMNS[name]
        found = (every_type["spark"] | every_type["arrow"])[name]
        assert found == (kind, values)

    def test_both_readers_agree(self, every_type: dict[str, Any]) -> None:
        assert every_type["spark was read by Spark"]
        assert not every_type["arrow was read by Spark"]
        assert len(every_type["spark"]) > 10
        assert every_type["forced"] == every_type["spark"]

    def test_non_nullable_columns(self, handler: SparkParquetHandler, local: Place) -> None:
        schema = pa.schema([pa.field("id", pa.int64(), False), pa.field("u", pa.uint64(), False)])
        local.write_files({"a.parquet": pa.table([[1], [2]], schema=schema)})
        assert by_id(handler.read_parquet(local.root)) == [{"id": 1, "u": Decimal(2)}]

    def test_int96_timestamps_are_instants(self, handler: SparkParquetHandler, local: Place) -> None:
        table = pa.table({"t": counted([-1000, None], pa.timestamp("ns"))})
        local.write_files({"a.parquet": table}, use_deprecated_int96_timestamps=True)
        found = handler.read_parquet(local.root)
        assert found.dtypes == [("t", "timestamp")]
        assert found.toArrow()["t"].to_pylist() == [moment(-1, dt.UTC), None]

    @pytest.mark.parametrize("zone_name", ["Asia/Tokyo", "America/New_York"])
    def test_session_time_zone_changes_no_instant(
        self, handler: SparkParquetHandler, local: Place, zone: Any, zone_name: str
    ) -> None:
        zone(zone_name)
        kinds = {"native": pa.timestamp("us", "UTC"), "arrow": pa.timestamp("ns", "Europe/Berlin")}
        local.write_files({"a.parquet": pa.table({name: counted([-1000], kind) for name, kind in kinds.items()})})
        for columns, micros in ((["native"], -1000), (["native", "arrow"], -1000), (["arrow"], -1)):
            frame = handler.read_parquet(local.root, columns=columns)
            assert frame.selectExpr(f"unix_micros({columns[0]}) AS t").collect()[0].t == micros


class TestPartitions:
    def test_a_folder_between_two_partitions(self, handler: SparkParquetHandler, local: Place) -> None:
        local.write_files({"y=1/raw/k=2/a.parquet": pa.table({"n": [3]})})
        assert tuples(read_both_ways(handler, local.root)) == [(3, 1, 2)]

    def test_names_that_differ_only_in_case_are_two_columns(
        self, handler: SparkParquetHandler, local: Place
    ) -> None:
        local.write_files({"N=1/a.parquet": pa.table({"n": [3], "x": [4], "X": [5]})})
        assert tuples(read_both_ways(handler, local.root)) == [(3, 4, 5, 1)]
        assert tuples(read_both_ways(handler, local.root, columns=["X"])) == [(5,)]


class TestRead:
    def test_columns_of_any_name_are_read(self, handler: SparkParquetHandler, local: Place) -> None:
        local.write_files({"k=7/a.parquet": pa.table({name: [at] for at, name in enumerate(HOSTILE)})})
        assert tuples(read_both_ways(handler, local.root)) == [(0, 1, 2, 3, 4, 7)]
        assert tuples(read_both_ways(handler, local.root, columns=["k", "`", "a.b", ""])) == [(7, 1, 0, 2)]

    def test_memory_paths_are_refused(self, handler: SparkParquetHandler) -> None:
        with pytest.raises(InvalidArgument, match="memory://"):
            handler.read_parquet("memory://events")


class TestWriteFile:
    def test_a_failing_frame_keeps_the_old_file(self, handler: SparkParquetHandler, local: Place) -> None:
        path = f"{local.root}/one.parquet"
        handler.write_parquet(TABLE, path)
        before = local.state()
        rows = handler.spark.range(0, 4, 1, 2).selectExpr("if(id < 3, id, raise_error('boom')) AS id")
        with pytest.raises(Exception, match="boom"):
            handler.write_parquet(rows, path)
        assert local.state() == before
        assert os.listdir(local.root) == ["one.parquet"]

    def test_a_damaged_file_is_named(self, handler: SparkParquetHandler, local: Place) -> None:
        """Read errors of Arrow in Spark tasks become a typed error that names the file."""
        path = f"{local.root}/one.parquet"
        handler.write_parquet(TABLE, path, compression="brotli")
        frame = handler.read_parquet(path)
        with open(path, "r+b") as file:
            file.seek(4)
            file.write(b"\xff" * 40)
        with pytest.raises(UnreadableFile, match=re.escape(path)):
            handler.write_parquet(frame, f"{local.root}/two.parquet")
        assert os.listdir(local.root) == ["one.parquet"]

    def test_the_longest_file_name_is_written(self, handler: SparkParquetHandler, local: Place) -> None:
        path = f"{local.root}/{'x' * 247}.parquet"
        handler.write_parquet(TABLE, path)
        assert oracle.read_file(path).equals(TABLE)


class TestSql:
    def test_positional_parameters_are_not_mixed_up(self, handler: SparkParquetHandler) -> None:
        marks = ", ".join(f"? AS c{at}" for at in range(len(SQL_VALUES)))
        if handler.spark.version >= "4.3":
            assert list(handler.execute_sql(f"SELECT {marks}", SQL_VALUES).collect()[0]) == SQL_VALUES
        else:
            # Older versions of Spark would mix the values up.
            with pytest.raises(ValueError, match="Name them"):
                handler.execute_sql(f"SELECT {marks}", SQL_VALUES)

    def test_queries_leave_no_views(self, handler: SparkParquetHandler, local: Place) -> None:
        local.write_files({"a.parquet": TABLE})
        tables = {"events": local.root, "wanted": handler.spark.createDataFrame(pa.table({"id": [1, 6, 7]}))}
        assert handler.execute_sql("SELECT * FROM events JOIN wanted USING (id)", tables=tables).count() == 3
        for query in ("SELEC 1", "SELECT nope FROM events"):
            with pytest.raises(PySparkException):
                handler.execute_sql(query, tables=tables)
        session = handler.spark
        handler.close()  # over Connect, views must exist as long as the result may be used
        assert session.catalog.listTables() == []

    def test_existing_views_are_not_replaced(self, handler: SparkParquetHandler) -> None:
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
    def test_invalid_tables_are_refused_and_leave_no_views(self, handler: SparkParquetHandler, name: str) -> None:
        given = TABLE if name == "t" else handler.spark.range(1)
        with pytest.raises((InvalidArgument, PySparkException), match=re.escape(name)):
            handler.execute_sql("SELECT 1", tables={"fine": handler.spark.range(1), name: given})
        session = handler.spark
        handler.close()  # over Connect, views must exist as long as the result may be used
        assert session.catalog.listTables() == []


class TestMerge:
    TARGET: ClassVar[pa.Table] = pairs((1, "a"), (2, "b"), (9, "z"))

    def test_a_failing_frame_changes_nothing(self, handler: SparkParquetHandler, local: Place) -> None:
        local.write_files({"a.parquet": self.TARGET})
        before = local.state()
        query = "SELECT id, if(id < 3, 'x', raise_error('boom')) AS v FROM range(1, 5)"
        with pytest.raises(PySparkException, match="boom"):
            handler.merge_parquet_dataset(handler.spark.sql(query), local.root, "id")
        assert (local.state(), local.left_behind()) == (before, [])


class TestSessions:
    def test_existing_sessions_stay_open(self, spark: Any) -> None:
        for given in (None, spark):
            with SparkParquetHandler(given) as handler:
                assert handler.spark is spark
            handler.close()
            assert spark.range(1).count() == 1

    def test_close_stops_only_its_own_session(self) -> None:
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
            assert theirs.range(1).count() == 1, "a session of another owner stays open"
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

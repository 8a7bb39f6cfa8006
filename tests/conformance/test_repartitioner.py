"""Repartitioner on every engine: all rows in new folders, and the source untouched until the target is whole."""

from __future__ import annotations

import datetime as dt
import decimal
import logging
import os
import shutil
from collections import Counter
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame as SparkFrame
from pyspark.sql import functions as F  # noqa: N812 - the customary name

from conftest import Place
from helpers import oracle
from parketto import (
    ColumnNotFound,
    CommitConflict,
    CommitFailed,
    Dataset,
    InvalidArgument,
    ParquetCompactor,
    Progress,
    Repartitioner,
    TransformFailed,
)
from parketto.engines.base import Engine
from parketto.engines.spark.engine import SparkEngine
from parketto.storage.local import LocalStore

KEYS = {
    "files_read",
    "files_written",
    "records_read",
    "records_written",
    "partitions_created",
    "errors",
    "start_time",
    "end_time",
}
START = dt.datetime(2025, 11, 26, 9, 58)  # noqa: DTZ001 - as the feed has it


def ticks(rows: int = 240) -> pa.Table:
    """Minutes of two products, with the parts of their time as columns."""
    times = [START + dt.timedelta(minutes=number) for number in range(rows)]
    return pa.table(
        {
            "product_id": ["BTC-USD" if number % 3 else "ETH-USD" for number in range(rows)],
            "timestamp": pa.array(times, pa.timestamp("us")),
            "date": [time.date().isoformat() for time in times],
            "year": [time.year for time in times],
            "month": [time.month for time in times],
            "day": [time.day for time in times],
            "hour": [time.hour for time in times],
            "price": [100.0 + number for number in range(rows)],
        }
    )


def by_date(place: Place, table: pa.Table | None = None, files: int = 3) -> pa.Table:
    """A source in several files under `product_id=…/date=…`, with its partition columns in the files."""
    table = ticks() if table is None else table
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    for (product, date), found in frame.group_by("product_id", "date", maintain_order=True):
        rows = found.to_arrow().cast(table.schema)
        step = -(-rows.num_rows // files)
        for number in range(files):
            part = rows.slice(number * step, step)
            place.write_files({f"product_id={product}/date={date}/f{number}.parquet": part})
    return table


def target_of(place: Place) -> str:
    return f"{place.root}_new"


def mover(place: Place, columns: list[str], engine: Engine | str, **options: Any) -> Repartitioner:
    return Repartitioner(place.root, target_of(place), columns, engine=engine, filesystem=place.fs, **options)


def rows_of(root: str, place: Place) -> Counter[str]:
    """Every row, counted, in whatever file it is."""
    found = (oracle.read_file(path, place.fs).to_pylist() for path in oracle.data_files(root, place.fs))
    return counted(row for rows in found for row in rows)


def counted(rows: Any) -> Counter[str]:
    return Counter(repr(sorted(row.items())) for row in rows)


def folders(root: str, place: Place) -> set[str]:
    return {os.path.dirname(path)[len(root) + 1 :] for path in oracle.data_files(root, place.fs)}


def check_placed(root: str, place: Place, columns: list[str]) -> None:
    """Every file holds its partition columns, and only the rows that its folder names."""
    for path in oracle.data_files(root, place.fs):
        segments = os.path.dirname(path)[len(root) + 1 :].split("/")
        assert [segment.partition("=")[0] for segment in segments] == columns
        table = oracle.read_file(path, place.fs)
        for segment in segments:
            name, _, text = segment.partition("=")
            (value,) = set(table.column(name).to_pylist())
            assert str(value) == unquote(text)


class TestRepartition:
    def test_finer_partitions(self, place: Place, merge_engine: Engine) -> None:
        """Pattern 1: product and date become product, year, month, day and hour."""
        table = by_date(place)
        before = place.state()
        columns = ["product_id", "year", "month", "day", "hour"]
        repartitioner = mover(place, columns, merge_engine)
        estimate = repartitioner.estimate_size()
        stats = repartitioner.repartition(delete_source=False, validate=True, dry_run=False)
        target = target_of(place)
        assert rows_of(target, place) == counted(table.to_pylist())
        check_placed(target, place, columns)
        expected = {tuple(row[name] for name in columns) for row in table.to_pylist()}
        assert len(folders(target, place)) == len(expected) == stats["partitions_created"]
        assert place.state() == before, "the source is as it was"
        assert set(stats) == KEYS
        assert (stats["files_read"], stats["records_read"], stats["records_written"]) == (6, 240, 240)
        assert stats["files_written"] == len(oracle.data_files(target, place.fs)) == len(expected)
        assert stats["errors"] == 0
        assert dt.datetime.fromisoformat(stats["start_time"]).tzinfo is dt.UTC
        assert stats["start_time"] <= stats["end_time"] <= dt.datetime.now(dt.UTC).isoformat()
        size = sum(place.fs.size(path) for path in oracle.data_files(place.root, place.fs))
        assert estimate == {
            "total_rows": 240,
            "num_partitions": len(expected),
            "avg_rows_per_partition": 240 / len(expected),
            "estimated_size_mb": size / 2**20,
            "partition_cols": columns,
        }
        assert place.left_behind() == [target], "no workspace is left"

    def test_another_column_in_front(self, place: Place, merge_engine: Engine) -> None:
        """Pattern 2: date and hour become product, date and hour."""
        table = ticks()
        for hour in sorted(set(table.column("hour").to_pylist())):
            part = pa.Table.from_pylist([row for row in table.to_pylist() if row["hour"] == hour], table.schema)
            place.write_files({f"date=2025-11-26/hour={hour}/part.parquet": part})
        mover(place, ["product_id", "date", "hour"], merge_engine).repartition()
        assert rows_of(target_of(place), place) == counted(table.to_pylist())
        check_placed(target_of(place), place, ["product_id", "date", "hour"])

    def test_fewer_partitions(self, place: Place, merge_engine: Engine) -> None:
        """Pattern 3: folders down to the minute become product and date, a file each."""
        table = ticks(60)
        for number, row in enumerate(table.to_pylist()):
            folder = f"product_id={row['product_id']}/hour={row['hour']}/minute={row['timestamp'].minute}"
            place.write_files({f"{folder}/{number}.parquet": pa.Table.from_pylist([row], table.schema)})
        stats = mover(place, ["product_id", "date"], merge_engine).repartition()
        # The minute was only in the paths; now it is in the files.
        found = rows_of(target_of(place), place)
        assert found == counted({**row, "minute": row["timestamp"].minute} for row in table.to_pylist())
        assert folders(target_of(place), place) == {
            "product_id=BTC-USD/date=2025-11-26",
            "product_id=ETH-USD/date=2025-11-26",
        }
        assert (stats["files_read"], stats["files_written"], stats["partitions_created"]) == (60, 2, 2)

    def test_dry_run_returns_the_statistics_of_the_run(self, place: Place, merge_engine: Engine) -> None:
        by_date(place)
        before = place.state()
        repartitioner = mover(place, ["product_id", "hour"], merge_engine)
        planned = repartitioner.repartition(dry_run=True)
        assert place.state() == before
        assert place.left_behind() == []
        done = repartitioner.repartition()
        for key in KEYS - {"start_time", "end_time"}:
            assert planned[key] == done[key], key  # type: ignore[literal-required]

    def test_codecs(self, place: Place, merge_engine: Engine) -> None:
        by_date(place, ticks(12))
        mover(place, ["hour"], merge_engine).repartition()
        mover(place, ["hour"], merge_engine, compression="gzip", overwrite=True).repartition()
        assert {file.codec for file in Dataset(target_of(place), filesystem=place.fs).files()} == {"gzip"}

    def test_zstd_is_the_default(self, place: Place) -> None:
        by_date(place, ticks(12))
        mover(place, ["hour"], "pyarrow").repartition()
        assert {file.codec for file in Dataset(target_of(place), filesystem=place.fs).files()} == {"zstd"}

    def test_exact_schema(self, place: Place, merge_engine: Engine) -> None:
        schema = pa.schema(
            [
                pa.field("key", pa.string(), nullable=False, metadata={b"unit": b"name"}),
                pa.field("u64", pa.uint64()),
                pa.field("ns", pa.timestamp("ns", "UTC")),
                pa.field("money", pa.decimal128(20, 4)),
                pa.field("word", pa.dictionary(pa.int32(), pa.string())),
                pa.field("tags", pa.list_(pa.field("element", pa.int16(), nullable=False))),
                pa.field("point", pa.struct([("x", pa.float32()), ("y", pa.date32())])),
                pa.field("attributes", pa.map_(pa.string(), pa.int64())),
                pa.field("half", pa.float16()),
                pa.field("fixed", pa.binary(3)),
                pa.field("time", pa.time64("ns")),
            ],
            metadata={b"owner": b"desk"},
        )
        rows = [
            {
                "key": key,
                "u64": 2**64 - 1,
                "ns": 1_700_000_000_000_000_001,
                "money": decimal.Decimal("1.2345"),
                "word": "a",
                "tags": [1, 2],
                "point": {"x": 0.5, "y": dt.date(2025, 11, 26)},
                "attributes": [("a", 1)],
                "half": 1.5,
                "fixed": b"abc",
                "time": 12_345_678_901,
            }
            for key in ("k1", "k2", "k1")
        ]
        table = pa.Table.from_pylist(rows, schema)
        place.write_files({"a.parquet": table, "b.parquet": table})
        mover(place, ["key"], merge_engine).repartition()
        files = oracle.data_files(target_of(place), place.fs)
        original = oracle.read_file(f"{place.root}/a.parquet", place.fs)
        found = [oracle.read_file(path, place.fs) for path in files]
        assert all(each.schema.equals(original.schema, check_metadata=True) for each in found)
        both = pa.concat_tables(found).sort_by("key")
        assert both.equals(pa.concat_tables([original, original]).sort_by("key"))

    def test_hostile_values(self, place: Place, merge_engine: Engine) -> None:
        values = ["x/y", "a=b", "..", ".", "", None, "ünï", "%2F", "a b", "'", "plain"]
        table = pa.table({"key": values * 2, "n": range(2 * len(values))})
        place.write_files({"a.parquet": table})
        repartitioner = mover(place, ["key"], merge_engine)
        estimate = repartitioner.estimate_size()
        stats = repartitioner.repartition()
        assert rows_of(target_of(place), place) == counted(table.to_pylist())
        # Hive has one name for NULL and the empty string.
        assert estimate["num_partitions"] == stats["partitions_created"] == len(values) - 1
        for file in Dataset(target_of(place), filesystem=place.fs).files():
            found = set(oracle.read_file(file.path, place.fs).column("key").to_pylist())
            ((_, value),) = file.partition
            assert found == {value} or (value is None and found <= {None, ""})

    def test_a_thousand_partitions(self, place: Place, merge_engine: Engine) -> None:
        if merge_engine == "spark":
            pytest.skip("the same on Spark, where it only takes longer")
        table = pa.table({"key": [number * 7 % 1000 for number in range(5000)], "n": range(5000)})
        place.write_files({"a.parquet": table.slice(0, 2500), "b.parquet": table.slice(2500)})
        repartitioner = mover(place, ["key"], merge_engine)
        assert repartitioner.estimate_size()["num_partitions"] == 1000
        stats = repartitioner.repartition()
        assert (stats["partitions_created"], stats["files_written"], stats["records_written"]) == (
            1000,
            1000,
            5000,
        )
        assert rows_of(target_of(place), place) == counted(table.to_pylist())

    @pytest.mark.parametrize("name", ["pyarrow", "duckdb"])
    def test_few_files_are_open_at_once(self, local: Place, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        local.write_files({"a.parquet": pa.table({"key": [n % 300 for n in range(3000)], "n": range(3000)})})
        repartitioner = mover(local, ["key"], name)
        opened: list[Any] = []
        most, original = 0, LocalStore.open_output

        def watching(self: LocalStore, path: str) -> Any:
            nonlocal most
            opened.append(original(self, path))
            most = max(most, sum(not file.closed for file in opened))
            return opened[-1]

        monkeypatch.setattr(LocalStore, "open_output", watching)
        repartitioner.repartition()
        assert len(opened) == 300
        assert most <= 8

    def test_without_rows(self, place: Place, merge_engine: Engine) -> None:
        empty = ticks().slice(0, 0)
        place.write_files({"a.parquet": empty})
        repartitioner = mover(place, ["hour"], merge_engine)
        assert repartitioner.estimate_size()["avg_rows_per_partition"] == 0.0
        stats = repartitioner.repartition()
        assert (stats["records_written"], stats["partitions_created"]) == (0, 0)
        assert oracle.schemas(target_of(place), place.fs)[0].equals(empty.schema)

    def test_progress_and_logging(
        self, place: Place, merge_engine: Engine, caplog: pytest.LogCaptureFixture
    ) -> None:
        by_date(place, ticks(12))
        seen: list[Progress] = []
        with caplog.at_level(logging.INFO, logger="parketto"):
            mover(place, ["hour"], merge_engine, progress=seen.append).repartition()
        done = [each.done for each in seen]
        assert done == sorted(done)
        assert done[-1] == seen[-1].total
        assert ": started" in caplog.text
        assert "records_written=12" in caplog.text

    @pytest.mark.spark
    def test_spark_reports_progress_of_jobs_that_end_before_the_first_poll(
        self, local: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("parketto.engines.spark.tasks._POLL_SECONDS", 60)
        by_date(local, ticks(12))
        seen: list[Progress] = []
        mover(local, ["hour"], SparkEngine(shuffle_mb=1e-6), progress=seen.append).repartition()
        assert [each.done == each.total for each in seen] == [True]


class TestEstimate:
    def test_estimate_reads_only_footers_if_files_have_one_value_each(
        self, memory: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from parketto.tasks import count as counting

        by_date(memory)
        nulls = pa.table({"product_id": pa.nulls(2, pa.string()), "date": ["x", "x"]})
        rest = {name: ticks(2).column(name) for name in ticks(2).column_names if name not in nulls.column_names}
        null_rows = pa.table({**rest, **{name: nulls.column(name) for name in nulls.column_names}})
        memory.write_files({"product_id=__HIVE_DEFAULT_PARTITION__/date=x/a.parquet": null_rows})

        def refuse(*_: Any) -> None:
            raise AssertionError("data was read")

        monkeypatch.setattr(counting, "count_folders", refuse)
        estimate = mover(memory, ["date", "product_id"], "pyarrow").estimate_size()
        assert (estimate["num_partitions"], estimate["total_rows"]) == (3, 242)
        with pytest.raises(AssertionError, match="data was read"):
            mover(memory, ["hour"], "pyarrow").estimate_size()

    def test_estimate_counts_nulls_as_a_partition(self, place: Place, engine: Engine) -> None:
        """Both bounds of 5 and NULL are 5, but there are two partitions."""
        place.write_files({"a.parquet": pa.table({"k": [5, None, 5], "n": [1, 2, 3]})})
        repartitioner = mover(place, ["k"], engine)
        assert repartitioner.estimate_size()["num_partitions"] == 2
        assert repartitioner.repartition()["partitions_created"] == 2

    def test_only_the_partition_columns_are_read(self, memory: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        by_date(memory)
        asked: list[list[str]] = []
        original = pq.ParquetFile.iter_batches

        def watching(self: Any, *args: Any, columns: Any = None, **options: Any) -> Any:
            asked.append(columns)
            return original(self, *args, columns=columns, **options)

        monkeypatch.setattr(pq.ParquetFile, "iter_batches", watching)
        mover(memory, ["hour"], "pyarrow").estimate_size()
        assert asked
        assert all(columns == ["hour"] for columns in asked)

    def test_estimate_matches_an_oracle(self, place: Place, engine: Engine) -> None:
        table = by_date(place)
        estimate = mover(place, ["hour", "product_id"], engine).estimate_size()
        frame = pl.from_arrow(table)
        assert isinstance(frame, pl.DataFrame)
        assert estimate["num_partitions"] == frame.select("hour", "product_id").unique().height
        assert estimate["total_rows"] == frame.height

    def test_with_a_transform(self, place: Place, engine: Engine) -> None:
        by_date(place)
        estimate = mover(place, ["minute"], engine).estimate_size(transform_fn=adding_minute())
        assert (estimate["num_partitions"], estimate["total_rows"]) == (60, 240)


def adding_minute() -> Callable[[pl.DataFrame], pl.DataFrame]:
    def add_minute_field(df: pl.DataFrame) -> pl.DataFrame:
        return df.with_columns(pl.col("timestamp").dt.minute().alias("minute"))

    return add_minute_field


class TestTransform:
    def test_schema_migration(self, place: Place, engine: Engine) -> None:
        """Workflow 4: new columns by a function, new partitions by them, then a compaction."""
        table = by_date(place)

        def add_hour_minute(df):  # type: ignore[no-untyped-def]
            return df.with_columns(
                [
                    pl.col("timestamp").dt.hour().alias("new_hour"),
                    pl.col("timestamp").dt.minute().alias("minute"),
                ]
            )

        columns = ["product_id", "year", "month", "day", "new_hour"]
        stats = mover(place, columns, engine).repartition(
            transform_fn=add_hour_minute, delete_source=False, validate=True
        )
        expected = add_hour_minute(pl.from_arrow(table)).to_dicts()
        assert rows_of(target_of(place), place) == counted(expected)
        check_placed(target_of(place), place, columns)
        assert stats["records_read"] == stats["records_written"] == 240
        # Columns that the function does not change keep the types of the files.
        schema = oracle.schemas(target_of(place), place.fs)[0]
        assert schema.field("product_id").type == pa.string()
        assert schema.field("timestamp").type == pa.timestamp("us")
        compactor = ParquetCompactor(target_of(place), 100, engine=engine, filesystem=place.fs)
        compactor.compact(min_file_count=5, delete_source_files=True)
        assert rows_of(target_of(place), place) == counted(expected)

    def test_batches_do_not_exceed_the_limit(self, local: Place, engine: Engine) -> None:
        """Rows record the size of their batch, because tasks may run in other processes."""
        local.write_files({"a.parquet": ticks(25), "b.parquet": ticks(10)})

        def sizes(df: pl.DataFrame) -> pl.DataFrame:
            return df.with_columns(pl.lit(df.height).alias("height"))

        mover(local, ["product_id"], engine, batch_size=10).repartition(transform_fn=sizes)
        found = Counter(pl.read_parquet(f"{target_of(local)}/**/*.parquet")["height"].to_list())
        assert found == {10: 30, 5: 5}

    def test_columns_dropped_changed_and_renamed(self, place: Place, engine: Engine) -> None:
        table = by_date(place)

        def change(df: pl.DataFrame) -> pl.DataFrame:
            return df.select(
                pl.col("product_id").str.to_lowercase(),
                (pl.col("price") * 100).cast(pl.Int64).alias("cents"),
                pl.col("timestamp").dt.date().alias("date"),
            )

        mover(place, ["date"], engine).repartition(transform_fn=change)
        expected = change(pl.from_arrow(table)).to_dicts()  # type: ignore[arg-type]
        assert rows_of(target_of(place), place) == counted(expected)
        assert folders(target_of(place), place) == {"date=2025-11-26"}

    def test_function_that_fails_on_empty_frames(self, place: Place, engine: Engine) -> None:
        by_date(place)

        def relative_price(df: pl.DataFrame) -> pl.DataFrame:
            first = df["price"][0]
            return df.with_columns((pl.col("price") / first).alias("relative"))

        stats = mover(place, ["hour"], engine).repartition(transform_fn=relative_price)
        assert stats["records_written"] == 240
        assert "relative" in oracle.schemas(target_of(place), place.fs)[0].names

    def test_row_count_mismatch(self, place: Place, engine: Engine) -> None:
        """A function that filters: refused, and not even delete_source does anything."""
        by_date(place)
        before = place.state()

        def losing(df: pl.DataFrame) -> pl.DataFrame:
            return df.filter(pl.col("price") > 150)

        repartitioner = mover(place, ["hour"], engine)
        with pytest.raises(
            CommitFailed, match=r"Row count mismatch after repartition: the row count .* 240, .* 189"
        ):
            repartitioner.repartition(transform_fn=losing, delete_source=True)
        assert place.state() == before
        assert not place.fs.exists(target_of(place)) or not oracle.data_files(target_of(place), place.fs)
        stats = repartitioner.repartition(transform_fn=losing, validate=False, delete_source=True)
        assert (stats["records_read"], stats["records_written"]) == (240, 189)
        assert place.files() == []
        assert sum(rows_of(target_of(place), place).values()) == 189

    def test_batches_with_different_schemas_are_refused(self, place: Place, engine: Engine) -> None:
        by_date(place)
        before = place.state()

        def moody(df: pl.DataFrame) -> pl.DataFrame:
            if df.height and df["price"][0] > 110:
                return df.with_columns(pl.col("hour").cast(pl.String)).drop("year")
            return df

        with pytest.raises(TransformFailed, match="'year' is missing; 'hour' is String instead of Int64"):
            mover(place, ["hour"], engine, batch_size=7).repartition(transform_fn=moody, delete_source=True)
        assert place.state() == before

    def test_function_that_fails(self, place: Place, engine: Engine) -> None:
        by_date(place)
        before = place.state()

        def broken(df: pl.DataFrame) -> pl.DataFrame:
            if df.height:
                raise KeyError("no such thing")
            return df

        with pytest.raises(
            TransformFailed, match=r"transform_fn failed on a batch of [0-9]+ rows: KeyError: 'no such"
        ):
            mover(place, ["hour"], engine).repartition(transform_fn=broken, delete_source=True)
        assert place.state() == before
        assert [path for path in place.left_behind() if path.endswith(".parketto")] == []

    @pytest.mark.parametrize("result", [None, 3, "text"])
    def test_function_that_returns_no_frame(self, place: Place, result: object) -> None:
        by_date(place, ticks(12))
        with pytest.raises(TransformFailed, match=f"not {type(result).__name__}"):
            mover(place, ["hour"], "pyarrow").repartition(transform_fn=lambda _: result)

    def test_lazy_result(self, place: Place) -> None:
        by_date(place, ticks(12))
        mover(place, ["hour"], "pyarrow").repartition(transform_fn=lambda frame: frame.lazy().with_columns(x=1))
        assert "x" in oracle.schemas(target_of(place), place.fs)[0].names

    def test_types_pass_unchanged(self, place: Place) -> None:
        table = pa.table(
            {
                "k": [1, 2],
                "s": pa.array([86_399, None], pa.time32("s")),
                "u": pa.array([2**64 - 1, None], pa.uint64()),
                "w": pa.array(["a", None]).dictionary_encode(),
                "z": pa.array([1, None], pa.timestamp("ns", "Europe/Berlin")),
                "m": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int32())),
            }
        )
        place.write_files({"a.parquet": table})
        mover(place, ["k"], "pyarrow").repartition(transform_fn=lambda frame: frame)
        found = pa.concat_tables(
            oracle.read_file(p, place.fs) for p in oracle.data_files(target_of(place), place.fs)
        )
        assert found.schema.equals(oracle.read_file(f"{place.root}/a.parquet", place.fs).schema)
        assert found.sort_by("k").to_pylist() == table.to_pylist()

    def test_dry_run_counts_what_the_function_makes(self, place: Place, engine: Engine) -> None:
        by_date(place)
        stats = mover(place, ["minute"], engine).repartition(transform_fn=adding_minute(), dry_run=True)
        assert (stats["partitions_created"], stats["records_written"], stats["files_written"]) == (60, 240, 60)
        assert not place.fs.exists(target_of(place))


class TestSparkFrames:
    @pytest.mark.spark
    def test_function_over_a_spark_frame(self, local: Place) -> None:
        table = by_date(local)

        def add_minute(frame: SparkFrame) -> SparkFrame:
            return frame.withColumn("minute", F.minute("timestamp"))

        repartitioner = mover(local, ["product_id", "minute"], "spark")
        planned = repartitioner.repartition(transform_fn=add_minute, dry_run=True)
        done = repartitioner.repartition(transform_fn=add_minute)
        expected = counted({**row, "minute": row["timestamp"].minute} for row in table.to_pylist())
        assert rows_of(target_of(local), local) == expected
        assert planned["partitions_created"] == done["partitions_created"] == len(folders(target_of(local), local))

        def losing(frame: SparkFrame):  # type: ignore[no-untyped-def]
            return frame.where("price > 150")

        with pytest.raises(CommitFailed, match="row count"):
            mover(local, ["hour"], "spark", overwrite=True).repartition(transform_fn=losing, delete_source=True)
        assert rows_of(target_of(local), local) == expected

    @pytest.mark.spark
    @pytest.mark.parametrize("name", ["pyarrow", "duckdb"])
    def test_other_engines_refuse_spark_functions(self, place: Place, name: str) -> None:
        by_date(place, ticks(12))

        def spark_only(frame: pyspark.sql.DataFrame):  # type: ignore[no-untyped-def]  # noqa: F821
            return frame

        with pytest.raises(InvalidArgument, match="needs the Spark engine"):
            mover(place, ["hour"], name).repartition(transform_fn=spark_only)


class TestRefused:
    def test_missing_columns(self, place: Place, engine: Engine) -> None:
        by_date(place, ticks(12))
        repartitioner = mover(place, ["product_id", "minute", "second"], engine)
        for call in (
            repartitioner.estimate_size,
            repartitioner.repartition,
            lambda: repartitioner.repartition(dry_run=True),
        ):
            with pytest.raises(
                ColumnNotFound,
                match="Partition columns not found in data: 'minute', 'second'; available columns: 'product_id', ",
            ) as caught:
                call()
            assert isinstance(caught.value, ValueError)
        assert not place.fs.exists(target_of(place))

    def test_target_inside_of_the_source_or_the_reverse(
        self, local: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        by_date(local, ticks(12))
        parent, name = os.path.split(local.root)
        os.symlink(local.root, f"{parent}/alias")
        monkeypatch.chdir(parent)
        for source, target in (
            (local.root, local.root),
            (local.root, f"{local.root}/"),
            (local.root, name),
            (local.root, f"{local.root}/inside"),
            (f"{local.root}/product_id=BTC-USD", local.root),
            (local.root, f"{parent}/x/../{name}"),
            (local.root, f"{parent}/alias"),
            (f"{parent}/alias", f"{local.root}/deep/down"),
            (local.root, parent),
            (local.root, f"file://{local.root}"),
        ):
            with pytest.raises(InvalidArgument, match="neither inside"):
                Repartitioner(source, target, ["hour"], engine="pyarrow", overwrite=True)
        Repartitioner(local.root, f"{local.root}2", ["hour"], engine="pyarrow")

    def test_symlink_that_leads_into_the_target(self, local: Place) -> None:
        by_date(local, ticks(12))
        os.makedirs(target_of(local))
        shutil.copy(oracle.data_files(local.root)[0], f"{target_of(local)}/a.parquet")
        os.symlink(target_of(local), f"{local.root}/product_id=linked")
        with pytest.raises(InvalidArgument, match="of the source is inside the target"):
            mover(local, ["hour"], "pyarrow", overwrite=True).repartition()

    def test_target_with_data(self, place: Place, engine: Engine) -> None:
        table = by_date(place)
        target = target_of(place)
        oracle.write_files(target, {"old=1/a.parquet": pa.table({"x": [1]})}, place.fs)
        place.fs.pipe_file(f"{target}/notes.txt", b"mine")
        before = oracle.file_state(target, place.fs)
        for dry_run in (True, False):
            with pytest.raises(InvalidArgument, match=r"has 1 data file.* overwrite=True"):
                mover(place, ["hour"], engine).repartition(dry_run=dry_run)
        assert oracle.file_state(target, place.fs) == before
        mover(place, ["hour"], engine, overwrite=True).repartition()
        assert rows_of(target, place) == counted(table.to_pylist())
        assert place.fs.cat_file(f"{target}/notes.txt") == b"mine"

    def test_target_with_other_files_only(self, place: Place) -> None:
        by_date(place, ticks(12))
        place.fs.makedirs(target_of(place))
        place.fs.pipe_file(f"{target_of(place)}/_SUCCESS", b"")
        assert mover(place, ["hour"], "pyarrow").repartition()["records_written"] == 12

    def test_target_that_is_filled_concurrently(self, place: Place) -> None:
        by_date(place, ticks(12))
        before = place.state()

        def intruding(frame: pl.DataFrame) -> pl.DataFrame:
            if frame.height:
                oracle.write_files(target_of(place), {"theirs.parquet": pa.table({"x": [1]})}, place.fs)
            return frame

        with pytest.raises(CommitConflict, match=r"theirs\.parquet"):
            mover(place, ["hour"], "pyarrow").repartition(transform_fn=intruding, delete_source=True)
        assert place.state() == before
        assert [os.path.basename(p) for p in oracle.data_files(target_of(place), place.fs)] == ["theirs.parquet"]

    def test_source_that_changes_concurrently(self, place: Place) -> None:
        by_date(place, ticks(12))
        path = oracle.data_files(place.root, place.fs)[0]

        def meddling(frame: pl.DataFrame) -> pl.DataFrame:
            if frame.height:
                place.write_files({path[len(place.root) + 1 :]: ticks(3)})
            return frame

        with pytest.raises(CommitConflict, match="has changed"):
            mover(place, ["hour"], "pyarrow").repartition(transform_fn=meddling, delete_source=True)
        assert oracle.data_files(target_of(place), place.fs) == []
        assert len(place.files()) == 6

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"new_partition_cols": []}, "new_partition_cols is empty"),
            ({"new_partition_cols": ["a", "a"]}, "twice"),
            ({"new_partition_cols": 3}, "list of column names"),
            ({"compression": "lzo"}, "'zstd'"),
            ({"batch_size": 0}, "batch_size"),
            ({"batch_size": 2.5}, "batch_size"),
            ({"engine": "polars"}, "available engines"),
        ],
    )
    def test_invalid_arguments(self, place: Place, arguments: dict[str, Any], message: str) -> None:
        given = {"new_partition_cols": ["hour"], "engine": "pyarrow", **arguments}
        with pytest.raises(ValueError, match=message):
            Repartitioner(place.root, target_of(place), filesystem=place.fs, **given)

    def test_transform_must_be_callable(self, place: Place) -> None:
        by_date(place, ticks(12))
        with pytest.raises(InvalidArgument, match="must be a function, not str"):
            mover(place, ["hour"], "pyarrow").repartition(transform_fn="upper")  # type: ignore[arg-type]

    def test_missing_source(self, place: Place) -> None:
        for call in (mover(place, ["x"], "pyarrow").repartition, mover(place, ["x"], "pyarrow").estimate_size):
            with pytest.raises(FileNotFoundError):
                call()
        assert not place.fs.exists(target_of(place))

    def test_unreadable_source(self, place: Place) -> None:
        by_date(place, ticks(12))
        place.fs.pipe_file(f"{place.root}/bad.parquet", b"garbage")
        with pytest.raises(ValueError, match=r"bad\.parquet"):
            mover(place, ["hour"], "pyarrow").repartition(delete_source=True)
        assert len(place.files()) == 7


class TestDeleteSource:
    def test_only_data_files_are_deleted(self, place: Place, engine: Engine) -> None:
        table = by_date(place)
        place.fs.pipe_file(f"{place.root}/notes.txt", b"mine")
        place.fs.pipe_file(f"{place.root}/_SUCCESS", b"")
        place.fs.makedirs(f"{place.root}/_temporary", exist_ok=True)
        place.fs.pipe_file(f"{place.root}/_temporary/x.parquet", b"not data")
        stats = mover(place, ["hour"], engine).repartition(delete_source=True)
        assert stats["records_written"] == 240
        assert set(place.state()) == {"/notes.txt", "/_SUCCESS", "/_temporary/x.parquet"}
        assert rows_of(target_of(place), place) == counted(table.to_pylist())
        assert place.left_behind() == [target_of(place)]

    def test_files_added_concurrently_are_kept(self, place: Place) -> None:
        by_date(place, ticks(12))

        def while_others_append(frame: pl.DataFrame) -> pl.DataFrame:
            if frame.height:
                place.write_files({"late.parquet": ticks(2)})
            return frame

        mover(place, ["hour"], "pyarrow").repartition(transform_fn=while_others_append, delete_source=True)
        assert place.files() == ["late.parquet"]
        assert sum(rows_of(target_of(place), place).values()) == 12

    def test_a_dry_run_deletes_nothing(self, place: Place) -> None:
        by_date(place, ticks(12))
        before = place.state()
        mover(place, ["hour"], "pyarrow").repartition(delete_source=True, dry_run=True)
        assert place.state() == before

    def test_source_changed_after_the_commit_is_kept(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        """After the commit of the target and before the removal of the source: the message says what is kept."""
        from parketto.operations import migrate

        by_date(place, ticks(12))
        verify = migrate.verify_published

        def then_meddle(*args: Any) -> None:
            verify(*args)
            place.write_files({place.files()[0]: ticks(3)})

        monkeypatch.setattr(migrate, "verify_published", then_meddle)
        with pytest.raises(CommitConflict, match=r"was not removed.*is complete"):
            mover(place, ["hour"], "pyarrow").repartition(delete_source=True)
        assert len(place.files()) == 6
        assert sum(rows_of(target_of(place), place).values()) == 12


def test_production_workflow(local: Place, engine: Engine) -> None:
    """Repartition into a new folder, swap the folders by hand, read with Polars, remove the backup."""
    table = by_date(local)
    source, temp, backup = local.root, f"{local.root}_temp", f"{local.root}_backup"
    repartitioner = Repartitioner(source, temp, ["product_id", "hour"], engine=engine)
    stats = repartitioner.repartition(delete_source=False, validate=True)
    assert not stats["errors"] > 0
    os.rename(source, backup)
    os.rename(temp, source)
    frame = pl.scan_parquet(f"{source}/**/*.parquet", hive_partitioning=False)
    assert frame.select(pl.len()).collect().item() == 240
    assert counted(frame.collect().to_dicts()) == counted(table.to_pylist())
    assert local.dataset(engine="pyarrow").read().num_rows == 240
    shutil.rmtree(backup)
    assert local.left_behind() == []


def test_from_one_filesystem_to_another(local: Place, memory: Place) -> None:
    table = by_date(local)
    target = f"memory://{target_of(memory)}"
    stats = Repartitioner(local.root, target, ["hour"], engine="duckdb").repartition(delete_source=True)
    assert stats["records_written"] == 240
    assert rows_of(target_of(memory), memory) == counted(table.to_pylist())
    assert local.files() == []


def test_target_keeps_private_permissions(local: Place) -> None:
    by_date(local, ticks(12))
    for path in oracle.data_files(local.root):
        os.chmod(path, 0o600)
    mover(local, ["hour"], "pyarrow").repartition()
    assert {os.stat(path).st_mode & 0o777 for path in oracle.data_files(target_of(local))} == {0o600}

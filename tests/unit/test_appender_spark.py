"""Spark reads copied row groups as it reads the files they come from, with its filters pushed down to pages."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.parquet_files import (
    any_arrow,
    assert_same_rows,
    check_chunks,
    check_pages,
    content,
    footer_of,
    join_paths,
)
from parketto.errors import FooterError

ROWS = 3000
FILTERS = ["id between 1500 and 1520", "s = 's77' and id > 5000", "id in (3, 4100) or day = date'2020-01-05'"]


@pytest.fixture(params=[True, False], ids=["vectorized", "row by row"])
def spark_reader(request, spark) -> Any:
    spark.conf.set("spark.sql.parquet.enableVectorizedReader", str(request.param).lower())
    yield spark
    spark.conf.unset("spark.sql.parquet.enableVectorizedReader")


@pytest.fixture(scope="module")
def written(spark, tmp_path_factory) -> dict[str, list[str]]:
    """Files written by Spark and PyArrow, with small pages, page indexes and Bloom filters."""
    folder = tmp_path_factory.mktemp("spark")
    found: dict[str, list[str]] = {}
    for kind, options in (
        ("v1", {"parquet.page.row.count.limit": 100, "parquet.bloom.filter.enabled#s": "true"}),
        ("v2", {"parquet.page.row.count.limit": 100, "parquet.writer.version": "v2"}),
    ):
        for number in range(2):
            frame = spark.range(number * ROWS, (number + 1) * ROWS, 1, 1).selectExpr(
                "id",
                "concat('s', id % 1000) s",
                "date_add(date'2020-01-01', cast(id % 100 as int)) day",
                "timestamp_seconds(id) at",
                "cast(id / 7 as decimal(12, 3)) price",
                "if(id % 5 = 0, null, array(named_struct('x', id, 'm', map('k', id)))) deep",
            )
            writer = frame.write.options(**{"parquet.block.size": 50_000, **options})
            writer.parquet(str(folder / f"{kind}{number}"))
            found.setdefault(kind, []).extend(map(str, (folder / f"{kind}{number}").glob("*.parquet")))
    for number in range(2):
        table = pa.table(
            {
                "id": pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int64()),
                "s": [f"s{value % 1000}" for value in range(ROWS)],
                "day": [dt.date(2020, 1, 1) + dt.timedelta(value % 100) for value in range(ROWS)],
                "l": [[value, None] if value % 5 else None for value in range(ROWS)],
            }
        )
        for kind, options in (
            ("arrow", {"data_page_size": 400, "write_batch_size": 40, "write_page_index": True}),
            ("arrow v2", {"data_page_version": "2.0", "max_rows_per_page": 200, "write_page_index": True}),
        ):
            path = str(folder / f"{kind}{number}.parquet")
            pq.write_table(table, path, row_group_size=700, **options)
            found.setdefault(kind, []).append(path)
    return found


def test_spark_reads_the_same_rows_after_copying(spark_reader, written, tmp_path) -> None:
    for kind, paths in written.items():
        out = join_paths(paths, tmp_path / f"{kind}.parquet")
        one, many = spark_reader.read.parquet(out), spark_reader.read.parquet(*paths)
        assert one.schema == many.schema
        assert sorted(map(str, one.collect())) == sorted(map(str, many.collect()))
        for condition in FILTERS:
            expected = sorted(map(str, many.where(condition).collect()))
            assert sorted(map(str, one.where(condition).collect())) == expected
            assert expected


def test_spark_splits_read_every_row_group_once(spark, written, tmp_path) -> None:
    for kind in ("v1", "arrow"):
        out = join_paths(written[kind] * 2, tmp_path / f"{kind}.parquet")
        spark.conf.set("spark.sql.files.maxPartitionBytes", "50000")
        try:
            frame = spark.read.parquet(out)
            assert frame.rdd.getNumPartitions() > 3
            assert frame.selectExpr("count(*)", "sum(id)").collect() == [(4 * ROWS, 2 * sum(range(2 * ROWS)))]
        finally:
            spark.conf.unset("spark.sql.files.maxPartitionBytes")


def test_other_readers_read_copied_spark_row_groups(written, tmp_path) -> None:
    for kind, paths in written.items():
        out = join_paths(paths, tmp_path / f"{kind}.parquet")
        assert_same_rows(out, paths)
        check_chunks(content(out))
        assert check_pages(content(out)) > 50
    blooms = [group.columns[1].bloom_filter for group in footer_of(tmp_path / "v1.parquet").row_groups]
    assert all(bloom is not None for bloom in blooms)


def test_spark_reads_a_file_combined_from_spark_and_pyarrow(spark_reader, tmp_path) -> None:
    spark = spark_reader
    spark.range(100).selectExpr("id", "concat('s', id) s", "array(id) l").coalesce(1).write.parquet(
        str(tmp_path / "spark")
    )
    [by_spark] = map(str, Path(tmp_path / "spark").glob("*.parquet"))
    table = pa.table(
        {"id": range(100, 200), "s": [f"s{n}" for n in range(100, 200)], "l": [[n] for n in range(100)]}
    )
    nullable = pq.read_table(by_spark).schema
    by_arrow = str(tmp_path / "arrow.parquet")
    pq.write_table(table.cast(nullable), by_arrow)
    out = join_paths([by_arrow, by_spark], tmp_path / "out.parquet", same_arrow_schema=any_arrow)
    rows = sorted(map(str, spark.read.parquet(out).collect()))
    assert rows == sorted(map(str, spark.read.parquet(by_arrow, by_spark).collect()))
    assert len(rows) == 200
    assert pq.read_metadata(out).created_by.startswith("parketto version")


def test_files_with_legacy_dates_are_not_combined_with_others(spark, tmp_path) -> None:
    for mode in ("LEGACY", "CORRECTED"):
        spark.conf.set("spark.sql.parquet.datetimeRebaseModeInWrite", mode)
        try:
            spark.sql("select date'1500-01-01' d").write.parquet(str(tmp_path / mode))
        finally:
            spark.conf.unset("spark.sql.parquet.datetimeRebaseModeInWrite")
    paths = [str(next((tmp_path / mode).glob("*.parquet"))) for mode in ("LEGACY", "CORRECTED")]
    with pytest.raises(FooterError, match="legacyDateTime"):
        join_paths(paths, tmp_path / "out")
    out = join_paths([paths[0], paths[0]], tmp_path / "legacy.parquet")
    assert [row[0] for row in spark.read.parquet(out).collect()] == [dt.date(1500, 1, 1)] * 2

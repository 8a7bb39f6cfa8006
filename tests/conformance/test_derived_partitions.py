"""Partition columns that are computed from the rows, the same on every engine."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from conftest import Place
from helpers import oracle
from parketto import sql
from parketto.engines.base import Engine

TIMES = [dt.datetime(2026, 1, 1, 23, 30, tzinfo=dt.UTC), dt.datetime(2026, 1, 2, 7, tzinfo=dt.UTC), None]
ROWS = pa.table({"ts": pa.array(TIMES * 4, pa.timestamp("us", "UTC")), "n": range(12)})
BY_HOUR = {"day": "CAST(ts AS DATE)", "hour": sql("hour(ts)")}
FOLDERS = {
    "day=2026-01-01/hour=23": TIMES[0],
    "day=2026-01-02/hour=7": TIMES[1],
    "day=__HIVE_DEFAULT_PARTITION__/hour=__HIVE_DEFAULT_PARTITION__": None,
}


def check(place: Place, copies: int = 1) -> None:
    found: dict[str, list[Any]] = {}
    for path in oracle.data_files(place.root, place.fs):
        folder = path[len(place.root) + 1 :].rpartition("/")[0]
        found.setdefault(folder, []).extend(oracle.read_file(path, place.fs).to_pylist())
    assert set(found) == set(FOLDERS)
    for folder, time in FOLDERS.items():
        expected = [row for row in ROWS.to_pylist() if row["ts"] == time] * copies
        assert sorted(row["n"] for row in found[folder]) == sorted(row["n"] for row in expected)
        assert {row["ts"] for row in found[folder]} == {time}
        if "day" in found[folder][0]:
            assert {row["day"] for row in found[folder]} == {time and time.date()}
            assert {row["hour"] for row in found[folder]} == {time and time.hour}


@pytest.mark.parametrize("form", ["files", "path"])
def test_rows_in_memory(place: Place, engine: Engine, form: Any) -> None:
    dataset = place.dataset(engine=engine, timezone="UTC")
    dataset.write(ROWS, partition_by=BY_HOUR, partition_columns=form)
    check(place)
    dataset.write(ROWS, partition_by=BY_HOUR)
    check(place, 2)
    dataset.write(ROWS, "overwrite_partitions", partition_by=BY_HOUR)
    check(place)
    names = {tuple(schema.names) for schema in oracle.schemas(place.root, place.fs)}
    assert names == {("ts", "n") if form == "path" else ("ts", "n", "day", "hour")}


def test_readers_and_paths(place: Place, engine: Engine) -> None:
    dataset = place.dataset(engine=engine, timezone="UTC")
    reader = pa.RecordBatchReader.from_batches(ROWS.schema, iter(ROWS.to_batches(max_chunksize=5)))
    dataset.write(reader, partition_by=BY_HOUR)
    other = Place(f"{place.root}-other", place.fs)
    other.write_files({f"{at}.parquet": ROWS.slice(at, 4) for at in (0, 4, 8)})
    dataset.write(other.root, partition_by=BY_HOUR)
    check(place, 2)
    plan = dataset.write(other.root, "overwrite_partitions", partition_by=BY_HOUR, dry_run=True)
    assert plan["partitions"] == dict.fromkeys(FOLDERS, 4)


def test_names_and_expressions(place: Place, engine: Engine) -> None:
    new = pa.table({"side": ["a", "b", "a"], "n": [7, 12, 25], "x": [1, 2, 3]})
    by = ["side", {"tens": "CAST(FLOOR(n / 10) AS INT)"}]
    dataset = place.dataset(engine=engine)
    dataset.write(new, partition_by=by, max_rows_per_file=1)
    dataset.write(new, partition_by=by, mode="overwrite", replace_where="tens < 9", max_rows_per_file=1)
    folders = sorted(name.rpartition("/")[0] for name in place.files())
    assert folders == ["side=a/tens=0", "side=a/tens=2", "side=b/tens=1"]


def test_the_zone_of_the_dataset(place: Place, engine: Engine) -> None:
    dataset = place.dataset(engine=engine, timezone="America/New_York")
    dataset.write(ROWS.slice(0, 1), partition_by={"hour": "hour(ts)", "month": "date_trunc('month', ts)"})
    assert place.files()[0].startswith("hour=18/month=2026-01-01 05%3A00%3A00+00%3A00/")


@pytest.mark.parametrize(
    ("by", "message"),
    [
        ({"n": "n + 1"}, "already have columns named 'n'"),
        ({"day": "nope"}, "nope"),
        ({"day": "CAST(ts AS"}, "CAST"),
        ({"day": "NULL"}, "always NULL"),
        ({"day": 7}, "SQL expression"),
        ({}, "empty"),
        (["n", {"n": "n"}], "already have"),
        ({"part": "n % 2", "other": "sum(n)"}, "(?i)sum"),
    ],
)
def test_bad_arguments(place: Place, by: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        place.dataset().write(ROWS, partition_by=by)
    assert not place.fs.exists(place.root)


def test_other_partitions_than_those_of_the_dataset(place: Place) -> None:
    dataset = place.dataset()
    dataset.write(ROWS, partition_by=BY_HOUR)
    with pytest.raises(ValueError, match="partitioned by 'day', 'hour'"):
        dataset.write(ROWS, partition_by={"day": "CAST(ts AS DATE)"})
    with pytest.raises(ValueError, match="'day', 'hour'"):
        dataset.write(ROWS)


def test_a_value_that_cannot_be_computed(place: Place, engine: Engine) -> None:
    rows = pa.table({"text": ["1", "x"], "n": [1, 2]})
    with pytest.raises(ValueError, match=r"CAST\(text AS INT\).*'part'"):
        place.dataset(engine=engine).write(rows, partition_by={"part": "CAST(text AS INT)"})
    assert not place.fs.exists(place.root)


@pytest.mark.spark
def test_a_spark_frame(local: Place, spark: Any) -> None:
    frame = spark.createDataFrame(ROWS.to_pandas())
    dataset = local.dataset(engine="spark", timezone="UTC")
    plan = dataset.write(frame, partition_by=BY_HOUR, dry_run=True)
    assert plan["partitions"] == dict.fromkeys(FOLDERS, 4)
    dataset.write(frame, partition_by=BY_HOUR)
    check(local)
    found = spark.read.option("basePath", local.root).parquet(local.root)
    assert dict(found.dtypes)["ts"] == "timestamp"
    with pytest.raises(ValueError, match="'part'"):
        dataset.write(frame, "overwrite", partition_by={"part": "CAST(CAST(n AS STRING) || 'x' AS INT)"})
    check(local)

"""Merges with large sources on Spark: few files, few jobs, and no more memory than a small driver has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import oracle
from parketto import Dataset
from parketto.engines.spark.engine import SparkEngine
from parketto.engines.spark.merging import row_group_runs
from parketto.storage.opening import open_store
from parketto.storage.snapshot import read_snapshot

WORKER = str(Path(__file__).with_name("worker_many_keys.py"))


def _target(root: str) -> None:
    oracle.write_files(root, {f"{part}.parquet": _rows(1000 * part, 1000 * part + 1000) for part in range(4)})


def _rows(first: int, stop: int, value: float = 1.0) -> pa.Table:
    return pa.table({"id": range(first, stop), "value": [value] * (stop - first)})


def test_new_rows_make_one_file_whatever_the_shuffle(spark: Any, tmp_path: Path) -> None:
    """Spark's default of 200 shuffle partitions once made 200 files of them."""
    root = str(tmp_path / "data")
    _target(root)
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "200")
    session.conf.set("spark.sql.adaptive.enabled", "false")
    dataset = Dataset(root, engine=SparkEngine(session, broadcast_mb=1e-6))
    found = dataset.merge(session.createDataFrame(_rows(3500, 9000, 2.0)), "id")
    assert (found["inserted"], found["updated"]) == (5000, 500)
    files = [oracle.read_file(path) for path in oracle.data_files(root)]
    assert len(files) == 5
    assert sorted(value for file in files for value in file["id"].to_pylist()) == list(range(9000))
    [added] = [file for file in files if file.num_rows == 5000]
    assert added["id"].to_pylist() == list(range(4000, 9000)), "new rows keep the order of the source"


def test_few_jobs(spark: Any, tmp_path: Path) -> None:
    root = str(tmp_path / "data")
    _target(root)
    dataset = Dataset(root, engine=SparkEngine(spark, broadcast_mb=1e-6))
    source = spark.createDataFrame(_rows(500, 4500, 2.0))
    store = spark.sparkContext._jsc.sc().statusStore()
    before = {job.jobId() for job in _jobs(store)}
    dataset.merge(source, "id")
    # One keeps the source, three are the stages of the join, and one writes what is new.
    assert len({job.jobId() for job in _jobs(store)} - before) <= 5


def _jobs(store: Any) -> list[Any]:
    found = store.jobsList(None)
    return [found.apply(at) for at in range(found.size())]


def test_a_large_file_is_read_by_several_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parketto.engines.spark.merging._READ_BYTES", 1000)
    path = str(tmp_path / "one.parquet")
    pq.write_table(_rows(0, 1000), path, row_group_size=100)
    store, _ = open_store(str(tmp_path))
    [file] = read_snapshot(store, "", list(store.stat_many([path]).values()), None).files
    runs = [(first, stop) for first, stop, _ in row_group_runs(file)]
    assert len(runs) > 1
    assert [number for first, stop in runs for number in range(first, stop)] == list(range(10))


@pytest.mark.sweep
def test_more_keys_than_the_driver_can_hold(tmp_path: Path) -> None:
    """Spark takes a frame of `mapInArrow` for 12 bytes, and would broadcast any number of keys."""
    done = subprocess.run(
        [sys.executable, WORKER, str(tmp_path / "data"), "8000000"],
        env={**os.environ, "PYSPARK_SUBMIT_ARGS": "--driver-memory 1g pyspark-shell", "SPARK_SUBMIT_OPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    assert done.stdout.splitlines()[-1] == "8000000 updated, 400000 inserted, 8400000 rows"

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
from parketto.engines.spark.arrow_blocks import unblocked
from parketto.engines.spark.engine import SparkEngine
from parketto.engines.spark.merge_stages import Read, Unit
from parketto.engines.spark.merging import row_group_runs
from parketto.engines.spark.shipping import dumps, loads
from parketto.errors import InvalidArgument
from parketto.merge.rules import MergeRules
from parketto.merge.target import MergeTarget
from parketto.parquet.row_source import FileRows
from parketto.parquet.snapshot import read_snapshot
from parketto.storage.opening import open_store

pytestmark = pytest.mark.spark

WORKER = str(Path(__file__).with_name("worker_many_keys.py"))


def _target(root: str) -> None:
    oracle.write_files(root, {f"{part}.parquet": _rows(1000 * part, 1000 * part + 1000) for part in range(4)})


def _rows(first: int, stop: int, value: float = 1.0) -> pa.Table:
    return pa.table({"id": range(first, stop), "value": [value] * (stop - first)})


def test_new_rows_make_one_file_whatever_the_shuffle(spark: Any, tmp_path: Path) -> None:
    """Every shuffle partition once wrote a file."""
    root = str(tmp_path / "data")
    _target(root)
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "20")
    session.conf.set("spark.sql.adaptive.enabled", "false")
    dataset = Dataset(root, engine=SparkEngine(session, broadcast_mb=1e-6))
    found = dataset.merge(session.createDataFrame(_rows(3500, 9000, 2.0)), "id")
    assert (found["inserted"], found["updated"]) == (5000, 500)
    files = [oracle.read_file(path) for path in oracle.data_files(root)]
    assert len(files) == 5
    assert sorted(value for file in files for value in file["id"].to_pylist()) == list(range(9000))
    [added] = [file for file in files if file.num_rows == 5000]
    assert added["id"].to_pylist() == list(range(4000, 9000)), "new rows keep the order of the source"


@pytest.mark.parametrize(
    ("adaptive", "partitions"),
    [("true", "200"), ("false", "20"), pytest.param("false", "200", marks=pytest.mark.sweep)],
)
def test_partitions_get_one_file_whatever_the_shuffle(
    spark: Any, tmp_path: Path, adaptive: str, partitions: str
) -> None:
    root = str(tmp_path / "data")
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", partitions)
    session.conf.set("spark.sql.adaptive.enabled", adaptive)
    dataset = Dataset(root, engine=SparkEngine(session, broadcast_mb=1e-6, shuffle_mb=1e-6))
    dataset.write(session.createDataFrame(_in_partitions(0, 4000)), partition_by=["part"])
    before = len(oracle.data_files(root))
    assert before == 5
    found = dataset.merge(session.createDataFrame(_in_partitions(3500, 9000)), "id")
    assert (found["inserted"], found["updated"]) == (5000, 500)
    files = oracle.data_files(root)
    assert len(files) == before + 5, "one more in each partition"
    assert sorted(value for path in files for value in oracle.read_file(path)["id"].to_pylist()) == list(
        range(9000)
    )


def _in_partitions(first: int, stop: int) -> pa.Table:
    return _rows(first, stop).append_column("part", pa.array([number % 5 for number in range(first, stop)]))


@pytest.mark.parametrize("partition_by", [None, "part"])
@pytest.mark.parametrize("local", [True, False])
def test_few_jobs(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partition_by: str | None, local: bool
) -> None:
    monkeypatch.setattr("parketto.engines.spark.engine.is_local", lambda _: local)
    root = str(tmp_path / "data")
    dataset = Dataset(root, engine=SparkEngine(spark, broadcast_mb=1e-6))
    Dataset(root, "pyarrow").write(_in_partitions(0, 4000), partition_by=partition_by)
    source = spark.createDataFrame(_in_partitions(500, 4500))
    store = spark.sparkContext._jsc.sc().statusStore()
    before = {job.jobId() for job in _jobs(store)}
    found = dataset.merge(source, "id")
    assert (found["inserted"], found["updated"]) == (500, 3500)
    # One materializes the source, three are the stages of the join, and one writes the new rows.
    assert len({job.jobId() for job in _jobs(store)} - before) <= 5


def test_few_files_are_read_without_a_shuffle(spark: Any, tmp_path: Path) -> None:
    """A job that only distributes file names takes about as long as the work itself."""
    root = str(tmp_path / "data")
    _target(root)
    dataset = Dataset(root, engine=SparkEngine(spark, shuffle_mb=1e-6))
    store = spark.sparkContext._jsc.sc().statusStore()
    before = {job.jobId() for job in _jobs(store)}
    dataset.optimize(["value"], curve="linear")
    # One sorts, and one writes.
    assert len({job.jobId() for job in _jobs(store)} - before) <= 2
    assert sorted(dataset.read()["id"].to_pylist()) == list(range(4000))


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


class TestHotKeys:
    """All rows of a key are joined in one task, so duplicates must be dropped before the shuffle."""

    @pytest.fixture(autouse=True)
    def as_a_task(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("parketto.engines.spark.tasks.task_cpus", lambda: 1)

    def sent(
        self, tmp_path: Path, ids: list[int], strategy: str, memory: int = 256 * 1024
    ) -> tuple[pa.Table, Any]:
        """The source rows that a task sends to the join, and the error that it sends instead."""
        oracle.write_files(str(tmp_path / "target"), {"a.parquet": _rows(0, 10)})
        rows = pa.table({"id": ids, "value": pa.array(range(len(ids)), pa.float64())})
        oracle.write_files(str(tmp_path / "source"), {"a.parquet": rows}, row_group_size=1000)
        store, _ = open_store(str(tmp_path))
        source, target = (
            read_snapshot(store, "", store.list_files(str(tmp_path / name)), None).files
            for name in ("source", "target")
        )
        rules = MergeRules.of(strategy, "id", ["value"] if strategy == "deduplicate" else None)
        schema = rows.schema
        merge = MergeTarget.of(str(tmp_path / "target"), target, rules, "snappy", schema, ())
        read = Read(FileRows.of(store, source), merge, store, memory, buckets=8)
        unit = Unit(is_source=True, position=0, first=0, stop=len(source[0].row_groups))
        packets, errors = [], []
        for batch in read([pa.record_batch({"payload": [dumps([unit])]})]):
            found = packets if batch["is_source"][0].is_valid else errors
            found.append(batch["packet"][0])
        return pa.Table.from_batches(unblocked(packets)) if packets else schema.empty_table(), errors

    def test_duplicates_are_dropped_where_they_are_read(self, tmp_path: Path) -> None:
        ids = [5 if number % 10 else number for number in range(50_000)]
        sent, errors = self.sent(tmp_path, ids, "deduplicate")
        assert not errors
        assert sent.num_rows < 7000
        latest = dict(zip(ids, range(50_000), strict=True))
        found: dict[int, float] = {}
        for key, value in zip(sent["id"].to_pylist(), sent["value"].to_pylist(), strict=True):
            found[key] = max(value, found.get(key, -1))
        assert found == latest

    def test_refused_duplicates_are_found_before_the_shuffle(self, tmp_path: Path) -> None:
        sent, errors = self.sent(tmp_path, [5] * 45_000 + list(range(10, 5010)), "upsert")
        assert sent.num_rows < 45_000
        with pytest.raises(InvalidArgument, match=r"at least 1 key of 'id' more than once, such as {'id': 5}"):
            raise loads(errors[0].as_py())


@pytest.mark.sweep
def test_more_keys_than_the_driver_can_hold(tmp_path: Path) -> None:
    """Spark estimates the result of `mapInArrow` as 12 bytes, and would broadcast any number of keys."""
    done = subprocess.run(
        [sys.executable, WORKER, str(tmp_path / "data"), "8000000"],
        env={**os.environ, "PYSPARK_SUBMIT_ARGS": "--driver-memory 1g pyspark-shell", "SPARK_SUBMIT_OPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    assert done.stdout.splitlines()[-1] == "8000000 updated, 400000 inserted, 8400000 rows"

"""Reading, sorting and writing in several threads: results are the same as with one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from conftest import Place
from helpers import oracle
from helpers.tasks import TellThreads
from parketto import Dataset, Repartitioner
from parketto.engines.base import Context
from parketto.engines.pyarrow.engine import PyArrowEngine
from parketto.engines.spark.engine import SparkEngine
from parketto.engines.spark.session import is_local
from parketto.engines.spark.tasks import parallelism
from parketto.parquet.file_writer import FileWriter
from parketto.runtime.staging import Staging
from parketto.sorting import external_sort
from parketto.storage.local import LocalStore
from parketto.tasks import write_partitions


def readings(place: Place) -> None:
    """More than fits into the memory that the tests allow."""
    chance = np.random.default_rng(3)
    for number in range(6):
        rows = 5_000
        table = pa.table(
            {
                "a": chance.integers(0, 500, rows),
                "b": np.where(chance.random(rows) < 0.1, np.nan, chance.normal(0, 1, rows)),
                "day": pa.array([None if day == 7 else f"d{day}" for day in chance.integers(0, 8, rows)]),
                "text": [f"{number}-{row:06d}" * 8 for row in range(rows)],
            }
        )
        place.write_files({f"f{number}.parquet": table})


def found(place: Place) -> dict[str, list[Any]]:
    """The rows of every folder, in the order of its files."""
    rows: dict[str, list[Any]] = {}
    for path in oracle.data_files(place.root, place.fs):
        table = oracle.read_file(path, place.fs)
        folder = path[len(place.root) :].rpartition("/")[0]
        rows.setdefault(folder, []).extend(map(repr, table.to_pylist()))
    return rows


def change(dataset: Dataset, operation: str) -> None:
    if operation == "repartition":
        dataset.repartition(["day"])
    else:
        dataset.optimize(["a", "b"], curve=operation, target_rows_per_file=10_000)  # type: ignore[arg-type]


def running_helper_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("parketto")]


@pytest.fixture
def small_row_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several partitions are written at once, however little memory there is."""
    monkeypatch.setattr(write_partitions, "_MIN_ROW_GROUP_BYTES", 1)


@pytest.mark.usefixtures("small_row_groups")
@pytest.mark.parametrize("operation", ["hilbert", "zorder", "linear", "repartition"])
def test_threads_do_not_change_rows_or_order(local: Place, memory: Place, operation: str) -> None:
    for place, threads in ((local, 1), (memory, 3)):
        readings(place)
        change(place.dataset(engine="pyarrow", memory_mb=2, threads=threads), operation)
    assert found(local) == found(memory)
    assert sum(map(len, found(memory).values())) == 30_000
    assert running_helper_threads() == []
    assert memory.left_behind() == []


@pytest.mark.usefixtures("small_row_groups")
@pytest.mark.parametrize("rows_before", [0, 9_000, 25_000])
@pytest.mark.parametrize("operation", ["hilbert", "linear", "repartition"])
def test_error_in_one_thread_stops_all(
    local: Place, monkeypatch: pytest.MonkeyPatch, operation: str, rows_before: int
) -> None:
    """Nothing is changed or left behind."""
    readings(local)
    before, state = found(local), local.state()
    written, counting = 0, threading.Lock()
    genuine = FileWriter.write

    def failing(self: FileWriter, batch: pa.RecordBatch) -> None:
        nonlocal written
        with counting:
            written += batch.num_rows
        if written > rows_before:
            raise OSError("no space left")
        genuine(self, batch)

    monkeypatch.setattr(FileWriter, "write", failing)
    with pytest.raises(OSError, match="no space left"):
        change(local.dataset(engine="pyarrow", memory_mb=2, threads=3), operation)
    assert running_helper_threads() == []
    monkeypatch.undo()
    assert local.state() == state
    assert found(local) == before
    assert local.left_behind() == []


@pytest.mark.usefixtures("small_row_groups")
def test_sources_are_read_in_the_thread_of_the_caller(local: Place) -> None:
    """Database cursors may be bound to their thread, and waiting for a queue must not block Ctrl-C."""
    asked_in = set()

    def rows() -> Iterator[pa.RecordBatch]:
        for number in range(200):
            asked_in.add(threading.current_thread())
            yield pa.record_batch({"day": [number % 5] * 500, "text": [f"{number:06d}" * 20] * 500})

    reader = pa.RecordBatchReader.from_batches(pa.schema({"day": pa.int64(), "text": pa.string()}), rows())
    dataset = local.dataset(engine="pyarrow", memory_mb=2, threads=3)
    assert dataset.write(reader, partition_by="day")["rows_written"] == 100_000
    assert asked_in == {threading.current_thread()}


def test_transforms_are_called_in_the_thread_of_the_caller(local: Place) -> None:
    readings(local)
    called_in = set()

    def shortened(frame: pl.DataFrame) -> pl.DataFrame:
        called_in.add(threading.current_thread())
        return frame.with_columns(pl.col("text").str.head(50))

    engine = PyArrowEngine(memory_mb=2, threads=3)
    Repartitioner(local.root, f"{local.root}-new", ["day"], engine=engine).repartition(transform_fn=shortened)
    assert called_in == {threading.current_thread()}


@pytest.mark.parametrize("threads", [1, 3])
def test_sort_is_stable_across_many_runs(local: Place, monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    monkeypatch.setattr(external_sort, "_MAX_FAN_IN", 3)
    chance = np.random.default_rng(4)
    numbers = np.arange(40_000)
    given = pa.table({"key": chance.integers(0, 5, len(numbers)), "n": numbers, "text": ["x" * 60] * len(numbers)})
    local.write_files({f"f{part:02}.parquet": given.slice(part * 2000, 2000) for part in range(20)})
    local.dataset(engine="pyarrow", memory_mb=1, threads=threads).optimize(["key"])
    keys = [oracle.read_file(path).select(["key", "n"]) for path in oracle.data_files(local.root)]
    rows = [tuple(row.values()) for row in pa.concat_tables(keys).to_pylist()]
    assert rows == sorted(rows)


def test_spark_tasks_use_idle_cores_in_local_mode(local: Place, spark: Any) -> None:
    """On a cluster, other cores belong to other tasks, so a task uses one."""
    cores = parallelism(spark)
    context = Context(LocalStore(local.fs), Staging(local.root), "test")
    engine = SparkEngine(spark)
    assert engine.run([TellThreads()], context) == [cores if is_local(spark) else 1]
    assert engine.run([TellThreads()] * cores, context) == [1] * cores

"""Cases that only exist on Spark: retried tasks, footers read in tasks, concurrent writers in one session."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from conftest import Place
from helpers import oracle
from helpers.flaky import FlakyFileSystem
from parketto import CommitConflict, Dataset, InvalidArgument, UnreadableFile
from parketto.engines.spark.engine import SparkEngine

pytestmark = pytest.mark.spark

MERGER = str(Path(__file__).with_name("worker_merge.py"))


def test_task_that_fails_once(tmp_path: Path, spark: Any) -> None:
    """It is retried: every row exists once, and files staged by the first attempt are removed."""
    mark = tmp_path / "failed"
    fs = FlakyFileSystem(str(tmp_path / "disk"), str(mark), os.getpid())
    fs.makedirs("data", exist_ok=True)
    place = Place("data/events", fs)
    # More groups than there are Spark tasks, so that a task has staged something before it fails.
    place.write_files(
        {f"day={day:02d}/{n}.parquet": pa.table({"id": [day * 2 + n]}) for day in range(40) for n in range(2)}
    )
    stats = Dataset(place.root, engine="spark", filesystem=fs, spark=spark).compact()
    assert mark.exists(), "no task has failed, so nothing was tested"
    assert stats["after_file_count"] == len(place.files()) == 40
    assert sum(place.rows().values()) == 80
    assert place.left_behind() == []


def test_error_of_a_task_keeps_its_type(local: Place) -> None:
    """After one attempt, and the dataset is unchanged."""
    local.write_files({f"{n}.parquet": pa.table({"id": range(1000)}) for n in range(3)})
    path = f"{local.root}/1.parquet"
    content = bytearray(local.fs.cat_file(path))
    content[4:200] = b"\xff" * 196
    local.fs.pipe_file(path, bytes(content))
    before = local.state()
    with pytest.raises(UnreadableFile, match=r"1\.parquet"):
        local.dataset(engine="spark").compact()
    assert local.state() == before
    assert local.left_behind() == []


def test_memory_filesystem_is_refused_with_advice(memory: Place) -> None:
    memory.write_files({f"{n}.parquet": pa.table({"id": [n]}) for n in range(2)})
    before = memory.state()
    for run in (
        lambda dataset: dataset.compact(),
        lambda dataset: dataset.delete("id = 1"),
        lambda dataset: dataset.merge(pa.table({"id": [1]}), ["id"]),
    ):
        with pytest.raises(InvalidArgument, match="engine='pyarrow'"):
            run(memory.dataset(engine="spark"))
    assert memory.state() == before
    assert memory.left_behind() == []


def test_footers_of_many_files_are_read_in_tasks(local: Place, spark: Any) -> None:
    local.write_files({f"day={n % 3}/{n:03d}.parquet": pa.table({"id": [n], "x": ["a"]}) for n in range(30)})
    few, many = (SparkEngine(spark, footers_in_tasks=at).footers_in_tasks for at in (31, 30))
    here = Dataset(local.root, SparkEngine(spark, footers_in_tasks=few)).files()
    there = Dataset(local.root, SparkEngine(spark, footers_in_tasks=many)).files()
    assert here == there
    assert Dataset(local.root, SparkEngine(spark, footers_in_tasks=1)).compact()["after_file_count"] == 3


def test_filesystem_that_cannot_be_pickled_is_refused(local: Place, tmp_path: Path) -> None:
    fs = FlakyFileSystem(str(tmp_path), "", 0)
    fs.storage_options["lock"] = threading.Lock()
    fs.makedirs("data", exist_ok=True)
    place = Place("data/events", fs)
    place.write_files({f"{n}.parquet": pa.table({"id": [n]}) for n in range(2)})
    with pytest.raises(InvalidArgument, match="cannot be pickled"):
        place.dataset(engine="spark").compact()
    assert place.left_behind() == []


def test_sort_by_shuffle_writes_files_of_the_target_size(local: Place, spark: Any) -> None:
    rows = pa.table(
        {"k": [(n * 7919) % 20_000 for n in range(20_000)], "s": [f"{n % 97:05d}" for n in range(20_000)]}
    )
    local.write_files({f"{n}.parquet": rows.slice(n * 2000, 2000) for n in range(10)})
    dataset = Dataset(local.root, SparkEngine(spark, shuffle_mb=1e-6))
    dataset.optimize(["k"], target_rows_per_file=2500)
    files = dataset.files()
    assert all(file.num_rows <= 2500 for file in files)
    assert len(files) <= 16, "the plan says 8; range partitioning by samples is not exact"
    bounds = sorted((file.column_stats("k").min, file.column_stats("k").max) for file in files)
    assert all(high <= low for (_, high), (low, _) in pairwise(bounds))
    assert sorted(dataset.read().column("k").to_pylist()) == list(range(20_000))
    # A small last file may be merged with its neighbour once; all others are not rewritten.
    again, at_last = (dataset.optimize(["k"], target_rows_per_file=2500)["compacted_file_count"] for _ in range(2))
    assert again < len(files)
    assert at_last == 0


def test_appends_from_four_threads(local: Place, spark: Any) -> None:
    errors: list[BaseException] = []

    def append(thread: int) -> None:
        try:
            for number in range(25):
                rows = pa.table({"id": [thread * 25 + number]})
                Dataset(local.root, engine="spark", spark=spark).write(rows, basename_template="data_{}.parquet")
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=append, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(local.dataset().read().column("id").to_pylist()) == list(range(100))
    assert local.files() == [f"data_{number:03d}.parquet" for number in range(100)]


@pytest.mark.sweep
@pytest.mark.own_spark
@pytest.mark.parametrize("merges", [2, 12])
def test_two_processes_merge_at_once(local: Place, merges: int) -> None:
    """The loser of a race gets a conflict and retries: no row is lost or duplicated."""
    local.write_files({f"{n}.parquet": pa.table({"id": [n], "by": [""], "n": [0]}) for n in range(12)})
    workers = [
        subprocess.Popen(
            [sys.executable, MERGER, local.root, name, str(merges)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("a", "b")
    ]
    assert [worker.stdout.readline() for worker in workers if worker.stdout] == ["ready\n"] * 2
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("start\n")
        worker.stdin.flush()
    for worker in workers:
        worker.communicate()
    assert [worker.returncode for worker in workers] == [0, 0]
    rows = local.dataset().read().to_pylist()
    ids = sorted(row["id"] for row in rows)
    assert ids == [*range(12), *range(100, 100 + merges)]
    assert local.left_behind() == []


def test_removed_input_is_a_conflict(local: Place) -> None:
    """Files that are removed while Spark's tasks read them are a conflict, not an unclear error."""
    local.write_files({f"{n}.parquet": pa.table({"id": [n]}) for n in range(4)})
    dataset = local.dataset(engine="spark")
    original = dataset.engine.rewrite

    def late(plan: Any, context: Any) -> Any:
        local.fs.rm_file(f"{local.root}/2.parquet")
        return original(plan, context)

    dataset.engine.rewrite = late  # type: ignore[method-assign]
    with pytest.raises(CommitConflict, match=r"2\.parquet.*is gone"):
        dataset.compact()
    assert len(oracle.data_files(local.root)) == 3


def test_spark_frame_on_another_engine_is_refused(local: Place, spark: Any) -> None:
    """All rows would have to be collected on the driver: users must do that explicitly."""
    with pytest.raises(InvalidArgument, match="needs the Spark engine"):
        local.dataset(engine="pyarrow").write(spark.range(3))
    assert not local.fs.exists(local.root)


def test_source_is_read_once(local: Place, spark: Any) -> None:
    """A frame that reads its target, or is nondeterministic, is materialized first."""
    from pyspark.sql import functions as F  # noqa: N812

    dataset = local.dataset(engine="spark")
    dataset.write(spark.range(100).withColumn("v", F.lit(0.0)))
    frame = spark.read.parquet(local.root).where("id >= 50").withColumn("v", F.rand())
    more = frame.selectExpr("id + 50 AS id", "v")
    assert dataset.merge(more, ["id"]) == {"inserted": 50, "updated": 0, "deleted": 0, "total": 150}
    assert dataset.merge(frame, ["id"])["total"] == 150
    found = dataset.read().to_pandas()
    assert sorted(found["id"]) == list(range(150))
    assert (found.loc[found["id"] < 50, "v"] == 0).all()

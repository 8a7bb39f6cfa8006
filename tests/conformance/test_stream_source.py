"""`readStream.format("parketto")`: the rows that are added to a dataset, in micro-batches."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from conftest import Place


def table(first: int, rows: int = 5) -> pa.Table:
    numbers = list(range(first, first + rows))
    return pa.table({"id": numbers, "day": [number % 2 for number in numbers]})


class Query:
    """A streaming query that collects ids; each run processes what is there, from its checkpoint on."""

    def __init__(self, spark: Any, place: Place, folder: Path, **options: str) -> None:
        self._spark, self._path, self.options = spark, place.root, options
        self.checkpoint = folder
        self.batches: dict[int, list[int]] = {}

    def run(self) -> list[int]:
        """The ids that this run has delivered, sorted."""
        found: list[int] = []

        def collect(frame: Any, number: int) -> None:
            self.columns = frame.columns
            rows = sorted(row.id for row in frame.collect())
            self.batches[number] = rows
            found.extend(rows)

        source = self._spark.readStream.format("parketto").options(**self.options).load(self._path)
        writer = source.writeStream.foreachBatch(collect).option("checkpointLocation", str(self.checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()
        return sorted(found)


@pytest.fixture
def query(spark: Any, local: Place, tmp_path: Path) -> Callable[..., Query]:
    local.dataset().write(table(0), partition_by="day")
    return lambda name="checkpoint", **options: Query(spark, local, tmp_path / name, **options)


def test_rows_are_delivered_once(local: Place, query: Callable[..., Query]) -> None:
    """Appends, compactions, files of other programs, restarts, and the replay of micro-batches."""
    stream, dataset = query(), local.dataset()
    local.write_files({"day=1/other.parquet": table(41, 1)})
    assert stream.run() == [0, 1, 2, 3, 4, 41]
    dataset.write(table(10))
    dataset.compact()
    local.write_files({"day=1/another.parquet": table(51, 1)})
    dataset.write(pa.table({"id": [60], "day": [0], "note": ["new"]}), schema="evolve")
    assert stream.run() == [10, 11, 12, 13, 14, 51, 60]
    assert stream.columns == ["id", "day", "note"], "a restarted stream has the schema of now"
    dataset.compact()
    assert stream.run() == []
    # After a crash before their commits were recorded, Spark runs the last micro-batch again.
    (stream.checkpoint / "commits/1").unlink()
    (stream.checkpoint / "commits/.1.crc").unlink(missing_ok=True)
    dataset.write(table(70, 1))
    assert stream.run() == [10, 11, 12, 13, 14, 51, 60, 70]
    assert stream.batches[1] == [10, 11, 12, 13, 14, 51, 60]


def test_options(local: Place, query: Callable[..., Query]) -> None:
    dataset = local.dataset()
    latest = query("latest", starting_commit="latest", where="id <> 11", columns="id", max_commits_per_batch="1")
    assert latest.run() == []
    for first in (10, 20, 30):
        dataset.write(table(first, 2))
    assert latest.run() == [10, 20, 21, 30, 31]
    assert latest.columns == ["id"]
    assert [rows for _, rows in sorted(latest.batches.items()) if rows] == [[10], [20, 21], [30, 31]]
    dataset.delete("id = 2")
    dataset.write(table(50, 1))
    with pytest.raises(Exception, match=r"(?s)StreamStopped: commit 6, delete by .*on_change='skip'"):
        latest.run()
    latest.options["on_change"] = "skip"
    assert latest.run() == [50]
    redeliver = query("redeliver", starting_commit="6", on_change="redeliver")
    assert redeliver.run() == [0, 4, 50]
    for options, message in [
        ({"on_change": "ignore"}, "valid choices: 'fail', 'skip', 'redeliver'"),
        ({"starting_commit": "now"}, "expected 'earliest', 'latest' or the number of a commit"),
    ]:
        with pytest.raises(Exception, match=message):
            query("refused", **options).run()


def test_writers_beside_a_reader(spark: Any, local: Place, query: Callable[..., Query], tmp_path: Path) -> None:
    """Two writers and a compaction, in threads, while the stream runs."""
    delivered: list[int] = []
    source = spark.readStream.format("parketto").load(local.root)
    writer = source.writeStream.foreachBatch(lambda frame, _: delivered.extend(row.id for row in frame.collect()))
    running = writer.option("checkpointLocation", str(tmp_path / "running")).start()

    def write(first: int) -> None:
        for number in range(8):
            local.dataset(retries=20).write(table(first + number * 10, 3))

    def compact() -> None:
        for number in range(8):
            local.write_files({f"day=0/other-{number}.parquet": table(2000 + number, 1)})
            local.dataset(retries=20).compact()

    threads = [threading.Thread(target=write, args=(first,)) for first in (100, 1000)]
    threads.append(threading.Thread(target=compact))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    running.processAllAvailable()
    running.stop()
    assert sorted(delivered) == sorted(local.dataset().read().column("id").to_pylist())
    assert len(delivered) == 5 + 2 * 8 * 3 + 8
    shutil.rmtree(tmp_path / "running")

"""A driver of its own: works on a dataset with tasks that take their time, so that somebody can interfere."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from helpers import slow
from parketto import Dataset, ParkettoError, sql
from parketto.engines.spark import frames, merging
from parketto.engines.spark.engine import SparkEngine
from parketto.handlers import SparkParquetHandler


def make(root: str) -> None:
    for day in range(8):
        os.makedirs(f"{root}/day={day}")
        for part in range(5):
            first = (day * 5 + part) * 100
            pq.write_table(pa.table({"id": range(first, first + 100)}), f"{root}/day={day}/{part}.parquet")


def interfere(dataset: Dataset, marks: str, how: Callable[[], object]) -> None:
    """Compact while another thread interferes, as soon as a task has staged its files; print how that ends."""
    for name in os.listdir(marks):
        os.remove(os.path.join(marks, name))

    def later() -> None:
        slow.wait_for_mark(Path(marks))
        how()

    other = threading.Thread(target=later)
    other.start()
    try:
        dataset.compact()
    except ParkettoError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
    other.join()


def everything(root: str) -> None:
    """One operation of every kind, in tasks and by shuffles."""
    for engine in (SparkEngine(), SparkEngine(broadcast_mb=1e-6, shuffle_mb=1e-6)):
        dataset, spark = Dataset(root, engine), engine.session
        dataset.write(spark.range(4000, 4100).selectExpr("id", "'7' AS day"))
        dataset.delete("id >= 4050")
        dataset.merge(spark.range(3990, 4010).selectExpr("id", "'7' AS day"), ["id"])
        dataset.delete("id >= 4000")
        dataset.update("id % 2 = 0", {"id": sql("id + 0")})
        dataset.optimize(["id"])
    print("rows:", dataset.read().num_rows, flush=True)


def limited(root: str) -> None:
    """Operations on files of some size; afterwards what a worker says of its limits."""
    for day in range(2):
        for part in range(4):
            first = 10_000 + (day * 4 + part) * 100_000
            numbers = np.arange(first, first + 100_000)
            rows = pa.table(
                {"id": numbers, "x": np.sin(numbers), "s": [f"name-{n * 7919 % 100_003}" for n in numbers]}
            )
            pq.write_table(rows, f"{root}/day={day}/large-{part}.parquet", row_group_size=50_000)
    for engine in (SparkEngine(), SparkEngine(broadcast_mb=1e-6, shuffle_mb=1e-6)):
        dataset, spark = Dataset(root, engine), engine.session
        dataset.compact(rewrite="encode", target_rows_per_file=500_000)
        dataset.write(spark.range(900_000, 1_000_000).selectExpr("id", "0D AS x", "uuid() AS s", "'0' AS day"))
        dataset.delete("id >= 900000")
        dataset.merge(spark.range(10_000, 60_000).selectExpr("id", "0D AS x", "uuid() AS s", "'0' AS day"), ["id"])
        dataset.optimize(["x"])
    print("rows:", dataset.read().num_rows, flush=True)


def main(how: str, root: str) -> None:
    make(root)
    if how in ("everything", "limited"):
        try:
            {"everything": everything, "limited": limited}[how](root)
        except ParkettoError as error:
            print(f"{type(error).__name__}: {error}", flush=True)
        return
    marks = os.path.join(os.path.dirname(os.path.dirname(root)), "marks")
    os.makedirs(marks)
    engine = slow.SlowSpark()
    engine.marks = marks
    dataset = Dataset(root, engine=engine)
    session = engine.session
    if how == "connected":
        session.addTag("mine")
        interfere(dataset, marks, lambda: session.interruptTag("mine"))
        interfere(dataset, marks, session.interruptAll)
        print("tags:", session.getTags(), flush=True)
        same_names(root)
        interfere(dataset, marks, session.stop)
        return
    session.sparkContext.addPyFile(slow.__file__)
    session.range(1).count()  # executors are there
    if how == "stopped":
        interfere(dataset, marks, session.stop)
        return
    if how == "joining":
        slow.SlowShipped.marks = marks
        merging.Shipped = frames.Shipped = slow.SlowShipped  # type: ignore[misc]
        shuffling = Dataset(root, SparkEngine(session, broadcast_mb=1e-6, shuffle_mb=1e-6))
        print("working", flush=True)
        print(shuffling.merge(session.range(3900, 4100).selectExpr("id", "'7' AS day"), ["id"]), flush=True)
        return
    if how == "slowly":
        dataset.compact()
        if len(os.listdir(marks)) > 8:
            print("tried again")
        return
    try:
        dataset.compact()
    except KeyboardInterrupt:
        time.sleep(0.5)
        active = session.sparkContext.statusTracker().getActiveJobsIds()
        print("interrupted, jobs that go on:", list(active), flush=True)


def same_names(root: str) -> None:
    """Two handlers whose queries name a table alike: each result has the rows of its own."""
    first, second = SparkParquetHandler(), SparkParquetHandler()
    query = "SELECT count(*) AS n FROM events"
    one = first.execute_sql(query, tables={"events": f"{root}/day=1"})
    other = second.execute_sql(query, tables={"events": root})
    again = first.execute_sql(
        "/* {} */ WITH events AS (SELECT * FROM events WHERE id > ?) SELECT count(*) AS n, '{x}' FROM events;",
        [9],
        tables={"events": f"{root}/day=0/0.parquet"},
    )
    first.execute_sql("CREATE OR REPLACE TEMP VIEW lasting AS SELECT 1 AS n", tables={"events": root})
    found = second.execute_sql("SELECT n FROM lasting ORDER BY n", tables={"events": root})
    print("counts:", *(frame.collect()[0]["n"] for frame in (one, other, again, found)), flush=True)
    print("views:", *(table.name for table in first.spark.catalog.listTables()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

"""A driver in its own process, whose slow tasks leave time to interrupt it."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from helpers import attempts, slow
from parketto import Dataset, ParkettoError, sql
from parketto.compat import SparkParquetHandler
from parketto.engines.spark import engine, frames, merging, shuffle_write, tasks
from parketto.engines.spark.engine import SparkEngine
from parketto.engines.spark.shipping import PickledFunction


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
    """Run one operation of every kind, in tasks and by shuffles."""
    in_tasks, shuffled = (Dataset(root, SparkEngine(broadcast_mb=limit, shuffle_mb=limit)) for limit in (64, 1e-6))
    spark = shuffled.engine.session  # type: ignore[attr-defined]
    in_tasks.write(rows(spark, 4000, 4100))
    rows(spark, 5000, 5100).write.format("parketto").mode("append").save(root)
    assert spark.read.format("parketto").option("where", "id >= 5000").load(root).count() == 100
    in_tasks.merge(rows(spark, 3990, 4010), ["id"])
    in_tasks.update("id % 2 = 0", {"id": sql("id + 0")})
    shuffled.merge(rows(spark, 4090, 4110), ["id"])
    shuffled.delete("id >= 4000")
    shuffled.optimize(["id"])
    print("rows:", shuffled.read().num_rows, flush=True)


def brief(root: str) -> None:
    """A short check of the workers: write rows of a DataFrame, in tasks and by a shuffle."""
    chosen = SparkEngine(broadcast_mb=1e-6)
    dataset = Dataset(root, chosen)
    dataset.merge(rows(chosen.session, 3990, 4010), ["id"])
    dataset.delete("id >= 4000")
    print("rows:", dataset.read().num_rows, flush=True)


def rows(spark: SparkSession, first: int, stop: int, day: str = "'7'") -> DataFrame:
    """Rows of one partition, by default the last one."""
    return spark.range(first, stop).selectExpr("id", f"{day} AS day")


def overtaken(root: str, marks: str, stage: str) -> None:
    """Run operations whose first attempts wait in one stage; the test kills an executor meanwhile."""
    hold_up(marks, stage)
    chosen = SparkEngine(broadcast_mb=1e-6)
    changed = rows(chosen.session, 0, 4200, "cast(least(id, 3999) div 500 AS string)")
    print("working", flush=True)
    if stage == "WriteRows":
        chosen.session.conf.set(
            "spark.sql.adaptive.coalescePartitions.enabled", "false"
        )  # two tasks, however small
        chosen.session.conf.set("spark.sql.shuffle.partitions", "2")
        Dataset(root, chosen).write(changed, "overwrite", partition_by=["day"])
    else:
        print(Dataset(root, chosen).merge(changed, ["id"]), flush=True)


def speculative(root: str, marks: str) -> None:
    """Run operations whose first attempt at one task waits: Spark's speculation starts another."""
    hold_up(marks, "WriteRows")
    attempts.OvertakenShipped.only = 0
    chosen = attempts.OvertakenSpark()
    chosen.marks = marks
    dataset = Dataset(root, chosen)
    dataset.write(chosen.session.range(4000, 4200, numPartitions=4).selectExpr("id", "'7' AS day"))
    print(dataset.compact(), flush=True)


def ship_with(kind: type[PickledFunction]) -> None:
    """Pickle the functions for Spark's tasks with another class."""
    for module in (shuffle_write, frames, merging, tasks):
        module.PickledFunction = kind  # type: ignore[attr-defined]


def hold_up(marks: str, stage: str) -> None:
    """Make first attempts wait in a stage."""
    attempts.OvertakenShipped.marks, attempts.OvertakenShipped.stage = marks, stage
    ship_with(attempts.OvertakenShipped)
    merging._MIN_EDIT_BYTES = 1  # several tasks rewrite files, however small


def main(how: str, root: str, *more: str) -> None:
    make(root)
    if how in ("everything", "brief"):
        try:
            {"everything": everything, "brief": brief}[how](root)
        except ParkettoError as error:
            print(f"{type(error).__name__}: {error}", flush=True)
        return
    marks = os.path.join(os.path.dirname(os.path.dirname(root)), "marks")
    os.makedirs(marks)
    if how in ("overtaken", "speculative"):
        {"overtaken": overtaken, "speculative": speculative}[how](root, marks, *more)
        return
    slowly = slow.SlowSpark()
    slowly.marks = marks
    dataset = Dataset(root, engine=slowly)
    session = slowly.session
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
    if how == "joining":
        slow.SlowShipped.marks = slow.SlowAdditions.marks = marks
        ship_with(slow.SlowShipped)
        engine.WriteAdditions = slow.SlowAdditions  # type: ignore[misc, attr-defined]
        # New rows are written in a task, or shuffled by partition.
        shuffle_mb = 1e-6 if more == ("shuffled",) else 1024
        joining = Dataset(root, SparkEngine(session, broadcast_mb=1e-6, shuffle_mb=shuffle_mb))
        print("working", flush=True)
        print(joining.merge(rows(session, 3900, 4100), ["id"]), flush=True)
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
    interfere(dataset, marks, session.stop)


def same_names(root: str) -> None:
    """Two handlers with equal table names in their queries: each result has its own rows."""
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
    main(*sys.argv[1:])

"""A driver of its own: works on a dataset with tasks that take their time, so that somebody can interfere."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from helpers import slow
from parketto import Dataset, ParkettoError
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


def main(how: str, root: str) -> None:
    make(root)
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

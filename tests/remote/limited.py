"""A driver in its own process, with a memory limit for Python workers; prints the result of each operation.

Run as `limited.py <folder> <limit>=<rows of a file> …`; each limit has a session of its own in the same JVM.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from parketto import Dataset, OutOfMemory
from parketto.engines.spark.engine import SparkEngine

FILES = 8


def make(root: Path, rows: int) -> None:
    """Files of two partitions."""
    for number in range(FILES):
        ids = np.arange(number * rows, (number + 1) * rows)
        texts = [f"name-{n * 7919 % 100_003}" for n in ids]
        folder = root / f"day={number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        table = pa.table({"id": ids, "x": np.sin(ids), "s": texts})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=max(1, rows // 2))


def operations(root: str, spark: SparkSession, rows: int) -> dict[str, Callable[[], object]]:
    """One operation of each kind; together they keep the number of rows."""
    total = rows * FILES

    def frame(first: int, stop: int) -> DataFrame:
        return spark.range(first, stop).selectExpr("id", "0D AS x", "uuid() AS s", "'0' AS day")

    dataset = Dataset(root, SparkEngine(spark))
    large = Dataset(root, SparkEngine(spark, broadcast_mb=1e-6))
    return {
        "copy": partial(dataset.compact, rewrite="copy", target_rows_per_file=2 * rows),
        "encode": partial(dataset.compact, rewrite="encode", target_rows_per_file=5 * rows),
        "append": partial(dataset.write, frame(total, total + rows)),
        "delete": partial(dataset.delete, f"id >= {total}"),
        "small merge": partial(dataset.merge, frame(0, rows // 2), ["id"], "update"),
        "large merge": partial(large.merge, frame(0, total), ["id"]),
        "optimize": partial(dataset.optimize, ["x"]),
    }


def main(folder: str, *limits: str) -> None:
    for limit, _, rows in (each.partition("=") for each in limits):
        root = Path(folder, "data", "events")
        make(root, int(rows))
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        spark = builder.config("spark.executor.pyspark.memory", limit).getOrCreate()
        for name, operation in operations(str(root), spark, int(rows)).items():
            try:
                operation()
            except OutOfMemory as error:
                print(f"{limit} {name}: {error}", flush=True)
            else:
                print(f"{limit} {name}: done", flush=True)
        found = sum(pq.read_metadata(path).num_rows for path in root.rglob("*.parquet"))
        print(f"{limit} rows: {found}, beside: {len(list(root.parent.iterdir())) - 1}", flush=True)
        spark.stop()
        shutil.rmtree(root)


if __name__ == "__main__":
    main(*sys.argv[1:])

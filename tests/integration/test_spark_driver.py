"""Spark's driver gets descriptions of files, not rows: what tasks return does not grow with the rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parketto import Dataset


def returned_bytes(spark: Any) -> int:
    """The bytes that tasks have returned to the driver so far."""
    store, gateway = spark.sparkContext._jsc.sc().statusStore(), spark.sparkContext._gateway
    quantiles, statuses = gateway.new_array(gateway.jvm.double, 0), gateway.jvm.java.util.ArrayList()
    stages = store.stageList(None, False, False, quantiles, statuses)
    return sum(stages.apply(number).resultSize() for number in range(stages.size()))


def write(root: Path, files: int, rows: int) -> None:
    """Random numbers, which cannot be compressed, of 40 folders."""
    root.mkdir()
    rng = np.random.default_rng(1)
    for number in range(files):
        table = pa.table({"n": rng.integers(0, 2**60, rows), "p": np.arange(rows) % 40})
        pq.write_table(table, root / f"{number}.parquet")


@pytest.mark.parametrize(
    ("work", "files_after"),
    [(lambda data: data.compact(rewrite="encode"), 1), (lambda data: data.repartition("p"), 40)],
    ids=["compact", "repartition"],
)
def test_no_rows_return_to_the_driver(
    spark: Any, tmp_path: Path, work: Callable[[Dataset], object], files_after: int
) -> None:
    seen = []
    for name, rows in (("few", 400), ("many", 40_000)):
        write(tmp_path / name, 20, rows)
        dataset = Dataset(tmp_path / name, engine="spark", spark=spark)
        before = returned_bytes(spark)
        work(dataset)
        seen.append(returned_bytes(spark) - before)
        assert len(dataset.files()) == files_after
    few, many = seen
    assert 0 < many < 1.5 * few, "12 MB of rows, of which the driver needs none"

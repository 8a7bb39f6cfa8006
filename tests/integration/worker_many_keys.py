"""Merges a given number of rows by a shuffle; the test limits the memory of the driver."""

from __future__ import annotations

import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from helpers import oracle
from parketto import Dataset
from parketto.engines.spark.engine import SparkEngine

FILES = 8


def rows(ids: np.ndarray, value: int) -> pa.Table:
    return pa.table({"id": ids, "value": np.full(len(ids), value)})


def main(root: str, count: int) -> None:
    step = count // FILES
    oracle.write_files(
        root, {f"{part}.parquet": rows(np.arange(part * step, (part + 1) * step), 1) for part in range(FILES)}
    )
    source = f"{root}-source.parquet"
    ids = np.random.default_rng(1).permutation(count + count // 20)
    pq.write_table(rows(ids, 2), source, row_group_size=500_000)
    engine = SparkEngine(broadcast_mb=1)
    found = Dataset(root, engine=engine).merge(engine.session.read.parquet(source), "id")
    tables = [pq.read_table(path) for path in oracle.data_files(root)]
    everything = pa.concat_tables(tables)
    assert np.array_equal(np.sort(everything["id"].to_numpy()), np.arange(count + count // 20))
    assert set(np.unique(everything["value"].to_numpy())) == {2}
    print(f"{found['updated']} updated, {found['inserted']} inserted, {everything.num_rows} rows")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

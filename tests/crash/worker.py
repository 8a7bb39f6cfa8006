"""A process to be killed: runs each kind of operation on a dataset in turn, forever.

Every row has the version of the overwrite that wrote it, and every version has the same ids, so the rows that are
found afterwards must be one complete version.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import polars as pl  # noqa: F401 - loaded, it encodes what is compacted
import pyarrow as pa

from parketto import Dataset
from parketto.engines.spark.engine import SparkEngine

ROWS = 400


def version_table(version: int) -> pa.Table:
    texts = [f"text {number}" for number in range(ROWS)]
    return pa.table({"id": np.arange(ROWS), "version": np.full(ROWS, version), "text": texts})


def main(path: str, first_version: int, publish: Any, engine: str = "pyarrow") -> None:
    dataset = Dataset(path, engine, publish=publish)
    version_table(first_version)  # PyArrow imports pandas, if that is there, with the first array
    if isinstance(dataset.engine, SparkEngine):
        dataset.engine.session.range(1).count()
    print("ready", flush=True)
    version = first_version
    while True:
        dataset.write(version_table(version), "overwrite", max_rows_per_file=8 if engine == "pyarrow" else 80)
        dataset.compact(target_rows_per_file=90)
        dataset.merge(version_table(version + 1), ["id"])
        # These replace a column, and copy the chunks of the others.
        dataset.update("id >= 0", {"version": version + 2})
        dataset.merge(
            version_table(version + 3).select(["id", "version"]), ["id"], strategy="update", partial=True
        )
        dataset.optimize(["id"], target_rows_per_file=50)
        version += 4


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])

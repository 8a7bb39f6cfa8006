"""The data of benchmarks: trades, seeded, as a collector writes them."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

COLUMNS = ("id", "time", "product", "bucket", "price", "size", "side", "venue")
PRODUCTS = 20


def make_rows(first: int, rows: int, rng: np.random.Generator) -> pa.Table:
    """Trades with consecutive ids."""
    ids = np.arange(first, first + rows)
    return pa.table(
        {
            "id": ids,
            "time": pa.array(1_700_000_000_000_000 + 500 * ids, pa.timestamp("us", "UTC")),
            "product": np.array([f"P{number:02d}-USD" for number in range(PRODUCTS)])[
                rng.integers(0, PRODUCTS, rows)
            ],
            "bucket": rng.integers(0, 100, rows).astype(np.int32),
            "price": np.round(rng.normal(100, 5, rows), 4),
            "size": rng.random(rows),
            "side": rng.integers(0, 2, rows).astype(bool),
            "venue": np.array(["north", "south", "east", "west"])[rng.integers(0, 4, rows)],
        }
    )


def make_data(root: str, files: int, rows: int) -> None:
    """The dataset: many files in one directory."""
    os.makedirs(root)
    rng = np.random.default_rng(7)
    each = rows // files
    for number in range(files):
        pq.write_table(make_rows(number * each, each, rng), f"{root}/part-{number:05d}.parquet")


def make_source(ids: np.ndarray) -> pa.Table:
    """Corrections for the rows with these ids."""
    rows = make_rows(0, len(ids), np.random.default_rng(11))
    return rows.set_column(0, "id", pa.array(ids))


def peak_mb() -> float:
    """The most memory that this program has had; a child's `ru_maxrss` would begin with its parent's."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))


def megabytes(root: str) -> float:
    """The size of a dataset on disk."""
    return (
        sum(os.path.getsize(os.path.join(folder, name)) for folder, _, names in os.walk(root) for name in names)
        / 1e6
    )

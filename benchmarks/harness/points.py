"""The data of the clustering benchmark: rows as points in 2, 3 or 4 dimensions, of kinds that curves find hard."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

COLUMNS = ("a", "b", "c", "d")
PREFIX = "https://shop.example.org/catalogue/items/"


def uniform(rows: int, rng: np.random.Generator) -> list[pa.Array]:
    """Nothing to take hold of: the case in which n^(-1/d) is the best there is."""
    return [pa.array(rng.random(rows)) for _ in COLUMNS]


def integers(rows: int, rng: np.random.Generator) -> list[pa.Array]:
    """The same as whole numbers: curves that look at the bits of values see more in them than in fractions."""
    return [pa.array(rng.integers(0, 2**30, rows)) for _ in COLUMNS]


def skewed(rows: int, rng: np.random.Generator) -> list[pa.Array]:
    """A few values are most of the rows."""
    return [pa.array(np.minimum(rng.zipf(1.3, rows), 1_000_000)) for _ in COLUMNS]


def correlated(rows: int, rng: np.random.Generator) -> list[pa.Array]:
    """All columns nearly say the same."""
    first = rng.normal(0, 1, rows)
    return [pa.array(first + (0.1 * rng.normal(0, 1, rows) if number else 0)) for number in range(4)]


def series(rows: int, rng: np.random.Generator) -> list[pa.Array]:
    """Measurements as they arrive: in the order of time, each of some sensor."""
    return [
        pa.array(1_700_000_000_000_000 + np.cumsum(rng.integers(1, 1000, rows))),
        pa.array(rng.integers(0, 1000, rows)),
        pa.array(np.round(np.cumsum(rng.normal(0, 1, rows)), 3)),
        pa.array(np.round(rng.normal(20, 5, rows), 2)),
    ]


def strings(rows: int, rng: np.random.Generator) -> list[pa.Array]:
    """Text whose first 41 characters are always the same."""
    return [
        pa.array([f"{PREFIX}{number:010d}" for number in rng.integers(0, 10_000_000_000, rows)]) for _ in COLUMNS
    ]


KINDS: dict[str, Callable[[int, np.random.Generator], list[pa.Array]]] = {
    "uniform": uniform,
    "integers": integers,
    "skewed": skewed,
    "correlated": correlated,
    "series": series,
    "strings": strings,
}


def write(kind: str, dimensions: int, root: str, rows: int, files: int) -> pa.Table:
    """The dataset, with as many of the columns as there are dimensions, and something to add up."""
    rng = np.random.default_rng(3)
    columns = dict(zip(COLUMNS[:dimensions], KINDS[kind](rows, rng), strict=False))
    table = pa.table({**columns, "amount": rng.random(rows)})
    os.makedirs(root)
    each = -(-rows // files)
    for number in range(files):
        part = table.slice(number * each, each)
        pq.write_table(
            part, os.path.join(root, f"part-{number:05d}.parquet"), row_group_size=max(1, part.num_rows)
        )
    return table

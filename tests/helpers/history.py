"""A history of one dataset: every operation once, and a digest of its rows after each."""

from __future__ import annotations

import datetime as dt
import decimal
import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from helpers import oracle
from parketto import Dataset, sql

# The hour that New York skips in 2026 lies within the data.
FIRST = dt.datetime(2026, 3, 8, 5, tzinfo=dt.UTC)


def rows(first: int, stop: int, value: float = 1.0) -> pa.Table:
    """Rows of several types, some values missing."""
    ids = range(first, stop)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "day": pa.array([number % 4 for number in ids], pa.int32()),
            "name": [None if number % 11 == 0 else f"name-{number % 7}" for number in ids],
            "at": pa.array(
                [FIRST + dt.timedelta(seconds=10 * number) for number in ids], pa.timestamp("us", "UTC")
            ),
            "price": pa.array([decimal.Decimal(number) / 4 for number in ids], pa.decimal128(12, 2)),
            "flag": [number % 3 == 0 for number in ids],
            "x": pa.array([None if number % 13 == 0 else value * number for number in ids], pa.float64()),
            "tags": pa.array([["a"] * (number % 3) for number in ids], pa.list_(pa.field("element", pa.string()))),
        }
    )


def history(
    dataset: Dataset, large: Dataset, frame: Callable[[pa.Table], Any], rows_each: int = 400
) -> Iterator[tuple[str, str]]:
    """The name of each operation, and a digest of the rows after it.

    Args:
        dataset: The dataset, which does not exist yet.
        large: The same one, with an engine that treats every merge source as large.
        frame: Converts rows to the type that is passed to the dataset.
        rows_each: How many rows are written at once.
    """
    n = rows_each
    dataset.write(frame(rows(0, 2 * n)), partition_by=["day"])
    yield "write", digest(dataset)
    dataset.write(frame(rows(2 * n, 3 * n)), mode="append")
    yield "append", digest(dataset)
    dataset.merge(frame(rows(n, n + 40, 2.0)), "id")
    yield "merge", digest(dataset)
    large.merge(frame(rows(2 * n, 4 * n, 3.0)), "id")
    yield "large merge", digest(dataset)
    dataset.delete("at >= '2026-03-08 03:10:00' AND at < TIMESTAMP '2026-03-08 03:20:00' AND name <> 'name-3'")
    yield "delete", digest(dataset)
    dataset.update("id % 5 = 1", {"x": sql("x * 2"), "at": sql("TIMESTAMP '2026-03-08 12:00:00'")})
    yield "update", digest(dataset)
    dataset.compact()
    yield "compact", digest(dataset)
    dataset.optimize(["id", "x"], target_rows_per_file=n)
    yield "optimize", digest(dataset)
    dataset.repartition(["flag"])
    yield "repartition", digest(dataset)


def digest(dataset: Dataset) -> str:
    """Equal for equal rows in any order."""
    found = oracle.rows(dataset.path)
    return f"{found.total()} rows, {hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()[:16]}"

"""What one engine writes, the others read back equal: rows and exact schema."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from conftest import Place
from helpers import oracle
from parketto import Dataset, DuckDBParquetHandler, SparkParquetHandler

ENGINES = ["pyarrow", "duckdb", "spark"]
INSTANT = dt.datetime(2025, 11, 26, 9, 30, tzinfo=dt.UTC)
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("day", pa.string()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("price", pa.decimal128(12, 4)),
        pa.field("size", pa.float64()),
        pa.field("tags", pa.list_(pa.field("element", pa.string()))),
    ],
    metadata={"made by": "a test"},
)


def rows(first: int, count: int, size: float) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "id": number,
                "day": f"d{number % 3}",
                "at": INSTANT + dt.timedelta(seconds=number),
                "price": Decimal(number) / 4,
                "size": None if number % 5 == 0 else size,
                "tags": None if number % 7 == 0 else ["x", None],
            }
            for number in range(first, first + count)
        ],
        SCHEMA,
    )


def counted(table: pa.Table) -> Counter[str]:
    return Counter(repr(row) for row in table.select(SCHEMA.names).to_pylist())


@pytest.mark.parametrize("writer", ENGINES)
def test_every_engine_reads_what_another_wrote(local: Place, spark: Any, writer: str) -> None:
    dataset = Dataset(local.root, engine=writer)
    dataset.write(rows(0, 60, 1.0), partition_by="day", max_rows_per_file=7)
    dataset.merge(rows(50, 20, 2.0), "id")
    dataset.delete("id < 10")
    dataset.optimize(["id"])
    expected = counted(pa.concat_tables([rows(10, 40, 1.0), rows(50, 20, 2.0)]))
    assert all(found.equals(SCHEMA, check_metadata=True) for found in oracle.schemas(local.root, local.fs))
    assert counted(Dataset(local.root, engine="pyarrow").read()) == expected
    with DuckDBParquetHandler() as duckdb:
        found = duckdb.read_parquet(local.root)
        assert found.schema.equals(SCHEMA, check_metadata=True)
        assert counted(found) == expected
    frame = SparkParquetHandler(spark).read_parquet(local.root)
    assert counted(frame.toArrow()) == expected


@pytest.mark.parametrize("first", ENGINES)
@pytest.mark.parametrize("second", ENGINES)
def test_an_engine_merges_into_a_dataset_of_another(local: Place, spark: Any, first: str, second: str) -> None:
    Dataset(local.root, engine=first).write(rows(0, 30, 1.0), partition_by="day")
    stats = Dataset(local.root, engine=second).merge(rows(20, 20, 2.0), "id")
    assert stats == {"inserted": 10, "updated": 10, "deleted": 0, "total": 40}
    expected = counted(pa.concat_tables([rows(0, 20, 1.0), rows(20, 20, 2.0)]))
    assert counted(Dataset(local.root, engine="pyarrow").read()) == expected
    assert all(found.equals(SCHEMA, check_metadata=True) for found in oracle.schemas(local.root, local.fs))

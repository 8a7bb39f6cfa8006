"""Merging into a plain Parquet dataset: one story for each strategy, on DuckDB.

Run it with `python examples/merging.py`. What makes merges fast:

* Keys that grow with time (ids, timestamps) stand together in few files, and only these are read and rewritten.
  Where keys are scattered, `optimize` by the key once, and later merges touch less.
* A composite key begins with the column that tells files apart best.
* Partition by what rows arrive by (the day, the tenant), not by what changes: a row that changes its partition is
  moved.
* Many tiny merges leave many small files: `compact` now and then; untouched files keep their bytes.
"""

from __future__ import annotations

import datetime as dt
import tempfile

import pyarrow as pa

from parketto import DuckDBParquetHandler


def change_data_capture(handler: DuckDBParquetHandler, users: str) -> None:
    """A database's change feed: the newest state of every row that changed. Strategy: deduplicate."""
    feed = pa.table(
        {
            "id": [1, 2, 1, 3, 2],
            "name": ["Ada", "Bob", "Ada L.", "Cy", "Ben"],
            "changed": [dt.datetime(2025, 11, 4, hour, tzinfo=dt.UTC) for hour in (9, 9, 10, 11, 8)],
        }
    )
    # Two changes of id 1, and one of id 2 that came late: the highest `changed` counts, not the last to arrive.
    stats = handler.merge_parquet_dataset(feed, users, ["id"], "deduplicate", dedup_order_by=["changed"])
    assert stats == {"inserted": 3, "updated": 0, "deleted": 0, "total": 3}
    names = handler.execute_sql("SELECT name FROM users ORDER BY id", tables={"users": users})
    assert names.column("name").to_pylist() == ["Ada L.", "Bob", "Cy"]
    print("change feed     ", stats)


def correction(handler: DuckDBParquetHandler, users: str) -> None:
    """Rows that are corrected or new, each key once. Strategy: upsert."""
    rows = pa.table(
        {"id": [3, 4], "name": ["Cyd", "Dee"], "changed": pa.array([None, None], pa.timestamp("us", "UTC"))}
    )
    stats = handler.merge_parquet_dataset(rows, users, ["id"])
    assert stats == {"inserted": 1, "updated": 1, "deleted": 0, "total": 4}
    print("corrections     ", stats)


def incremental_load(handler: DuckDBParquetHandler, trades: str) -> None:
    """A load that may be repeated, or overlap with the one before. Strategy: insert."""
    first = pa.table({"trade": [1, 2, 3], "day": ["d1", "d1", "d2"], "price": [10.0, 11.0, 12.0]})
    handler.write_parquet_dataset(first, trades, partition_by="day")
    overlapping = pa.table({"trade": [3, 4, 5], "day": ["d2", "d2", "d3"], "price": [99.0, 13.0, 14.0]})
    stats = handler.merge_parquet_dataset(overlapping, trades, ["trade"], "insert")
    assert stats == {"inserted": 2, "updated": 0, "deleted": 0, "total": 5}
    again = handler.merge_parquet_dataset(overlapping, trades, ["trade"], "insert")
    assert again == {"inserted": 0, "updated": 0, "deleted": 0, "total": 5}
    print("incremental load", stats, "and again", again)


def enrichment(handler: DuckDBParquetHandler, trades: str) -> None:
    """New values for what is known, and nothing else. Strategy: update."""
    prices = pa.table({"trade": [5, 77], "day": ["d3", "d3"], "price": [14.5, 0.0]})
    stats = handler.merge_parquet_dataset(prices, trades, ["trade"], "update")
    assert stats == {"inserted": 0, "updated": 1, "deleted": 0, "total": 5}
    print("enrichment      ", stats)


def synchronisation(handler: DuckDBParquetHandler, users: str) -> None:
    """Another system's full state: what it no longer has goes. Strategy: full_merge."""
    everybody = pa.table(
        {
            "id": [2, 4, 5],
            "name": ["Bob", "Dee", "Eve"],
            "changed": pa.array([None] * 3, pa.timestamp("us", "UTC")),
        }
    )
    stats = handler.merge_parquet_dataset(everybody, users, ["id"], "full_merge")
    assert stats == {"inserted": 1, "updated": 2, "deleted": 2, "total": 3}
    print("synchronisation ", stats)


def main() -> None:
    """All of them, in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder, DuckDBParquetHandler() as handler:
        users, trades = f"{folder}/users", f"{folder}/trades"
        change_data_capture(handler, users)
        correction(handler, users)
        incremental_load(handler, trades)
        enrichment(handler, trades)
        synchronisation(handler, users)
        before = handler.compact_parquet_dataset(users, target_mb_per_file=128)["before_file_count"]
        print("all checked; users had", before, "small files, and has one now")


if __name__ == "__main__":
    main()

"""Datasets for reports: one with everything that a report shows, one with names that must be escaped."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parketto import Dataset
from parketto.storage.hive import encode_segment

#: Text that would run, or end its element, if a page did not escape it.
HOSTILE = (
    "<script>window.hit=1</script>",
    '"><img src=x onerror="window.hit=2">',
    "</script><script>window.hit=3</script>",
    "{{ 7 * 7 }}",
    "a'b\"c\\d",
)


def orders(count: int, day: int, start: int) -> pa.Table:
    chance = np.random.default_rng(start)
    midnight = int(dt.datetime(2026, 11, 1 + day, tzinfo=dt.UTC).timestamp() * 1e6)
    seconds = np.sort(chance.integers(0, 86_400, count))
    return pa.table(
        {
            "order_id": np.arange(start, start + count),
            "customer": chance.integers(0, 50_000, count),
            "amount": np.round(chance.gamma(2, 30, count), 2),
            "country": chance.choice(["AT", "DE", "FR", "IT", "US"], count),
            "placed_at": pa.array(midnight + seconds * 1_000_000, pa.timestamp("us", tz="UTC")),
            "day": pa.array([dt.date(2026, 11, 1 + day)] * count),
        }
    )


def shop(folder: Path) -> Dataset:
    """Orders by day: the first days compacted and clustered, the last ones as they came, and some drift."""
    dataset = Dataset(folder / "orders", engine="pyarrow")
    start = 0
    for day in range(6):
        for _ in range(2 if day < 4 else 14):
            count = 9000 if day == 3 else 3000
            dataset.write(orders(count, day, start), partition_by="day")
            start += count
    old = [f"day=2026-11-0{day}" for day in range(1, 5)]
    dataset.compact(partition_filter=old)
    dataset.delete("customer = 17")
    dataset.optimize(["customer", "placed_at"], partition_filter=old, target_mb_per_file=0.1)
    extra = orders(500, 5, start).append_column("coupon", pa.array(["X"] * 500))
    dataset.write(extra, partition_by="day", schema="evolve")
    narrow = orders(500, 4, start + 500)
    narrow = narrow.set_column(2, "amount", narrow["amount"].cast(pa.float32()))
    pq.write_table(narrow, folder / "orders" / "day=2026-11-05" / "notebook.parquet", compression="zstd")
    return dataset


def hostile(folder: Path) -> Dataset:
    """Hostile names of columns, partitions, files and users' values, in every part of a report."""
    root = folder / "hostile & <b>bold<b>"
    chance = np.random.default_rng(3)
    for number, text in enumerate(HOSTILE):
        place = root / encode_segment(HOSTILE[0], text)
        place.mkdir(parents=True)
        table = pa.table({name: chance.random(40) for name in HOSTILE[1:]})
        table = table.append_column("text", pa.array([text] * 40))
        if number:
            table = table.append_column(f"drift {text}", pa.array([number] * 40))
        for copy in range(6):
            pq.write_table(table, place / f"{copy}<i>.parquet")
    (root / "<script>.parquet").write_bytes(b"no parquet")
    return Dataset(root, engine="pyarrow")

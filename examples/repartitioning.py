"""Market data under new partitions: estimate, try, repartition with a function, compact, verify.

Run it with `python examples/repartitioning.py`. Quotes come in by day, a file for every segment of the feed; but
queries ask for one product and one hour. So the quotes move to product, date and hour, and get their spread on the
way.

* `estimate_size` reads the partition columns only: look at `avg_rows_per_partition` before making tiny partitions.
* `dry_run=True` says what would be written, and checks the function.
* The function runs inside of the engine's tasks, a batch of rows at a time.
* With `validate=True` nothing is published if a row is missing; `delete_source=True` would remove the old files,
  but only after the new ones are there.
"""

from __future__ import annotations

import datetime as dt
import random
import tempfile
from pathlib import Path

import polars as pl
import pyarrow as pa

from parketto import CommitFailed, Dataset, ParquetCompactor, Repartitioner

PRODUCTS = {"BTC-USD": 91_000.0, "ETH-USD": 3_050.0, "SOL-USD": 142.0}
DAYS, SEGMENTS, QUOTES = 2, 6, 400
PARTITIONS = ["product_id", "date", "hour"]


def feed(day: dt.date, segment: int) -> pa.Table:
    """The quotes of some hours of a day, as they come in: every product, every few seconds."""
    chance = random.Random(f"{day} {segment}")
    start = dt.datetime.combine(day, dt.time(segment * 24 // SEGMENTS), dt.UTC)
    rows = []
    for number in range(QUOTES):
        product, price = chance.choice(list(PRODUCTS.items()))
        bid = price * (1 + chance.gauss(0, 0.002))
        rows.append(
            {
                "product_id": product,
                "timestamp": start + dt.timedelta(seconds=36 * number),
                "date": day.isoformat(),
                "best_bid": round(bid, 2),
                "best_ask": round(bid * (1 + chance.uniform(0.00001, 0.0004)), 2),
            }
        )
    return pa.Table.from_pylist(rows)


def add_spread(quotes: pl.DataFrame) -> pl.DataFrame:
    """The hour, which will be a partition, and the spread in money and in basis points."""
    spread = pl.col("best_ask") - pl.col("best_bid")
    middle = (pl.col("best_ask") + pl.col("best_bid")) / 2
    return quotes.with_columns(
        pl.col("timestamp").dt.hour().alias("hour"),
        spread.alias("spread"),
        (spread / middle * 10_000).alias("spread_bps"),
    )


def best_only(quotes: pl.DataFrame) -> pl.DataFrame:
    """A function with a mistake: it loses rows."""
    return add_spread(quotes).filter(pl.col("spread_bps") < 3)


def main() -> None:
    """All of it, in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "level2"), Path(folder, "level2_by_hour")
        by_day = Dataset(source)
        for day in range(DAYS):
            for segment in range(SEGMENTS):
                by_day.write(feed(dt.date(2025, 11, 26 + day), segment), partition_by="date")
        repartitioner = Repartitioner(source, target, PARTITIONS)

        estimate = repartitioner.estimate_size(transform_fn=add_spread)
        print(f"estimate: {estimate['total_rows']:,} rows in {estimate['num_partitions']} partitions")
        plan = repartitioner.repartition(transform_fn=add_spread, dry_run=True)
        assert not target.exists()
        print(f"dry run: {plan['files_read']} files would become {plan['files_written']}")

        try:
            repartitioner.repartition(transform_fn=best_only, delete_source=True)
        except CommitFailed as error:
            print("refused:", str(error).partition(":")[0])
        assert by_day.read().num_rows == estimate["total_rows"]

        stats = repartitioner.repartition(transform_fn=add_spread)
        assert stats["records_written"] == stats["records_read"] == estimate["total_rows"]
        assert stats["partitions_created"] == estimate["num_partitions"] == plan["partitions_created"]
        print(f"repartitioned into {stats['partitions_created']} partitions")

        late = add_spread(pl.DataFrame(feed(dt.date(2025, 11, 27), SEGMENTS - 1).slice(0, 90)))
        by_hour = Dataset(target)
        for part in range(0, late.height, 15):  # more comes in, in small pieces
            by_hour.write(late.slice(part, 15).to_arrow().cast(by_hour.files()[0].schema))
        compacted = ParquetCompactor(target, target_file_size_mb=100).compact(min_file_count=3)
        print(f"compacted {compacted['files_before']} -> {compacted['files_after']} files")

        found = pl.read_parquet(target / "**/*.parquet", hive_partitioning=False)
        before = add_spread(pl.read_parquet(source / "**/*.parquet", hive_partitioning=False))
        expected = pl.concat([before, late.cast(before.schema)])
        order = ["timestamp", "product_id", "best_bid"]
        assert found.select(expected.columns).sort(order).equals(expected.sort(order))
        wide = found.group_by("product_id").agg(pl.col("spread_bps").mean().round(1)).sort("product_id")
        print("all checked; mean spreads in basis points:", dict(wide.iter_rows()))


if __name__ == "__main__":
    main()

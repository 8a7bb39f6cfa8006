"""Correcting market data in place: outliers, spellings, derived columns, duplicates, late data; with backups.

Run it with `python examples/corrections.py` (on Spark), or with another engine:
`PARKETTO_ENGINE=duckdb python examples/corrections.py`. What to do with one's own data:

* Look first: `dry_run=True` gives the true counts and touches nothing.
* Keep backups: every operation's `backup_path` can be brought back in one step.
* Say which partition: a filter on a partition column rules the others out, as `partition_filter` does.
* One call for many values: `is_in(products)` reads every file once, a loop over products reads it every time.
"""

from __future__ import annotations

import os
import tempfile

import polars as pl

from parketto import Dataset, ParquetCRUD

KEYS, PARTITIONS = ["product_id", "trade_id"], ["product_id", "date"]
ROWS = 1_000


def quotes() -> pl.DataFrame:
    """Two products on two days: some spreads are missing, a few quotes are nonsense."""
    days = pl.DataFrame({"date": ["2025-11-25", "2025-11-26"]})
    products = pl.DataFrame({"product_id": ["BTC-USD", "ETH-USD"]})
    frame = products.join(days, how="cross").join(pl.DataFrame({"n": range(ROWS)}), how="cross")
    bid = 100 + pl.col("n") % 17 / 10
    return frame.select(
        "product_id",
        "date",
        (pl.col("date") + "-" + pl.col("n").cast(pl.String)).alias("trade_id"),
        pl.when(pl.col("n") % 2 == 0).then(pl.lit("bid")).otherwise(pl.lit("offer")).alias("side"),
        pl.lit(None, pl.String).alias("side_normalized"),
        bid.alias("best_bid"),
        (bid + 0.1 + pl.when(pl.col("n") % 250 == 0).then(50.0).otherwise(0.0)).alias("best_ask"),
        pl.when(pl.col("n") % 3 == 0).then(None).otherwise(0.1).alias("spread"),
        pl.when(pl.col("n") % 250 == 0).then(5000.0).otherwise(10.0).alias("spread_bps"),
    )


def fix_quality(crud: ParquetCRUD) -> None:
    """Delete outliers, settle on one spelling, and calculate what is missing."""
    bitcoin = {"product_id": "BTC-USD"}
    looked = crud.delete(pl.col("spread_bps") > 500, bitcoin, dry_run=True)
    done = crud.delete(pl.col("spread_bps") > 500, bitcoin)
    assert looked["rows_deleted"] == done["rows_deleted"] == 8
    sides = crud.update(pl.col("side") == "offer", {"side_normalized": "ask"})
    spreads = crud.update(pl.col("spread").is_null(), {"spread": pl.col("best_ask") - pl.col("best_bid")})
    assert crud.delete("spread IS NULL", dry_run=True)["rows_deleted"] == 0
    print(
        f"deleted {done['rows_deleted']} outliers, normalised {sides['rows_updated']} sides, "
        f"calculated {spreads['rows_updated']} spreads"
    )


def deduplicate(crud: ParquetCRUD, root: str) -> None:
    """A load that ran twice: read everything, keep one row of each key, upsert that."""
    again = pl.scan_parquet(f"{root}/**/*.parquet").filter(pl.col("date") == "2025-11-26").collect()
    Dataset(root).write(again)
    rows = pl.scan_parquet(f"{root}/**/*.parquet")
    twice = rows.group_by(KEYS).agg(pl.len().alias("count")).filter(pl.col("count") > 1).collect()
    assert len(twice) == len(again)
    stats = crud.upsert(rows.unique(subset=KEYS, keep="first").collect(), KEYS, PARTITIONS)
    assert stats["rows_deleted"] == len(again)
    print(f"{len(twice)} trades were there twice; {stats['rows_after']:,} rows are left")


def load_late_data(crud: ParquetCRUD) -> None:
    """New and corrected rows that have only some of the columns."""
    late = pl.DataFrame(
        {
            "product_id": ["BTC-USD", "BTC-USD"],
            "trade_id": ["2025-11-26-1", "99999"],
            "date": ["2025-11-26", "2025-11-26"],
            "best_bid": [99.5, 99.6],
        }
    )
    stats = crud.upsert(late, KEYS, PARTITIONS, update_cols=["best_bid"])
    assert (stats["rows_updated"], stats["rows_inserted"]) == (1, 1)
    print(f"late data: {stats['rows_updated']} updated, {stats['rows_inserted']} inserted")


def undo(crud: ParquetCRUD) -> None:
    """A mistake, and how it is taken back."""
    mistake = crud.update("product_id = 'ETH-USD'", {"best_bid": 0.0})
    assert mistake["backup_path"] is not None
    stats = crud.restore(mistake["backup_path"])
    assert crud.delete("best_bid = 0", dry_run=True)["rows_deleted"] == 0
    print(
        f"{mistake['rows_updated']:,} rows were overwritten by mistake; {stats['files_restored']} files came back"
    )


def main() -> None:
    """All of it, in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        root = os.path.join(folder, "quotes")
        crud = ParquetCRUD(root, backup_dir=os.path.join(folder, "backups"))
        crud.upsert(quotes(), KEYS, PARTITIONS)
        fix_quality(crud)
        deduplicate(crud, root)
        load_late_data(crud)
        undo(crud)
        total = pl.scan_parquet(f"{root}/**/*.parquet").select(pl.len()).collect().item()
        assert total == 4 * ROWS - 8 + 1
        print(f"all checked: {total:,} rows")


if __name__ == "__main__":
    main()

"""Five years of files by three programs: read as one dataset, and healed in one command.

Run it with `python examples/healing.py` (on Spark), or with another engine:
`PARKETTO_ENGINE=duckdb python examples/healing.py`. What happened to the dataset over the years:

* 2022: pandas writes daily files with 32-bit ids, and timestamps in milliseconds.
* 2023: the ids grow: 64 bits from now on.
* 2024: a Polars job takes over. Columns come in another order, text is `large_string`.
* 2025: a column is added, `currency`.
* 2026: DuckDB exports the prices as floats of 32 bits, by mistake.
"""

from __future__ import annotations

import datetime as dt
import os
import tempfile

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from parketto import Dataset

DAYS = 20  # files per year
ROWS = 50  # per file


def sales(year: int, day: int) -> pa.Table:
    """The sales of one day, in the types that all years agree on."""
    first = (year - 2022) * 1_000_000 + day * ROWS
    at = dt.datetime(year, 1, 1, 12, tzinfo=dt.UTC) + dt.timedelta(days=day)
    return pa.table(
        {
            "id": pa.array(range(first, first + ROWS), pa.int64()),
            "at": pa.array([at] * ROWS, pa.timestamp("ms", "UTC")),
            "item": [f"item {n % 7}" for n in range(ROWS)],
            "price": [n * 0.25 for n in range(ROWS)],
        }
    )


def write_year(folder: str, year: int) -> None:
    """Write the files of a year, as the program of that year did."""
    for day in range(DAYS):
        rows, path = sales(year, day), f"{folder}/{year}-{day:03d}.parquet"
        match year:
            case 2022:
                rows.set_column(0, "id", rows.column("id").cast(pa.int32())).to_pandas().to_parquet(path)
            case 2023:
                pq.write_table(rows, path)
            case 2024:
                _polars(rows).select("item", "id", "price", "at").write_parquet(path)
            case 2025:
                _polars(rows).with_columns(pl.lit("EUR").alias("currency")).write_parquet(path)
            case _:
                narrow = rows.set_column(3, "price", rows.column("price").cast(pa.float32()))
                duckdb.from_arrow(narrow.append_column("currency", pa.array(["EUR"] * ROWS))).write_parquet(path)


def _polars(rows: pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)
    return frame


def main() -> None:
    """Write five years, look at them, heal them."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "sales")
        os.mkdir(path)
        for year in range(2022, 2027):
            write_year(path, year)
        dataset = Dataset(path)

        schemas = {str(file.schema.remove_metadata()) for file in dataset.files() if file.schema is not None}
        print(f"{len(dataset.files())} files in {len(schemas)} schemas are one dataset:")
        print("  " + ", ".join(f"{item.name}: {item.type}" for item in dataset.schema))

        rows = 5 * DAYS * ROWS
        assert dataset.count() == rows
        euros = dataset.count("currency = 'EUR' AND price >= 10")
        first = dataset.read(["id", "currency"], where="id < 3").to_pylist()
        print(f"{euros:,d} of {rows:,d} sales are in euros, at 10 or more; the first ones: {first}")
        before = sorted(dataset.read(["id", "price"]).to_pylist(), key=lambda row: row["id"])

        plan = dataset.compact(dry_run=True)
        print(f"compaction would reconcile {', '.join(plan['reconciled_columns'])}")
        stats = dataset.compact()
        print(f"healed: {stats['before_file_count']} files -> {stats['after_file_count']}")

        assert {str(file.schema) for file in dataset.files()} == {str(dataset.files()[0].schema)}
        assert sorted(dataset.read(["id", "price"]).to_pylist(), key=lambda row: row["id"]) == before
        assert dataset.check(deep=True)["healthy"]
        (everything,) = duckdb.read_parquet(f"{path}/*.parquet").aggregate("count(currency)").fetchall()
        assert everything == (2 * DAYS * ROWS,)
        print(f"all checked: {rows:,d} rows, which plain readers see in one schema")


if __name__ == "__main__":
    main()

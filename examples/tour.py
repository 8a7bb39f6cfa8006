"""The tour: market data in many small files, and everything Parketto does to it on Spark, a crash included.

Run it with `python examples/tour.py`. It works in a temporary folder, checks every step, and prints what changed.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressBar
from rich.table import Table

from parketto import Dataset, ParquetCRUD, Progress, Repartitioner
from parketto.engines.spark.engine import SparkEngine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

console = Console(width=110)
PRODUCTS = ["ADA-USD", "BTC-USD", "DOT-USD", "ETH-USD", "SOL-USD"]
DAYS = ["2025-11-24", "2025-11-25", "2025-11-26"]
NEW_DAY = "2025-11-27"
ALL_DAYS = [*DAYS, NEW_DAY]
FILES_PER_PARTITION = 20
ROWS_PER_FILE = 1_200
ROWS_PER_DAY = FILES_PER_PARTITION * ROWS_PER_FILE
CORRECTIONS = 500
NEW_TICKS = 50
FAULTY_PRODUCT = "ETH-USD"
OUTLIERS_PER_DAY = 60
OUTLIER_PRICE = 1_000_000.0
CROSSED_PRODUCT = "SOL-USD"
CROSSED_PER_DAY = 40
Counted = Callable[[Progress], None]


def make_ticks(product: int, day: int, rng: np.random.Generator) -> pa.Table:
    """The ticks of one product on one day, as they arrive: in the order of time, ids in none."""
    date, rows = ALL_DAYS[day], ROWS_PER_DAY
    seconds = np.arange(rows) * 86_400 / rows
    midnight = dt.datetime.fromisoformat(date).replace(tzinfo=dt.UTC).timestamp()
    bid = 100 * (product + 1) + rng.normal(0, 1, rows).cumsum() / 50
    return pa.table(
        {
            "time": pa.array(((midnight + seconds) * 1e6).astype("int64"), pa.timestamp("us", "UTC")),
            "trade_id": day * rows + rng.permutation(rows).astype("int64"),
            "best_bid": bid,
            "best_ask": bid + rng.gamma(2, 0.01, rows),
            "size": rng.gamma(2, 1, rows),
            "product_id": pa.array([PRODUCTS[product]] * rows),
            "date": pa.array([date] * rows),
        }
    )


def make_market_data(root: str) -> None:
    """A small file every hour or so, for each product and day; the feed of one product had a few nonsense bids."""
    rng = np.random.default_rng(42)
    for product, name in enumerate(PRODUCTS):
        for day, date in enumerate(DAYS):
            ticks = make_ticks(product, day, rng)
            if name == FAULTY_PRODUCT:
                bids = ticks.column("best_bid").to_numpy().copy()
                bids[rng.choice(ROWS_PER_DAY // 2, OUTLIERS_PER_DAY, replace=False)] = OUTLIER_PRICE
                ticks = ticks.set_column(2, "best_bid", pa.array(bids))
            if name == CROSSED_PRODUCT:
                ticks = _crossed(ticks, rng.choice(ROWS_PER_DAY, CROSSED_PER_DAY, replace=False))
            folder = Path(root) / f"product_id={name}" / f"date={date}"
            folder.mkdir(parents=True)
            for number in range(FILES_PER_PARTITION):
                part = ticks.slice(number * ROWS_PER_FILE, ROWS_PER_FILE)
                pq.write_table(part, folder / f"ticks-{number + 1:04d}.parquet")


def _crossed(ticks: pa.Table, rows: np.ndarray) -> pa.Table:
    """Ticks of which some have bid and ask in each other's place."""
    bids, asks = (ticks.column(name).to_numpy().copy() for name in ("best_bid", "best_ask"))
    bids[rows], asks[rows] = asks[rows], bids[rows]
    return ticks.set_column(2, "best_bid", pa.array(bids)).set_column(3, "best_ask", pa.array(asks))


def make_new_day() -> pa.Table:
    """All products on the next day."""
    rng = np.random.default_rng(43)
    return pa.concat_tables(make_ticks(product, len(DAYS), rng) for product in range(len(PRODUCTS)))


def make_corrections(path: str) -> pa.Table:
    """Other sizes for some ticks of a file, and a few ticks with new ids."""
    rows = pq.ParquetFile(path).read().slice(0, CORRECTIONS)
    ids = rows.column("trade_id").to_numpy().copy()
    ids[-NEW_TICKS:] += 10**9
    rows = rows.set_column(1, "trade_id", pa.array(ids))
    return rows.set_column(4, "size", pa.array(np.full(CORRECTIONS, -1.0)))


@dataclass(frozen=True)
class Glance:
    """A dataset at a glance."""

    files: int
    rows: int
    size: int
    groups: int
    #: What a query for 1 % of the ids of all products cannot skip.
    groups_read: int
    rows_read: int

    @classmethod
    def of(cls, dataset: Dataset) -> Glance:
        """As the footers tell."""
        files = dataset.files()
        low, high = ROWS_PER_DAY, ROWS_PER_DAY + len(ALL_DAYS) * ROWS_PER_DAY // 100
        groups = [group for file in files for group in file.row_groups]
        bounds = [group.columns["trade_id"] for group in groups]
        read = [group for group, ids in zip(groups, bounds, strict=True) if ids.min <= high and ids.max >= low]
        return cls(
            len(files),
            sum(file.num_rows for file in files),
            sum(file.size_bytes for file in files),
            len(groups),
            len(read),
            sum(group.num_rows for group in read),
        )


class Summary:
    """What was done, step by step, for the table at the end."""

    def __init__(self) -> None:
        self.table = Table(title="Before and after", title_justify="left")
        self.table.add_column("step")
        for heading in ("seconds", "files", "rows", "MB", "row groups", "1 % of ids reads", "that is"):
            self.table.add_column(heading, justify="right")
        self._last: Glance | None = None

    def add(self, step: str, glance: Glance, seconds: float | None = None) -> None:
        """One step. What it changed is bold."""
        last = self._last or glance
        pairs = [
            (f"{glance.files:,}", glance.files != last.files),
            (f"{glance.rows:,}", glance.rows != last.rows),
            (f"{glance.size / 2**20:.1f}", False),
            (f"{glance.groups:,}", glance.groups != last.groups),
            (f"{glance.groups_read:,}", glance.groups_read != last.groups_read),
            (f"{glance.rows_read:,} rows", glance.rows_read != last.rows_read),
        ]
        cells = [f"[bold]{text}[/]" if changed else text for text, changed in pairs]
        self.table.add_row(step, "" if seconds is None else f"{seconds:.1f}", *cells)
        self._last = glance


class Tour:
    """Runs steps with a progress bar, and keeps the summary."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.summary = Summary()
        self._number = 0

    def heading(self, title: str, remark: str) -> None:
        """Say what comes next."""
        self._number += 1
        console.print(f"\n[bold]{self._number}. {title}[/] – {remark}")

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[Counted]:
        """Time a step, show how far it is, and look at the dataset afterwards."""
        columns = (TextColumn("   {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with ProgressBar(*columns, console=console) as bar:
            task = bar.add_task(name, total=None)
            start = time.perf_counter()
            yield lambda progress: bar.update(
                task,
                description=progress.operation or name,
                completed=progress.done,
                total=progress.total,
            )
            seconds = time.perf_counter() - start
            total = bar.tasks[0].total or 1
            bar.update(task, completed=total, total=total)
        self.summary.add(name, Glance.of(self.dataset), seconds)

    @property
    def rows(self) -> int:
        """The rows that there are now."""
        return sum(file.num_rows for file in self.dataset.files())


def start_spark(dataset: Dataset) -> SparkSession:
    """The session that Parketto starts inside of this process when there is none."""
    assert isinstance(dataset.engine, SparkEngine), "the tour is about Spark"
    start = time.perf_counter()
    spark = dataset.engine.session
    where = spark.conf.get("spark.master")
    console.print(f"Spark {spark.version} started, {where}, in {time.perf_counter() - start:.1f} s")
    return spark


def ingest(tour: Tour, spark: SparkSession) -> None:
    """Append a day that comes as a Spark DataFrame."""
    tour.heading("Ingest", "a new day arrives as a Spark DataFrame and is appended, partitioned")
    before, day = tour.rows, make_new_day()
    frame = spark.createDataFrame(day)
    with tour.step("ingest") as progress:
        written = tour.dataset.write(
            frame,
            partition_by=["product_id", "date"],
            max_rows_per_file=5_000,
            naming="sequential",
            basename_template="ticks-{}.parquet",
            progress=progress,
        )
    console.print(f"   {written['rows_written']:,} rows in {written['files_written']} files, all at once")
    assert tour.rows == before + day.num_rows, "an append adds its rows"


def correct(tour: Tour) -> None:
    """Upsert corrections of known ticks, and some that were missed."""
    tour.heading("Upsert corrections", "only files that have a key of the source are rewritten")
    before, files = tour.rows, [file.path for file in tour.dataset.files()]
    corrections = make_corrections(files[len(files) // 3])
    with tour.step("upsert") as progress:
        merged = tour.dataset.merge(corrections, ["product_id", "trade_id"], progress=progress)
    touched = len(set(files) - {file.path for file in tour.dataset.files()})
    console.print(
        f"   {merged['updated']} rows updated, {merged['inserted']} inserted: "
        f"{touched} of {len(files)} files rewritten"
    )
    assert (merged["updated"], merged["inserted"]) == (CORRECTIONS - NEW_TICKS, NEW_TICKS)
    assert tour.rows == merged["total"] == before + NEW_TICKS, "known keys are replaced, new ones added"
    assert touched == 1, "other files stay as they are"


def delete_outliers(tour: Tour) -> None:
    """Delete by an SQL condition, after a look at what it would do."""
    tour.heading("Delete outliers", "a dry run tells what a condition would do, and touches nothing")
    before, condition = tour.rows, f"product_id = '{FAULTY_PRODUCT}' AND best_bid > 100000"
    plan = tour.dataset.delete(condition, dry_run=True)
    assert tour.rows == before, "a dry run changes nothing"
    console.print(
        f"   {condition}: {plan['rows_matched']} rows in {plan['files_rewritten']} "
        f"of {plan['files_before']} files; {plan['files_scanned']} were looked into"
    )
    with tour.step("delete") as progress:
        done = tour.dataset.delete(condition, progress=progress)
    assert done["rows_matched"] == plan["rows_matched"], "the dry run told the truth"
    assert done["rows_matched"] == OUTLIERS_PER_DAY * len(DAYS), "all outliers"
    assert tour.rows == before - done["rows_matched"], "the outliers are gone, and nothing else"


def fix_crossed(tour: Tour, backups: str) -> None:
    """Correct bad rows by Polars expressions, with a backup that is tried out."""
    tour.heading("Fix bad rows", "quotes whose bid is above their ask are turned round; Polars says which and how")
    before = tour.rows
    crossed = pl.col("best_bid") > pl.col("best_ask")
    swapped = {"best_bid": pl.col("best_ask"), "best_ask": pl.col("best_bid")}
    with tour.step("fix bad rows") as progress:
        crud = ParquetCRUD(tour.dataset.path, "snappy", backups, engine=tour.dataset.engine, progress=progress)
        done = crud.update(crossed, swapped, {"product_id": CROSSED_PRODUCT})
        assert done["backup_path"] is not None, "a backup was asked for"
        undone = crud.restore(done["backup_path"])
        again = crud.update(crossed, swapped, {"product_id": CROSSED_PRODUCT})
    console.print(
        f"   {done['rows_updated']} rows in {done['files_deleted']} files; undone from the backup "
        f"({undone['files_restored']} files came back), and done again"
    )
    assert done["rows_updated"] == again["rows_updated"] == CROSSED_PER_DAY * len(DAYS), "all of them"
    assert crud.delete(crossed, dry_run=True)["rows_deleted"] == 0, "no quote is crossed any more"
    assert tour.rows == before, "an update keeps every row"


def crash(tour: Tour) -> None:
    """Kill a compaction, hard, at some moment of its work; a light engine in the child saves another Spark."""
    tour.heading("Crash", "a compaction in another process is killed with SIGKILL in the middle")
    before = tour.rows
    code = (
        "import sys; from parketto import Dataset; dataset = Dataset(sys.argv[1], engine='pyarrow'); "
        "dataset.files(); print('go', flush=True); dataset.compact()"
    )
    victim = subprocess.Popen([sys.executable, "-c", code, tour.dataset.path], stdout=subprocess.PIPE)
    assert victim.stdout is not None, "its output was asked for"
    with victim.stdout:
        victim.stdout.readline()
        time.sleep(random.Random().uniform(0.05, 0.25))
        victim.send_signal(signal.SIGKILL)
        victim.wait()
    console.print(f"   recovery: {tour.dataset.recover()}")
    assert tour.rows == before, "as before or as after, and both have the same rows"
    console.print(f"   all {before:,} rows are there, each exactly once")
    tour.summary.add("kill -9 and recover", Glance.of(tour.dataset))


def compact(tour: Tour) -> None:
    """Put small files together."""
    tour.heading("Compact", "the small files of each partition become one")
    before = tour.rows
    with tour.step("compact") as progress:
        done = tour.dataset.compact(target_mb_per_file=64, progress=progress)
    console.print(f"   {done['before_file_count']} files became {done['after_file_count']}")
    assert tour.rows == before, "no row is lost"
    assert done["after_file_count"] <= 2 * len(PRODUCTS) * (len(DAYS) + 1), "few files are left"


def cluster(tour: Tour) -> None:
    """Put the rows in order, so that queries for a range of ids skip most of them."""
    tour.heading("Cluster", "by trade_id, so that a query for 1 % of the ids skips what it does not need")
    before, look = tour.rows, Glance.of(tour.dataset)
    with tour.step("cluster") as progress:
        tour.dataset.optimize(["trade_id"], target_rows_per_file=4_000, progress=progress)
    after = Glance.of(tour.dataset)
    console.print(
        f"   it read {look.groups_read} of {look.groups} row groups with {look.rows_read:,} rows, and reads "
        f"{after.groups_read} of {after.groups} with {after.rows_read:,} rows now"
    )
    assert after.rows_read < look.rows_read / 4, "order lets queries skip more"
    assert tour.rows == before, "no row is lost"
    again = tour.dataset.optimize(["trade_id"], target_rows_per_file=4_000)
    assert again["compacted_file_count"] == 0, "what is in order is left alone"
    console.print("   done again: 0 files rewritten")


def repartition(tour: Tour, target: str) -> None:
    """The same rows in a new place, by the hour."""
    tour.heading("Repartition", "by product and hour, into a new dataset; the hour is calculated on the way")
    mover = Repartitioner(tour.dataset.path, target, ["product_id", "hour"], engine=tour.dataset.engine)
    start = time.perf_counter()
    done = mover.repartition(transform_fn=with_hour)
    seconds = time.perf_counter() - start
    console.print(
        f"   {done['records_written']:,} rows in {done['partitions_created']} partitions and "
        f"{done['files_written']} files, in {seconds:.1f} s; the old dataset is as it was"
    )
    assert done["records_written"] == done["records_read"] == tour.rows, "every row, once"
    assert done["partitions_created"] == done["files_written"] == 24 * len(PRODUCTS), "a file for every hour"


def with_hour(ticks: pl.DataFrame) -> pl.DataFrame:
    """What Spark's tasks do to every batch of rows."""
    return ticks.with_columns(pl.col("time").dt.hour().alias("hour"))


def query(tour: Tour, spark: SparkSession) -> None:
    """Read the result with Spark alone."""
    tour.heading("Read", "it is plain Parquet: Spark SQL reads the directory as it is")
    found = spark.sql(
        "SELECT product_id, count(*) AS ticks, count(DISTINCT trade_id) AS ids, max(best_bid) AS highest, "
        "count_if(size < 0) AS corrected FROM {ticks} GROUP BY product_id ORDER BY product_id",
        ticks=spark.read.parquet(tour.dataset.path),
    ).collect()
    shown = Table()
    for heading in ("product_id", "ticks", "highest bid", "corrected"):
        shown.add_column(heading, justify="left" if heading == "product_id" else "right")
    for row in found:
        shown.add_row(row["product_id"], f"{row['ticks']:,}", f"{row['highest']:.2f}", str(row["corrected"]))
        assert row["ticks"] == row["ids"], "every trade is there once"
        assert row["highest"] < OUTLIER_PRICE, "no outlier is left"
    console.print(shown)
    assert [row["product_id"] for row in found] == PRODUCTS
    assert sum(row["ticks"] for row in found) == tour.rows, "Spark sees the rows that Parketto sees"
    assert sum(row["corrected"] for row in found) == CORRECTIONS, "every correction is there"


def main() -> None:
    """The tour."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        root = os.path.join(folder, "ticks")
        make_market_data(root)
        dataset = Dataset(root, engine="spark")
        tour = Tour(dataset)
        assert tour.rows == len(PRODUCTS) * len(DAYS) * ROWS_PER_DAY, "the collector's rows"
        tour.summary.add("as the collector left it", Glance.of(dataset))
        spark = start_spark(dataset)
        ingest(tour, spark)
        correct(tour)
        delete_outliers(tour)
        fix_crossed(tour, os.path.join(folder, "backups"))
        crash(tour)
        compact(tour)
        cluster(tour)
        repartition(tour, os.path.join(folder, "ticks-by-hour"))
        query(tour, spark)
        beside = [".ticks-by-hour.parketto", ".ticks.parketto", "backups", "ticks", "ticks-by-hour"]
        assert sorted(os.listdir(folder)) == beside, "nothing is left beside the datasets but their logs"
        left = set(os.listdir(f"{folder}/.ticks.parketto")) - {"kept", "lock", "log"}
        assert not left, f"nothing is staged, but there is {left}"
        assert sorted(os.listdir(root)) == [f"product_id={name}" for name in PRODUCTS], "nor inside of it"
        spark.stop()
        console.print()
        console.print(tour.summary.table)
        console.print(
            f"Everything checked, in {time.perf_counter() - begin:.0f} s. "
            "What was on disk is a directory of ordinary Parquet files, with its log beside it."
        )


if __name__ == "__main__":
    main()

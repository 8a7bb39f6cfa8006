"""Parketto on Spark next to the Spark job that one would write by hand: seconds, and bytes rewritten.

Both run in one warm session, in turns, each on a fresh copy of the same data. By hand means: read the Parquet
files, transform, write everything to a new directory; putting that in the place of the old one is not even
counted. Contents are compared with what DuckDB makes of the same request. The first round warms up and does not
count; the table shows medians. Seconds depend on the machine: compare the ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import json
import os
import pstats
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import duckdb
import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the customary name

from parketto import Dataset, sql
from trades import COLUMNS, PRODUCTS, make_data, make_source

SOURCE_ROWS = 1_000
LARGE_FILES = 4


@dataclass(frozen=True)
class Scenario:
    """One request: how Parketto does it in place, how Spark does it by hand, and what must come out."""

    name: str
    parketto: Callable[[Dataset], object]
    by_hand: Callable[[DataFrame, str], None]
    expected: str


def scenarios(spark: SparkSession, files: int, rows: int) -> list[Scenario]:
    """All requests."""
    each = rows // files
    narrow = make_source(np.arange(each, each + min(SOURCE_ROWS, each // 2)))
    scattered = make_source(np.linspace(0, rows - 1, SOURCE_ROWS).astype(np.int64))
    first, last = rows // 3, rows // 3 + rows // 100 - 1
    near, far = f"id BETWEEN {first} AND {last}", "bucket = 7"
    large = -(-rows // LARGE_FILES)
    return [
        Scenario(
            f"compact {files} files into {LARGE_FILES}",
            lambda dataset: dataset.compact(target_rows_per_file=large),
            lambda frame, out: frame.coalesce(LARGE_FILES).write.parquet(out),
            "SELECT * FROM data",
        ),
        _upsert(spark, f"upsert {narrow.num_rows:,} rows of one file", "narrow", narrow),
        _upsert(spark, f"upsert {scattered.num_rows:,} rows all over", "scattered", scattered),
        _delete("delete 1 % in a narrow range", near),
        _delete("delete 1 % all over", far),
        Scenario(
            "order by 2 columns",
            lambda dataset: dataset.optimize(["product", "price"], target_rows_per_file=large),
            lambda frame, out: frame.orderBy("product", "price").write.parquet(out),
            "SELECT * FROM data",
        ),
        Scenario(
            f"repartition by {PRODUCTS} values",
            lambda dataset: dataset.repartition(["product"]),
            lambda frame, out: frame.repartition("product").write.partitionBy("product").parquet(out),
            "SELECT * FROM data",
        ),
    ]


def partition_scenarios() -> list[Scenario]:
    """Requests about 1 % of the rows of one partition."""
    rows = "bucket = 7 AND id % 100 = 3"
    doubled = f"SELECT * REPLACE (CASE WHEN {rows} THEN price * 2 ELSE price END AS price) FROM data"
    return [
        Scenario(
            "delete 1 % of one partition",
            lambda dataset: dataset.delete(rows),
            lambda frame, out: frame.where(f"NOT ({rows})").write.partitionBy("bucket").parquet(out),
            f"SELECT * FROM data WHERE NOT ({rows})",
        ),
        Scenario(
            "update 1 % of one partition",
            lambda dataset: dataset.update(rows, {"price": sql("price * 2")}),
            lambda frame, out: (
                frame.withColumn("price", F.expr(f"CASE WHEN {rows} THEN price * 2 ELSE price END"))
                .write.partitionBy("bucket")
                .parquet(out)
            ),
            doubled,
        ),
    ]


def _upsert(spark: SparkSession, name: str, view: str, source: pa.Table) -> Scenario:
    duckdb.register(view, source)

    def by_hand(frame: DataFrame, out: str) -> None:
        new = spark.createDataFrame(source)
        kept = frame.join(F.broadcast(new.select("id")), "id", "left_anti")
        kept.unionByName(new).write.parquet(out)

    return Scenario(
        name,
        lambda dataset: dataset.merge(source, "id"),
        by_hand,
        f"SELECT * FROM data ANTI JOIN {view} USING (id) UNION ALL SELECT * FROM {view}",
    )


def _delete(name: str, condition: str) -> Scenario:
    return Scenario(
        name,
        lambda dataset: dataset.delete(condition),
        lambda frame, out: frame.where(f"NOT ({condition})").write.parquet(out),
        f"SELECT * FROM data WHERE NOT ({condition})",
    )


def contents(root: str, query: str = "SELECT * FROM data") -> tuple[int, int]:
    """Rows and the sum of their hashes, which does not depend on the order of rows or files."""
    duckdb.sql(
        f"CREATE OR REPLACE TEMP VIEW data AS SELECT {', '.join(COLUMNS)} "
        f"FROM read_parquet('{root}/**/*.parquet', hive_partitioning = true)"
    )
    listed = ", ".join("epoch_us(time)" if name == "time" else name for name in COLUMNS)
    [(rows, total)] = duckdb.sql(f"SELECT count(*), sum(hash({listed})) FROM ({query})").fetchall()
    return int(rows), int(total)


def parquet_files(root: str) -> dict[str, int]:
    """The size of every Parquet file, by path."""
    return {
        path: os.path.getsize(path)
        for folder, _, names in os.walk(root)
        for name in names
        if name.endswith(".parquet")
        for path in [os.path.join(folder, name)]
    }


def run_parketto(scenario: Scenario, root: str, profiling: str | None = None) -> tuple[str, float]:
    """In place, on Spark."""
    dataset = Dataset(root, engine="spark")
    with _profiled(profiling, scenario.name):
        start = time.perf_counter()
        scenario.parketto(dataset)
        return root, time.perf_counter() - start


def run_by_hand(scenario: Scenario, root: str, spark: SparkSession) -> tuple[str, float]:
    """Into a new directory."""
    start = time.perf_counter()
    scenario.by_hand(spark.read.parquet(root), f"{root}-new")
    return f"{root}-new", time.perf_counter() - start


def measure(
    run: Callable[[Scenario, str], tuple[str, float]], scenario: Scenario, source: str, expected: tuple[int, int]
) -> dict[str, float]:
    """One contestant, once, on its own copy."""
    with tempfile.TemporaryDirectory(dir=os.path.dirname(source)) as folder:
        root = f"{folder}/data"
        shutil.copytree(source, root)
        os.sync()  # what the copy left to be written is not to be paid by whoever syncs next
        before = parquet_files(root)
        after, seconds = run(scenario, root)
        files = parquet_files(after)
        assert contents(after) == expected, f"{scenario.name}: the contents are wrong"
        written = sum(size for path, size in files.items() if path not in before)
        return {"seconds": seconds, "bytes": written, "files": len(files)}


@contextlib.contextmanager
def _profiled(folder: str | None, name: str) -> Iterator[None]:
    """With a folder: write there where the driver spends its time."""
    if folder is None:
        yield
        return
    profile = cProfile.Profile()
    with profile:
        yield
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, f"{name.replace(' ', '-')}.txt"), "w") as out:
        pstats.Stats(profile, stream=out).sort_stats("cumulative").print_stats(60)


def table(results: dict[str, dict[str, list[dict[str, float]]]]) -> str:
    """The medians, in Markdown."""
    lines = [
        "| | Parketto s | by hand s | ratio | Parketto MB written | by hand MB written | files |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, measured in results.items():
        ours, theirs = (
            {key: statistics.median(run[key] for run in measured[who]) for key in ("seconds", "bytes", "files")}
            for who in ("parketto", "by hand")
        )
        lines.append(
            f"| {name} | {ours['seconds']:.2f} | {theirs['seconds']:.2f} "
            f"| {theirs['seconds'] / ours['seconds']:.2f}x | {ours['bytes'] / 2**20:.1f} "
            f"| {theirs['bytes'] / 2**20:.1f} | {ours['files']:.0f} / {theirs['files']:.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--rows", type=int, default=5_000_000, help="rows of all files together")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--partitioned", action="store_true", help="100 partitions; edits of one of them")
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    parser.add_argument("--json", action="store_true", help="print every measurement as JSON instead")
    parser.add_argument("--profile", metavar="FOLDER", help="write there a profile of the driver per scenario")
    arguments = parser.parse_args()
    arguments.rows -= arguments.rows % arguments.files
    with tempfile.TemporaryDirectory() as folder:
        source = f"{folder}/source"
        make_data(source, arguments.files, arguments.rows)
        if arguments.partitioned:
            Dataset(source, engine="duckdb").repartition(["bucket"])
        start = time.perf_counter()
        spark = Dataset(source, engine="spark").engine.session
        size = sum(parquet_files(source).values())
        print(
            f"{arguments.files} files, {arguments.rows:,} rows, {size / 2**20:,.0f} MB, "
            f"Spark {spark.version} started in {time.perf_counter() - start:.1f} s",
            file=sys.stderr,
        )
        offered = (
            partition_scenarios() if arguments.partitioned else scenarios(spark, arguments.files, arguments.rows)
        )
        chosen = [item for item in offered if arguments.only in item.name]
        expected = {item.name: contents(source, item.expected) for item in chosen}
        contestants: dict[str, Callable[[Scenario, str], tuple[str, float]]] = {
            "parketto": partial(run_parketto, profiling=arguments.profile),
            "by hand": partial(run_by_hand, spark=spark),
        }
        results: dict[str, dict[str, list[dict[str, float]]]] = {
            item.name: {who: [] for who in contestants} for item in chosen
        }
        for number in range(arguments.rounds + 1):
            turns = list(contestants.items())[:: -1 if number % 2 else 1]
            for item in chosen:
                for who, run in turns:
                    measured = measure(run, item, source, expected[item.name])
                    if number:  # the first round warms up
                        results[item.name][who].append(measured)
                    print(f"round {number}: {item.name}: {who} {measured['seconds']:.2f} s", file=sys.stderr)
        if arguments.json:
            report = {"files": arguments.files, "rows": arguments.rows, "bytes": size, "results": results}
            print(json.dumps(report, indent=1))
        else:
            print(table(results))


if __name__ == "__main__":
    main()

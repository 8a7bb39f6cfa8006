"""`format("parketto")` beside Spark's own Parquet format: batch writes, streams and reads, in one warm session.

Both do the same work in turn. Rows are checked after each. A ratio above 1x: Parketto is faster. Spark's format
promises less: its batch writes are not atomic, and its stream needs `_spark_metadata` to be read correctly.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import machine, report
from parketto import Dataset
from parketto.engines.spark.session import get_session

FORMATS = ("parquet", "parketto")
COLUMNS = (
    "id",
    "id % 1000 AS sensor",
    "CAST(id % 4 AS INT) AS day",
    "timestamp_seconds(1760000000 + id) AS at",
    "rand(7) AS reading",
    "concat('status ', id % 20) AS status",
    "CAST(hash(id) AS STRING) AS token",
    "id % 3 = 0 AS valid",
)


class Bench:
    """Measures both formats on the same rows.

    Args:
        spark: The session.
        folder: Where data is kept.
        rows: The number of rows.
        rounds: How often everything is repeated.
    """

    def __init__(self, spark: Any, folder: Path, rows: int, rounds: int) -> None:
        self._spark, self._folder, self._rows, self._rounds = spark, folder, rows, rounds
        self._numbers = iter(range(1_000_000))
        self.source = str(folder / "source")
        spark.range(rows, numPartitions=8).selectExpr(*COLUMNS).write.parquet(self.source)

    def run(self) -> list[dict[str, Any]]:
        """All measurements: seconds by format."""
        work: dict[str, Callable[[str], float]] = {
            "batch append": lambda name: self.batch(name),
            "batch append, 4 partitions": lambda name: self.batch(name, partition_by="day"),
            "stream, 8 micro-batches": lambda name: self.stream(name),
            "micro-batch of 10 rows": lambda name: self.small_batches(name),
            "full scan, aggregated": lambda name: self.scan(name),
        }
        found = []
        for title, measure in work.items():
            for name in FORMATS:
                measure(name)  # warm
            seconds: dict[str, list[float]] = {name: [] for name in FORMATS}
            for _ in range(self._rounds):
                for name in FORMATS:
                    seconds[name].append(measure(name))
            medians = {name: statistics.median(each) for name, each in seconds.items()}
            found.append({"work": title, "medians": medians, "seconds": seconds})
        scans = [self.scan("to_spark") for _ in range(self._rounds + 1)][1:]
        spark_scan = found[-1]["medians"]["parquet"]
        medians = {"parquet": spark_scan, "parketto": statistics.median(scans)}
        found.append({"work": "full scan, to_spark()", "medians": medians, "seconds": {"parketto": scans}})
        return found

    def _target(self) -> str:
        return str(self._folder / f"target-{next(self._numbers)}")

    def batch(self, name: str, partition_by: str | None = None) -> float:
        """Append all rows."""
        target, frame = self._target(), self._spark.read.parquet(self.source)
        writer = frame.write.format(name).mode("append")
        if partition_by is not None:
            writer = (
                writer.partitionBy(partition_by)
                if name == "parquet"
                else writer.option("partition_by", partition_by).option("partition_columns", "path")
            )
        began = time.perf_counter()
        writer.save(target)
        return self._checked(time.perf_counter() - began, target, self._rows)

    def stream(self, name: str) -> float:
        """Stream all files, one per micro-batch."""
        schema = self._spark.read.parquet(self.source).schema
        source = self._spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(self.source)
        return self._streamed(name, source, self._rows)

    def small_batches(self, name: str) -> float:
        """The cost of a micro-batch that has hardly any rows."""
        landing = self._folder / "landing"
        if not landing.exists():
            landing.mkdir()
            for number in range(20):
                lines = (json.dumps({"id": number * 10 + each}) for each in range(10))
                (landing / f"{number:03d}.json").write_text("\n".join(lines))
        source = self._spark.readStream.schema("id BIGINT").option("maxFilesPerTrigger", 1).json(str(landing))
        return self._streamed(name, source, 200) / 20

    def _streamed(self, name: str, source: Any, rows: int) -> float:
        target = self._target()
        writer = source.writeStream.format(name).option("checkpointLocation", f"{target}-checkpoint")
        began = time.perf_counter()
        writer.trigger(availableNow=True).start(target).awaitTermination()
        return self._checked(time.perf_counter() - began, target, rows)

    def _checked(self, seconds: float, target: str, rows: int) -> float:
        found = self._spark.read.parquet(target).count()
        assert found == rows, f"{found} rows instead of {rows}"
        for path in (target, f"{target}-checkpoint"):
            shutil.rmtree(path, ignore_errors=True)
        return seconds

    def scan(self, name: str) -> float:
        """Aggregate all rows."""
        began = time.perf_counter()
        if name == "to_spark":
            frame = Dataset(self.source, "spark", spark=self._spark).to_spark()
        else:
            frame = self._spark.read.format(name).load(self.source)
        found = frame.groupBy("status").agg({"reading": "sum", "token": "max", "id": "count"}).collect()
        assert sum(row["count(id)"] for row in found) == self._rows
        return time.perf_counter() - began


def main() -> int:
    """Measure, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="where to keep the numbers")
    arguments = parser.parse_args(sys.argv[1:])
    spark, _ = get_session()
    with tempfile.TemporaryDirectory(prefix="parketto-bench-") as folder:
        rows = Bench(spark, Path(folder), arguments.rows, arguments.rounds).run()
    lines = [
        [
            row["work"],
            f"{row['medians']['parquet']:.2f}",
            f"{row['medians']['parketto']:.2f}",
            f"{row['medians']['parquet'] / row['medians']['parketto']:.2f}x",
        ]
        for row in rows
    ]
    title = f"{arguments.rows:,} rows, medians of {arguments.rounds}; a ratio above 1x: Parketto is faster"
    report.print_table(title, ("work", "Spark s", "Parketto s", "ratio"), lines, left=1)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({"machine": machine.about(False), "runs": rows}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A driver with a stream to be killed: it appends JSON files to one dataset, and upserts them into another."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import parketto
from parketto.engines.spark.session import get_session


def start(spark: Any, folder: Path, appended: bool) -> Any:
    source = spark.readStream.schema("id BIGINT, day INT, text STRING").option("maxFilesPerTrigger", 1)
    rows = source.json(str(folder / "landing")).writeStream.trigger(availableNow=True)
    if appended:
        rows = rows.option("checkpointLocation", str(folder / "checkpoint-appended"))
        return rows.format("parketto").option("partition_by", "day").start(str(folder / "appended"))
    # A source that is killed between its own log and that of offsets adds a second file to a micro-batch.
    upsert = parketto.streaming.merge(
        str(folder / "merged"), ["id"], strategy="deduplicate", dedup_order_by="text", partition_by="day"
    )
    return rows.option("checkpointLocation", str(folder / "checkpoint-merged")).foreachBatch(upsert).start()


def main(folder: Path) -> None:
    spark, _ = get_session()
    print("started", flush=True)
    for query in [start(spark, folder, appended) for appended in (True, False)]:
        query.awaitTermination()
    print("done", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

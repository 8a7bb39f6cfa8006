"""The Spark job that one writes by hand: read everything, transform, write everything anew, swap.

It runs in the same session that Parketto would start, so that settings make no difference.
"""

from __future__ import annotations

import os

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the customary name

from harness.contestants.swapping import new_folder
from harness.request import Request
from parketto import Dataset

_BROADCAST_BYTES = 64 * 2**20


def prepare(request: Request) -> SparkSession:
    """A session that runs."""
    return Dataset(request.root, engine="spark").engine.session


def compact(request: Request, spark: SparkSession) -> None:
    """As many tasks as there shall be files."""
    frame = spark.read.parquet(request.root)
    if request.partition_columns:
        _write(request, frame.repartition(*request.partition_columns))
    else:
        _write(request, frame.coalesce(request.parts))


def cluster(request: Request, spark: SparkSession) -> None:
    """A sort over everything."""
    if request.target_rows:
        frame = spark.read.parquet(request.root).repartitionByRange(
            -(-request.rows // request.target_rows), *request.columns
        )
        _write(request, frame.sortWithinPartitions(*request.columns))
    else:
        _write(request, spark.read.parquet(request.root).orderBy(*request.columns))


def append(request: Request, spark: SparkSession) -> None:
    """Beside the others."""
    frame = spark.read.parquet(request.source)
    frame.write.mode("append").partitionBy(*request.partition_columns).parquet(request.root)


def upsert(request: Request, spark: SparkSession) -> None:
    """All rows but those with a new key, and the new ones; Spark chooses the join if keys are many."""
    new = spark.read.parquet(request.source)
    keys = new.select("id")
    small = os.path.getsize(request.source) < _BROADCAST_BYTES
    kept = spark.read.parquet(request.root).join(F.broadcast(keys) if small else keys, "id", "left_anti")
    _write(request, kept.unionByName(new))


def delete(request: Request, spark: SparkSession) -> None:
    """All other rows."""
    _write(request, spark.read.parquet(request.root).where(f"NOT ({request.where()})"))


def update(request: Request, spark: SparkSession) -> None:
    """A CASE over all rows."""
    column, factor = request.assign
    new = F.expr(f"CASE WHEN {request.where()} THEN {column} * {factor} ELSE {column} END")
    _write(request, spark.read.parquet(request.root).withColumn(column, new))


def repartition(request: Request, spark: SparkSession) -> None:
    """One task for each folder."""
    frame = spark.read.parquet(request.root).repartition(*request.columns)
    with new_folder(request.root, make=False) as out:
        frame.write.partitionBy(*request.columns).parquet(out)


def _write(request: Request, frame: DataFrame) -> None:
    with new_folder(request.root, make=False) as out:
        frame.write.partitionBy(*request.partition_columns).parquet(out)


def counts(spark: SparkSession) -> dict[str, int]:
    """The Spark jobs so far, their tasks, and the bytes that tasks returned to the driver."""
    store, gateway = spark.sparkContext._jsc.sc().statusStore(), spark.sparkContext._gateway
    quantiles, statuses = gateway.new_array(gateway.jvm.double, 0), gateway.jvm.java.util.ArrayList()
    stages = store.stageList(None, False, False, quantiles, statuses)
    found = [stages.apply(number) for number in range(stages.size())]
    return {
        "jobs": int(store.jobsList(None).size()),
        "tasks": sum(stage.numCompleteTasks() for stage in found),
        "returned": sum(stage.resultSize() for stage in found),
    }


OPERATIONS = {
    "append": append,
    "compact": compact,
    "cluster": cluster,
    "upsert": upsert,
    "delete": delete,
    "update": update,
    "repartition": repartition,
}

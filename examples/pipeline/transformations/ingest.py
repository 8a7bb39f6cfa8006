"""Streams JSON files into a dataset of events, exactly once: each micro-batch is one commit of its log."""

from __future__ import annotations

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

SCHEMA = "id BIGINT, version INT, at TIMESTAMP, customer INT, kind STRING, amount DECIMAL(12, 2)"
spark = SparkSession.active()


def setting(name: str) -> str:
    """A setting of `spark-pipeline.yml`."""
    value = spark.conf.get(name)
    assert value is not None, f"spark-pipeline.yml sets {name}"
    return value


def path(name: str) -> str:
    """A path of `spark-pipeline.yml`. While Spark loads this file, the working directory is that of the spec."""
    given = setting(f"spark.paths.{name}")
    return given if "://" in given else os.path.abspath(given)


@dp.temporary_view
def cleaned() -> DataFrame:
    """Events with an id and a time. Lines that are no JSON, or lack either, are dropped."""
    files = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", setting("spark.ingest.files_per_batch"))
    return (
        files.json(path("landing"))
        .where("id IS NOT NULL AND at IS NOT NULL")
        .withColumn("kind", F.lower(F.trim("kind")))
        .withColumn("day", F.to_date("at"))
        .withColumn("ingested_at", F.current_timestamp())
    )


# Every delivery of every event. The stream merges its own small files.
dp.create_sink("events", "parketto", {"path": path("events"), "partition_by": "day"})


@dp.append_flow(target="events")
def ingest() -> DataFrame:
    """All cleaned events, late and repeated ones too."""
    return spark.readStream.table("cleaned")

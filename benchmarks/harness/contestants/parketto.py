"""Parketto, in place and crash-safe, on any of its engines."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from harness import planning
from harness.contestants import imports
from harness.data import parquet_files
from harness.request import Request
from parketto import Dataset, sql

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


def prepare(request: Request) -> dict[str, object]:
    """The arguments of the dataset; with Spark, a session that runs; for a plan, what to plan with.

    All libraries are loaded before the clock starts, as they are for the others: also Polars, which Parketto
    itself would load only when it finds that there is much to encode; not where so little is, that it stays away.
    """
    if request.operation == "plan":
        return {"snapshot": planning.described(request.options["files"])}
    keywords: dict[str, object] = {"engine": request.options["engine"]}
    if memory_mb := request.options.get("memory_mb"):
        keywords["memory_mb"] = memory_mb
    if keywords["engine"] == "spark":
        keywords["spark"] = Dataset(request.root, engine="spark").engine.session
        _start_workers(keywords["spark"])
    elif request.operation != "import" and not request.options.get("few_rows"):
        import polars as pl  # noqa: F401
    if request.options.get("indexed"):
        _commit_once(request, keywords)
    return keywords


def _commit_once(request: Request, keywords: dict[str, object]) -> None:
    """Create what an earlier operation leaves beside the dataset: a row is deleted, and written again."""
    row = pq.read_table(parquet_files(request.root)[0]).slice(0, 1)
    dataset = Dataset(request.root, **keywords)
    dataset.delete(f"id = {row['id'][0]}")
    dataset.write(row)


def _start_workers(spark: SparkSession) -> None:
    """A Python worker for each core, as in a session that was used before; a few rows would start just one."""
    cores = spark.sparkContext.defaultParallelism

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import parketto.engines.spark.tasks  # noqa: F401 - what takes the time

        os.environ.setdefault("POLARS_MAX_THREADS", "1")  # as Parketto's tasks have it
        import polars as pl  # noqa: F401

        time.sleep(0.5)  # or one worker would serve them all
        yield from batches

    spark.range(0, cores, 1, cores).mapInArrow(wait, "id long").collect()


def compact(request: Request, keywords: dict[str, object]) -> None:
    """Small files become large ones."""
    chosen = {name: request.options[name] for name in ("rewrite",) if name in request.options}
    Dataset(request.root, **keywords).compact(target_mb_per_file=request.target_mb, **chosen)


def cluster(request: Request, keywords: dict[str, object]) -> None:
    """By the curve that is asked for, or the one that is the default."""
    chosen = {name: request.options[name] for name in ("curve",) if name in request.options}
    target = (
        {"target_rows_per_file": request.target_rows}
        if request.target_rows
        else {"target_mb_per_file": request.target_mb}
    )
    Dataset(request.root, **keywords).optimize(list(request.columns), **target, **chosen)


def append(request: Request, keywords: dict[str, object]) -> None:
    """A DataFrame."""
    Dataset(request.root, **keywords).write(_rows(request, keywords), mode="append")


def upsert(request: Request, keywords: dict[str, object]) -> None:
    """By `id`."""
    Dataset(request.root, **keywords).merge(_rows(request, keywords), "id")


def _rows(request: Request, keywords: dict[str, object]) -> object:
    return keywords["spark"].read.parquet(request.source) if request.options.get("frame") else request.source


def delete(request: Request, keywords: dict[str, object]) -> None:
    """By a condition."""
    if request.options.get("alone"):
        request = request.on_partition()
    Dataset(request.root, **keywords).delete(request.where())


def update(request: Request, keywords: dict[str, object]) -> None:
    """By a condition."""
    column, factor = request.assign
    Dataset(request.root, **keywords).update(request.where(), {column: sql(f"{column} * {factor}")})


def repartition(request: Request, keywords: dict[str, object]) -> None:
    """Into folders."""
    Dataset(request.root, **keywords).repartition(list(request.columns))


def plan(_request: Request, prepared: dict[str, Any]) -> None:
    """A compaction, from footers to tasks."""
    prepared["plan"] = planning.planned(prepared["snapshot"])


def check(_request: Request, prepared: dict[str, Any]) -> None:
    """A plan must have all files."""
    if "plan" in prepared:
        planning.check(prepared["plan"], prepared["snapshot"])


def import_it(_request: Request, _: dict[str, object]) -> dict[str, float]:
    """Parketto, and what it imports."""
    return imports.seconds_of("parketto")


def counts(keywords: dict[str, Any]) -> dict[str, int]:
    """What Spark did so far."""
    from harness.contestants import spark

    return spark.counts(keywords["spark"]) if "spark" in keywords else {}


OPERATIONS = {
    "append": append,
    "compact": compact,
    "cluster": cluster,
    "upsert": upsert,
    "delete": delete,
    "update": update,
    "repartition": repartition,
    "plan": plan,
    "import": import_it,
}

"""Clusters the rows of a large group on Spark: a shuffle moves rows to their file, a sort orders them in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa

from parketto.engines.spark.frames import Described, read_frame
from parketto.engines.spark.tasks import task_attempt
from parketto.parquet.clustering_metadata import Clustering
from parketto.parquet.decoded_types import decoded_schema
from parketto.parquet.exchange_types import exchange_name
from parketto.parquet.file_writer import file_writer
from parketto.parquet.output import Output, Written
from parketto.parquet.row_source import FileRows
from parketto.planning.rewrite import FileGroup
from parketto.runtime.staging import Staging
from parketto.runtime.task import Worker
from parketto.sorting.buckets import Buckets
from parketto.storage.store import Store
from parketto.tasks.cluster import (
    BUCKET,
    PART,
    NumberBuckets,
    SampleFiles,
    sample_share,
    unpacked_buckets,
    write_buckets,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_SAMPLES_PER_CORE = 2  # sampling tasks per core


def in_order(spark: SparkSession, rows: FileRows, columns: Sequence[str], parts: int, memory: int) -> DataFrame:
    """Rows sorted by columns, in range partitions."""
    keys = _keys(rows.schema, columns)
    frame = read_frame(spark, rows, memory)
    return frame.repartitionByRange(max(1, parts), *keys).sortWithinPartitions(*keys)


def sampling(group: FileGroup, clustering: Clustering, parallelism: int) -> list[SampleFiles]:
    """Tasks of about equal size that sample a group's rows."""
    count = min(len(group.files), _SAMPLES_PER_CORE * parallelism)
    share = sample_share(group)
    return [
        SampleFiles(group.files[number::count], clustering.columns, share, seed=number) for number in range(count)
    ]


def along_curve(spark: SparkSession, rows: FileRows, buckets: Buckets, parts: int, memory: int) -> DataFrame:
    """Rows with their buckets, in partitions of consecutive buckets, each sorted by bucket and by columns.

    The partition bounds are known beforehand, so Spark does not read the rows a second time to sample them.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the customary name

    firsts = buckets.parts(parts)
    numbers = NumberBuckets(buckets, parts=firsts)
    frame = read_frame(spark, rows, memory, added=numbers, added_fields=[BUCKET, PART])
    keys = [F.col(BUCKET.name), *_keys(rows.schema, buckets.columns)]
    return frame.repartitionById(len(firsts), F.col(PART.name)).drop(PART.name).sortWithinPartitions(*keys)


def _keys(schema: pa.Schema, columns: Sequence[str]) -> list[Column]:
    from pyspark.sql import functions as F  # noqa: N812

    return [F.col(exchange_name(schema.get_field_index(name))).asc_nulls_last() for name in columns]


@dataclass(frozen=True)
class WriteBuckets:
    """Writes rows that are sorted by bucket in Spark tasks; the bucket is their last column."""

    store: Store
    staging: Staging
    memory: int
    output: Output
    rows_per_bucket: float
    flags: int = 0

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Described]:
        """One item for what was written; none without rows."""
        rows = (batch for batch in batches if batch.num_rows)
        if (first := next(rows, None)) is None:
            return
        schema = decoded_schema(self.output.row_schema).remove_metadata()
        staging = replace(self.staging, attempt=task_attempt())
        counted = _Counted(chain([first], rows))
        with Worker(self.store, staging, self.memory) as worker:
            with file_writer(self.output, worker) as writer:
                write_buckets(unpacked_buckets(counted, schema), writer, self.rows_per_bucket)
            written = Written(tuple(writer.staged), counted.rows)
        yield written, []


class _Counted:
    """Counts the rows of batches as they pass."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches, self.rows = batches, 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.rows += batch.num_rows
            yield batch

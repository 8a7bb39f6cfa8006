"""Laying out the rows of a large group on Spark: a shuffle brings rows to their file, a sort to their place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa

from parketto.engines.spark.frames import Described, read_frame
from parketto.engines.spark.tasks import task_attempt
from parketto.kernels.carrier import carrier_schema
from parketto.kernels.clustering import (
    BUCKET,
    PART,
    NumberBuckets,
    SampleFiles,
    sample_share,
    unpacked_buckets,
    write_buckets,
)
from parketto.kernels.rows import FileRows
from parketto.kernels.travel import travel_name
from parketto.kernels.work import Staging, Worker
from parketto.kernels.write import Output, Written, output_writer
from parketto.layout.buckets import Buckets
from parketto.plan.rewrite import FileGroup
from parketto.storage.clustering import Clustering
from parketto.storage.store import Store

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_SAMPLES_PER_CORE = 2


def in_order(spark: SparkSession, rows: FileRows, columns: Sequence[str], parts: int, memory: int) -> DataFrame:
    """Rows sorted by columns, in parts that follow each other."""
    keys = _keys(rows.schema, columns)
    frame = read_frame(spark, rows, memory)
    return frame.repartitionByRange(max(1, parts), *keys).sortWithinPartitions(*keys)


def sampling(group: FileGroup, clustering: Clustering, parallelism: int) -> list[SampleFiles]:
    """Tasks that take a sample of a group's rows, of about equal size."""
    count = min(len(group.files), _SAMPLES_PER_CORE * parallelism)
    share = sample_share(group)
    return [
        SampleFiles(group.files[number::count], clustering.columns, share, seed=number) for number in range(count)
    ]


def along_curve(spark: SparkSession, rows: FileRows, buckets: Buckets, parts: int, memory: int) -> DataFrame:
    """Rows with their buckets, in parts of consecutive buckets, each sorted by bucket and by columns.

    Where the parts begin is known beforehand, so Spark need not find out by sampling: nobody reads the rows twice.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the customary name

    firsts = buckets.parts(parts)
    numbers = NumberBuckets(buckets, parts=firsts)
    frame = read_frame(spark, rows, memory, added=numbers, added_fields=[BUCKET, PART])
    keys = [F.col(BUCKET.name), *_keys(rows.schema, buckets.columns)]
    return frame.repartitionById(len(firsts), F.col(PART.name)).drop(PART.name).sortWithinPartitions(*keys)


def _keys(schema: pa.Schema, columns: Sequence[str]) -> list[Column]:
    from pyspark.sql import functions as F  # noqa: N812

    return [F.col(travel_name(schema.get_field_index(name))).asc_nulls_last() for name in columns]


@dataclass(frozen=True)
class WriteBuckets:
    """Writes rows inside of Spark tasks that come with their bucket and in its order."""

    store: Store
    staging: Staging
    memory: int
    output: Output
    rows_per_bucket: float
    flags: int = 0

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Described]:
        """One description of what was written, or none."""
        rows = (batch for batch in batches if batch.num_rows)
        if (first := next(rows, None)) is None:
            return
        schema = carrier_schema(self.output.row_schema).remove_metadata()
        staging = replace(self.staging, attempt=task_attempt())
        counted = _Counted(chain([first], rows))
        with Worker(self.store, staging, self.memory) as worker:
            with output_writer(self.output, self.output.directory, worker) as writer:
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

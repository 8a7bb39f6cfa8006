"""Clusters rows along a space-filling curve: a sample sets the bucket bounds, then each row gets its bucket."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parketto.parquet.clustering_metadata import Clustering
from parketto.parquet.decoded_types import decoded_schema
from parketto.parquet.exchange_types import from_exchange
from parketto.parquet.file_info import FileInfo
from parketto.parquet.file_writer import FileWriter
from parketto.parquet.parallel_reader import read_parallel
from parketto.parquet.reader import BatchReader
from parketto.planning.rewrite import FileGroup
from parketto.runtime.batches import decoded_bytes
from parketto.runtime.task import Worker
from parketto.sorting.buckets import Buckets, cut_buckets

# Enough sampled rows for bucket sizes within a few percent, and few enough to sort quickly.
_SAMPLES_PER_BUCKET = 256
_SAMPLES_PER_LIMITED_BUCKET = 2048
_BUCKETS_PER_FILE = 4
_MIN_SAMPLES = 64 * 1024
_MAX_SAMPLES = 1024 * 1024
# An unusual seed: the rows may come from the same generator, probably with a small seed.
_SEED = 0x7061_726B_6574

BUCKET = pa.field("bucket", pa.int32())
PART = pa.field("part", pa.int32())


@dataclass(frozen=True)
class Sample:
    """Some rows, each taken with the same probability."""

    rows: pa.Table
    share: float

    def thinned(self, share: float) -> Sample:
        """A smaller sample, as if taken with a smaller probability."""
        if share >= self.share:
            return self
        rng = np.random.default_rng([_SEED, self.rows.num_rows])
        kept = np.flatnonzero(rng.random(self.rows.num_rows) < share / self.share)
        return Sample(self.rows.take(pa.array(kept)), share)


@dataclass(frozen=True)
class SampleFiles:
    """Sample the clustering columns of files.

    Reads all rows of these columns: if files are sorted, a few row groups would not be representative.
    """

    files: tuple[FileInfo, ...]
    columns: tuple[str, ...]
    share: float
    seed: int = 0

    @property
    def size_bytes(self) -> int:
        """The size of the files."""
        return sum(file.size_bytes for file in self.files)

    def run(self, worker: Worker) -> Sample:
        """Read and sample; with long strings fewer rows, so that the sample stays within the memory limit."""
        whole = decoded_schema(self.files[0].schema)
        schema = pa.schema([whole.field(name) for name in self.columns])
        reader = BatchReader(
            worker.store, schema, worker.batch_bytes, use_threads=worker.use_threads, widths=worker.widths
        )
        rng = np.random.default_rng([_SEED, self.seed])
        kept: list[pa.RecordBatch] = []
        share, size = self.share, 0
        rows = read_parallel(
            self.files, reader.read, worker.batch_bytes, threads=worker.threads, size_of=reader.sizes.of
        )
        with closing(rows):
            for batch in worker.until_cancelled(rows):
                if share < 1:
                    batch = batch.take(pa.array(np.flatnonzero(rng.random(batch.num_rows) < share)))
                kept.append(batch)
                size += decoded_bytes(batch)
                if size > worker.run_bytes:
                    thinner = Sample(pa.Table.from_batches(kept), share).thinned(share / 2)
                    kept, share = thinner.rows.combine_chunks().to_batches(), thinner.share
                    size = sum(map(decoded_bytes, kept))
        return Sample(pa.Table.from_batches(kept, reader.schema).combine_chunks(), share)


def combined(samples: Sequence[Sample]) -> Sample:
    """One sample of the whole, from samples of its parts."""
    least = min(sample.share for sample in samples)
    return Sample(pa.concat_tables([sample.thinned(least).rows for sample in samples]), least)


def bucket_count(group: FileGroup) -> int:
    """The approximate number of buckets for the rows of a group.

    A power of two makes every bucket a whole square of the curve, or half of one. If the rows of files are
    limited, or files consist of few buckets, the right file size takes precedence.
    """
    count = max(1, -(-group.num_rows // max(1, group.row_group_rows or group.num_rows)))
    if group.outputs > 1 and (group.max_rows is not None or count < _BUCKETS_PER_FILE * group.outputs):
        return count
    return int(2 ** round(math.log2(count)))


def largest_share(group: FileGroup, sample: Sample) -> float | None:
    """The maximum share of rows in a bucket, so that a whole number of buckets fits into a file."""
    if group.max_rows is None or not group.num_rows:
        return None
    pieces = max(1, round(group.max_rows / max(1, group.row_group_rows or group.num_rows)))
    share = group.max_rows / pieces / group.num_rows
    if sample.share < 1:  # leave room for the sampling error
        share *= 1 - 2 / math.sqrt(max(4.0, share * sample.rows.num_rows))
    return share


def sample_share(group: FileGroup) -> float:
    """The share of a group's rows that is a large enough sample."""
    each = _SAMPLES_PER_BUCKET if group.max_rows is None else _SAMPLES_PER_LIMITED_BUCKET
    wanted = min(_MAX_SAMPLES, max(_MIN_SAMPLES, each * bucket_count(group)))
    return min(1.0, wanted / max(1, group.num_rows))


def buckets_of(samples: Sequence[Sample], group: FileGroup, clustering: Clustering) -> Buckets:
    """The buckets along the curve through a group's rows."""
    sample = combined(samples)
    return cut_buckets(
        sample.rows,
        clustering.columns,
        clustering.curve,
        bucket_count(group),
        largest_share(group, sample),
        group.surroundings,
        sample.share,
    )


def sampled_buckets(group: FileGroup, clustering: Clustering, worker: Worker) -> Buckets:
    """The buckets along the curve through a group's rows, from a sample that this task takes."""
    task = SampleFiles(group.files, clustering.columns, sample_share(group))
    return buckets_of([task.run(worker)], group, clustering)


def bucket_column(schema: pa.Schema) -> str:
    """A name for the column of bucket numbers that is not a column of the rows."""
    name = str(BUCKET.name)
    while name in schema.names:
        name += "_"
    return name


def with_buckets(batches: Iterable[pa.RecordBatch], buckets: Buckets, name: str) -> Iterator[pa.RecordBatch]:
    """Rows with the numbers of their buckets as the last column."""
    first = 0
    for batch in batches:
        numbers = buckets.of([batch.column(column) for column in buckets.columns], first)
        first += batch.num_rows
        yield batch.append_column(name, pa.array(numbers))


@dataclass(frozen=True)
class NumberBuckets:
    """Computes the bucket number of each row, as an added column."""

    buckets: Buckets
    #: The first bucket of each run of buckets; if given, the number of a row's run is another added column.
    parts: npt.NDArray[np.int64] | None = None

    def __call__(self, file: Any, position: int, row: int, batch: pa.RecordBatch) -> dict[str, pa.Array]:  # noqa: ARG002
        """The added columns of a batch, whose first row has the number `row`."""
        numbers = self.buckets.of([batch.column(column) for column in self.buckets.columns], row)
        found = {BUCKET.name: pa.array(numbers)}
        if self.parts is not None:
            found[PART.name] = pa.array(np.searchsorted(self.parts, numbers, side="right") - 1, pa.int32())
        return found


def unpacked_buckets(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows converted back from exchange types, with their bucket as the last column."""
    width = len(schema.names)
    for batch in batches:
        rows = from_exchange(batch.select(list(range(width))), schema)
        yield rows.append_column(bucket_column(schema), batch.column(width))


def write_buckets(batches: Iterable[pa.RecordBatch], writer: FileWriter, rows_per_bucket: float) -> None:
    """Write rows that are sorted by bucket, their last column; every bucket begins a row group."""
    current = None
    for batch in batches:
        numbers = np.asarray(batch.column(batch.num_columns - 1))
        rows = batch.select(batch.schema.names[:-1])
        borders = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(numbers)]
        for start, end in pairwise(borders):
            if start == end:
                continue
            if current is not None and numbers[start] != current:
                writer.end_bucket(rows_per_bucket, int(numbers[start]))
            current = numbers[start]
            writer.write(rows.slice(start, end - start))

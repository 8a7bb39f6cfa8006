"""Laying rows out along a curve: a sample says where it is cut, every row then knows its bucket."""

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

from parketto.kernels.ahead import read_ahead
from parketto.kernels.carrier import carrier_schema
from parketto.kernels.reader import BatchReader
from parketto.kernels.sizes import decoded_bytes
from parketto.kernels.travel import unpack
from parketto.kernels.work import Worker
from parketto.kernels.writer import RollingWriter
from parketto.layout.buckets import Buckets, cut_buckets
from parketto.plan.rewrite import FileGroup
from parketto.storage.clustering import Clustering
from parketto.storage.footers import FileInfo

# Enough for buckets that differ in size by a few percent; and no more than is soon sorted.
_SAMPLES_PER_BUCKET = 256
_SAMPLES_PER_LIMITED_BUCKET = 2048
_BUCKETS_PER_FILE = 4
_LEAST_SAMPLES = 64 * 1024
_MOST_SAMPLES = 1024 * 1024
# Nobody else's: rows may well have been made by the same generator, and then small seeds are likely.
_SEED = 0x7061_726B_6574

BUCKET = pa.field("bucket", pa.int32())
PART = pa.field("part", pa.int32())


@dataclass(frozen=True)
class Sample:
    """Some rows, each taken with the same chance."""

    rows: pa.Table
    share: float

    def thinned(self, share: float) -> Sample:
        """Fewer of them, as if taken with a smaller chance."""
        if share >= self.share:
            return self
        chance = np.random.default_rng([_SEED, self.rows.num_rows])
        kept = np.flatnonzero(chance.random(self.rows.num_rows) < share / self.share)
        return Sample(self.rows.take(pa.array(kept)), share)


@dataclass(frozen=True)
class SampleFiles:
    """Take a sample of the clustering columns of files.

    All rows of these columns are read: where files are in some order, a few of their row groups would not tell.
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
        """Read and choose; with long texts fewer rows, so that the sample stays within bounds."""
        whole = carrier_schema(self.files[0].schema)
        schema = pa.schema([whole.field(name) for name in self.columns])
        reader = BatchReader(
            worker.store, schema, worker.batch_bytes, use_threads=worker.use_threads, widths=worker.widths
        )
        chance = np.random.default_rng([_SEED, self.seed])
        kept: list[pa.RecordBatch] = []
        share, size = self.share, 0
        rows = read_ahead(
            self.files, reader.read, worker.batch_bytes, threads=worker.threads, size_of=reader.sizes.of
        )
        with closing(rows):
            for batch in worker.until_cancelled(rows):
                if share < 1:
                    batch = batch.take(pa.array(np.flatnonzero(chance.random(batch.num_rows) < share)))
                kept.append(batch)
                size += decoded_bytes(batch)
                if size > worker.run_bytes:
                    thinner = Sample(pa.Table.from_batches(kept), share).thinned(share / 2)
                    kept, share = thinner.rows.combine_chunks().to_batches(), thinner.share
                    size = sum(map(decoded_bytes, kept))
        return Sample(pa.Table.from_batches(kept, reader.schema).combine_chunks(), share)


def joined(samples: Sequence[Sample]) -> Sample:
    """Samples of several parts as one of the whole."""
    least = min(sample.share for sample in samples)
    return Sample(pa.concat_tables([sample.thinned(least).rows for sample in samples]), least)


def bucket_count(group: FileGroup) -> int:
    """Into about how many buckets the rows of a group are to be cut.

    A power of two makes every bucket a whole square of the curve, or half of one. Where the rows of files are
    limited, or files consist of few buckets, files of the right size count for more.
    """
    count = max(1, -(-group.num_rows // max(1, group.row_group_rows or group.num_rows)))
    if group.outputs > 1 and (group.max_rows is not None or count < _BUCKETS_PER_FILE * group.outputs):
        return count
    return int(2 ** round(math.log2(count)))


def largest_share(group: FileGroup, sample: Sample) -> float | None:
    """Which share of the rows a bucket may have at most, so that a whole number of them fits into a file."""
    if group.max_rows is None or not group.num_rows:
        return None
    pieces = max(1, round(group.max_rows / max(1, group.row_group_rows or group.num_rows)))
    share = group.max_rows / pieces / group.num_rows
    if sample.share < 1:  # what was not sampled may differ by chance
        share *= 1 - 2 / math.sqrt(max(4.0, share * sample.rows.num_rows))
    return share


def sample_share(group: FileGroup) -> float:
    """Which share of a group's rows is a sample of them that is large enough."""
    each = _SAMPLES_PER_BUCKET if group.max_rows is None else _SAMPLES_PER_LIMITED_BUCKET
    wanted = min(_MOST_SAMPLES, max(_LEAST_SAMPLES, each * bucket_count(group)))
    return min(1.0, wanted / max(1, group.num_rows))


def buckets_of(samples: Sequence[Sample], group: FileGroup, clustering: Clustering) -> Buckets:
    """Where the curve through a group's rows is cut."""
    sample = joined(samples)
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
    """Where the curve through a group's rows is cut, from a sample that is taken here and now."""
    task = SampleFiles(group.files, clustering.columns, sample_share(group))
    return buckets_of([task.run(worker)], group, clustering)


def bucket_column(schema: pa.Schema) -> str:
    """A name for the column of bucket numbers that no column of the rows has."""
    name = str(BUCKET.name)
    while name in schema.names:
        name += "_"
    return name


def with_buckets(batches: Iterable[pa.RecordBatch], buckets: Buckets, name: str) -> Iterator[pa.RecordBatch]:
    """Rows with the numbers of their buckets as a last column."""
    first = 0
    for batch in batches:
        numbers = buckets.of([batch.column(column) for column in buckets.columns], first)
        first += batch.num_rows
        yield batch.append_column(name, pa.array(numbers))


@dataclass(frozen=True)
class NumberBuckets:
    """The numbers of rows' buckets as a column that travels with them."""

    buckets: Buckets
    #: The first buckets of runs of buckets: then the number of its run travels with a row as well.
    parts: npt.NDArray[np.int64] | None = None

    def __call__(self, file: Any, position: int, row: int, batch: pa.RecordBatch) -> dict[str, pa.Array]:  # noqa: ARG002
        """The columns for a batch of a file, whose first row has that number."""
        numbers = self.buckets.of([batch.column(column) for column in self.buckets.columns], row)
        found = {BUCKET.name: pa.array(numbers)}
        if self.parts is not None:
            found[PART.name] = pa.array(np.searchsorted(self.parts, numbers, side="right") - 1, pa.int32())
        return found


def unpacked_buckets(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows that have travelled with their bucket as the last column, as they were; with the bucket."""
    width = len(schema.names)
    for batch in batches:
        rows = unpack(batch.select(list(range(width))), schema)
        yield rows.append_column(bucket_column(schema), batch.column(width))


def write_buckets(batches: Iterable[pa.RecordBatch], writer: RollingWriter, rows_per_bucket: float) -> None:
    """Write rows that come in the order of their buckets, the last column; every bucket begins a row group."""
    current = None
    for batch in batches:
        numbers = np.asarray(batch.column(batch.num_columns - 1))
        rows = batch.select(batch.schema.names[:-1])
        borders = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(numbers)]
        for start, end in pairwise(borders):
            if start == end:
                continue
            if current is not None and numbers[start] != current:
                writer.cut(rows_per_bucket, int(numbers[start]))
            current = numbers[start]
            writer.write(rows.slice(start, end - start))

"""Files as Spark frames and frames as files: for work in which rows must meet, so that Spark shuffles them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from parketto.engines.spark.carriers import spark_schema
from parketto.engines.spark.session import is_connect
from parketto.engines.spark.shipping import Shipped
from parketto.engines.spark.tasks import StageProgress, parallelism, raising_typed, results, task_attempt
from parketto.kernels.carrier import carrier_schema, recast
from parketto.kernels.counting import count_folders
from parketto.kernels.merge_source import as_target
from parketto.kernels.reader import LogicalReader
from parketto.kernels.rows import FileRows
from parketto.kernels.travel import Added, packed_with, travel_name, travel_schema, unpack
from parketto.kernels.work import StagedFile, Staging, Worker
from parketto.kernels.write import Output, Written, write_rows
from parketto.kernels.writer import FileFormat, RollingWriter
from parketto.storage.footers import FileInfo
from parketto.storage.snapshot import read_snapshot
from parketto.storage.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: What a task has written, and how many rows had each flag.
Described = tuple[Written, list[int]]
_FILES_PER_READ = 16
_READ_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True)
class ReadRows:
    """Reads files inside of Spark tasks; what comes out travels. `added` makes further columns of each batch."""

    rows: FileRows
    columns: pa.Schema
    as_read: pa.Schema
    memory: int
    travelling: pa.Schema
    added: Added | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of the files whose positions come in."""
        with raising_typed(), Worker(self.rows.store, Staging(""), self.memory) as worker:
            reader = LogicalReader(self.rows.store, self.as_read, worker.batch_bytes, self.rows.form)
            for position in chain.from_iterable(batch.column(0).to_pylist() for batch in batches):
                file = self.rows.files[position]
                rows = as_target(reader.read(file), self.columns)
                yield from packed_with(rows, self.travelling, file, position, self.added)


def read_frame(
    spark: SparkSession,
    rows: FileRows,
    memory: int,
    *,
    columns: Sequence[str] | None = None,
    only: Sequence[int] | None = None,
    as_read: pa.Schema | None = None,
    added: Added | None = None,
    added_fields: Sequence[pa.Field] = (),
) -> DataFrame:
    """The rows of files as a frame of travelling columns `c0`, `c1`, …, and whatever `added` makes.

    Args:
        spark: The session.
        rows: The files and their schema.
        memory: How many bytes a task may use for data.
        columns: Which columns are wanted; by default all.
        only: The positions of the files that are wanted; by default all.
        as_read: The schema in which the files are read, if that is another than the one that is wanted.
        added: Makes further columns from a file, its position, the number of a batch's first row, and the batch.
        added_fields: The names and types of these columns.
    """
    schema = carrier_schema(rows.schema).remove_metadata()
    if columns is not None:
        schema = pa.schema([schema.field(name) for name in columns])
    travelling = pa.schema([*travel_schema(schema), *added_fields])
    frame = positions_frame(spark, rows, range(len(rows.files)) if only is None else only)
    reader = ReadRows(rows, schema, as_read or schema, memory, travelling, added)
    return frame.mapInArrow(Shipped(reader), spark_schema(travelling))


def positions_frame(spark: SparkSession, rows: FileRows, wanted: Sequence[int]) -> DataFrame:
    """The positions of files, neighbours together, so that the order of the frame is that of the files."""
    size = sum(rows.files[position].size_bytes for position in wanted)
    parts = int(max(1, min(len(wanted), max(-(-len(wanted) // _FILES_PER_READ), size // _READ_BYTES))))
    table = pa.table(
        {
            "position": pa.array(wanted, pa.int32()),
            "part": pa.array([number * parts // len(wanted) for number in range(len(wanted))], pa.int32()),
        }
    )
    frame = spark.createDataFrame(table)
    # Rows of the driver's are spread over all cores, neighbours together, without a shuffle. A Connect server does
    # not say what it will do.
    if parts > parallelism(spark) or is_connect(spark):
        frame = frame.repartitionById(parts, "part")
    return frame.select("position")


@dataclass(frozen=True)
class WriteRows:
    """Writes travelling rows inside of Spark tasks. Where there are partitions, rows come in their order.

    Columns after those of the rows are flags: how many rows have each is counted.
    """

    store: Store
    staging: Staging
    memory: int
    output: Output
    flags: int = 0

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Described]:
        """One description of what was written, or none."""
        counts = [0] * self.flags
        schema = carrier_schema(self.output.row_schema).remove_metadata()
        width = len(schema.names)

        def rows() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in range(self.flags):
                    counts[number] += pc.sum(batch.column(width + number)).as_py() or 0
                yield unpack(batch.select(list(range(width))), schema)

        staging = replace(self.staging, attempt=task_attempt())
        with Worker(self.store, staging, self.memory) as worker:
            written = write_rows(rows(), self.output, worker, at_least_one=False, in_partition_order=True)
        if written.num_rows:
            yield written, counts


class FrameWriter(Protocol):
    """What writes the rows of a frame inside of Spark tasks, and says what it has written and counted."""

    @property
    def output(self) -> Output:
        """What the files are to be like."""

    @property
    def flags(self) -> int:
        """How many counts come back."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Described]:
        """One description of what was written, or none."""


def write_frame(
    spark: SparkSession,
    frame: DataFrame,
    writer: FrameWriter,
    what: str,
    progress: StageProgress | None = None,
) -> tuple[Written, list[int]]:
    """Write a frame of travelling columns; partitions are brought together first, large ones in several pieces."""
    from pyspark.sql import functions as F  # noqa: N812 - the customary name

    output = writer.output
    if output.partition_by:
        names = [travel_name(output.row_schema.get_field_index(name)) for name in output.partition_by]
        frame = together(spark, frame, *names).sortWithinPartitions(*(F.col(name) for name in names))
    found: list[Described] = results(spark, frame, writer, what, progress)
    written = Written(
        tuple(staged for each, _ in found for staged in each.staged), sum(each.num_rows for each, _ in found)
    )
    return written, [sum(counts[at] for _, counts in found) for at in range(writer.flags)]


def together(spark: SparkSession, frame: DataFrame, *names: str) -> DataFrame:
    """The rows of each partition in as few tasks as can be.

    Adaptive execution joins small partitions and splits large ones: neither a file per task and partition, nor
    one task for the largest of them. Without it Spark ignores the hint, and each partition is one task's.
    """
    adaptive = str(spark.conf.get("spark.sql.adaptive.enabled")).lower() == "true"
    return frame.hint("rebalance", *names) if adaptive else frame.repartition(*names)


@dataclass(frozen=True)
class CountRows:
    """Counts travelling rows by the folder of their partition."""

    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Counter[str]]:
        """One count for each folder."""
        yield count_folders((unpack(batch, self.schema) for batch in batches), self.schema.names)


def count_frame(spark: SparkSession, frame: DataFrame, schema: pa.Schema, columns: Sequence[str]) -> Counter[str]:
    """How many rows of a frame of travelling columns belong into the folder of each partition."""
    wanted = frame.select(*(travel_name(schema.get_field_index(name)) for name in columns))
    carried = carrier_schema(pa.schema([schema.field(name) for name in columns])).remove_metadata()
    return sum(results(spark, wanted, CountRows(carried), "parketto: partitions"), Counter())


@dataclass(frozen=True)
class SpoolRows:
    """Keeps the rows of a frame as files that all tasks can read, in the order of the frame."""

    store: Store
    staging: Staging
    memory: int
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[str]:
        """The path of the file that was written, if there were rows."""
        attempt = task_attempt()
        number = int(attempt.split("-")[1])
        path = self.staging.spool_path(f"rows-{number:08d}-{attempt}")
        with Worker(self.store, self.staging, self.memory) as worker:
            rows = (unpack(batch, self.schema) for batch in batches)
            if spool(rows, self.schema, path, worker):
                yield path


def spool(batches: Iterable[pa.RecordBatch], schema: pa.Schema, path: str, worker: Worker) -> int:
    """Write rows to one file of the spool; returns how many. Without rows there is no file."""
    rows = 0
    writer = RollingWriter(
        worker.store,
        FileFormat(schema, "lz4"),
        lambda: StagedFile(path, path),
        row_group_bytes=worker.row_group_bytes,
    )
    for batch in batches:
        rows += batch.num_rows
        writer.write(recast(batch, schema))
    if rows:
        writer.finish()
    return rows


def described(store: Store, paths: Sequence[str]) -> tuple[FileInfo, ...]:
    """What the footers of files of the spool say."""
    entries = store.stat_many(paths)
    return read_snapshot(store, "", [entries[path] for path in paths], None).files

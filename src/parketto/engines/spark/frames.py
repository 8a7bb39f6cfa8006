"""Files as Spark DataFrames and DataFrames as files, for work that needs Spark's shuffle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from parketto.engines.spark.session import is_connect
from parketto.engines.spark.shipping import PickledFunction
from parketto.engines.spark.tasks import StageProgress, parallelism, raising_typed, results, task_attempt
from parketto.engines.spark.types import spark_schema
from parketto.engines.text_types import ParsedColumns
from parketto.expressions.derived import DerivedColumns
from parketto.merge.source import as_target
from parketto.parquet.decoded_types import decoded_schema, recast
from parketto.parquet.exchange_types import (
    ExtraColumns,
    exchange_name,
    exchange_schema,
    from_exchange,
    to_exchange,
    to_exchange_with,
)
from parketto.parquet.file_format import FileFormat
from parketto.parquet.file_info import FileInfo
from parketto.parquet.file_writer import FileWriter
from parketto.parquet.logical_reader import LogicalReader
from parketto.parquet.output import Output, Written
from parketto.parquet.row_source import FileRows
from parketto.parquet.snapshot import read_snapshot
from parketto.runtime.staging import StagedFile, Staging
from parketto.runtime.task import Worker
from parketto.storage.store import Store
from parketto.tasks.count import count_folders
from parketto.tasks.scan import Scan
from parketto.tasks.write import write_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Result = TypeVar("Result")
#: What a task has written, and the number of rows with each flag.
Described = tuple[Written, list[int]]
_FILES_PER_READ = 16  # maximum number of files per read task
_READ_BYTES = 32 * 1024 * 1024  # bytes per read task


@dataclass(frozen=True)
class ReadRows:
    """Reads files in Spark tasks, in exchange types. `added` computes further columns of each batch."""

    rows: FileRows
    columns: pa.Schema
    memory: int
    exchanged: pa.Schema
    added: ExtraColumns | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of the files at the incoming positions."""
        with raising_typed(), Worker(self.rows.store, Staging(""), self.memory) as worker:
            reader = LogicalReader(self.rows.store, self.columns, worker.batch_bytes, self.rows.spec)
            for position in chain.from_iterable(batch.column(0).to_pylist() for batch in batches):
                file = self.rows.files[position]
                rows = as_target(reader.read(file), self.columns)
                yield from to_exchange_with(rows, self.exchanged, file, position, self.added)


def read_frame(
    spark: SparkSession,
    rows: FileRows,
    memory: int,
    *,
    added: ExtraColumns | None = None,
    added_fields: Sequence[pa.Field] = (),
) -> DataFrame:
    """The rows of files as a DataFrame of exchange columns `c0`, `c1`, …, and the columns of `added`.

    Args:
        spark: The session.
        rows: The files and their schema.
        memory: Memory for the data of one task, in bytes.
        added: Computes columns from a file, its position, the number of a batch's first row, and the batch.
        added_fields: The names and types of these columns.
    """
    schema = decoded_schema(rows.schema).remove_metadata()
    exchanged = pa.schema([*exchange_schema(schema), *added_fields])
    frame = positions_frame(spark, rows)
    reader = ReadRows(rows, schema, memory, exchanged, added)
    return frame.mapInArrow(PickledFunction(reader), spark_schema(exchanged))


def positions_frame(spark: SparkSession, rows: FileRows) -> DataFrame:
    """A DataFrame of file positions, neighbours in one partition, so that the order of files is kept."""
    count = len(rows.files)
    parts = int(max(1, min(count, max(-(-count // _FILES_PER_READ), rows.size_bytes // _READ_BYTES))))
    table = pa.table(
        {
            "position": pa.array(range(count), pa.int32()),
            "part": pa.array([number * parts // count for number in range(count)], pa.int32()),
        }
    )
    frame = spark.createDataFrame(table)
    # Spark spreads local rows over all cores, neighbours together, without a shuffle. A Connect server does not
    # guarantee that.
    if parts > parallelism(spark) or is_connect(spark):
        frame = frame.repartitionById(parts, "part")
    return frame.select("position")


@dataclass(frozen=True)
class WriteRows:
    """Writes rows of exchange types in Spark tasks. If there are partitions, rows must be sorted by them.

    Columns after those of the rows are flags: the rows with each flag are counted.
    """

    store: Store
    staging: Staging
    memory: int
    output: Output
    flags: int = 0

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Described]:
        """One item for what was written; none without rows."""
        counts = [0] * self.flags
        checks = self.output.checks
        # Rows are checked in the types of their source; those of partition columns may differ.
        schema = decoded_schema(self.output.row_schema if checks is None else checks.rows).remove_metadata()
        width = len(schema.names)

        def rows() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in range(self.flags):
                    counts[number] += pc.sum(batch.column(width + number)).as_py() or 0
                yield from_exchange(batch.select(list(range(width))), schema)

        staging = replace(self.staging, attempt=task_attempt())
        with Worker(self.store, staging, self.memory) as worker:
            written = write_rows(rows(), self.output, worker, at_least_one=False, in_partition_order=True)
        if written.num_rows or written.violations.rows:
            yield written, counts


class FrameWriter(Protocol):
    """Writes the rows of a DataFrame in Spark tasks, and returns what it has written and counted."""

    @property
    def output(self) -> Output:
        """The format and location of the files."""

    @property
    def flags(self) -> int:
        """The number of counts that are returned."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Described]:
        """One item for what was written; none without rows."""


def write_frame(
    spark: SparkSession,
    frame: DataFrame,
    writer: FrameWriter,
    what: str,
    progress: StageProgress | None = None,
) -> tuple[Written, list[int]]:
    """Write a DataFrame of exchange columns, shuffled by partition first; large partitions are split."""
    from pyspark.sql import functions as F  # noqa: N812 - the customary name

    output = writer.output
    if output.partition_by:
        names = [exchange_name(output.row_schema.get_field_index(name)) for name in output.partition_by]
        frame = shuffle_by(spark, frame, *names).sortWithinPartitions(*(F.col(name) for name in names))
    found: list[Described] = results(spark, frame, writer, what, progress)
    written = Written.total(each for each, _ in found)
    return written, [sum(counts[at] for _, counts in found) for at in range(writer.flags)]


def shuffle_by(spark: SparkSession, frame: DataFrame, *names: str) -> DataFrame:
    """The rows of each partition in as few tasks as possible.

    Adaptive execution coalesces small partitions and splits large ones. This avoids both a file per task and
    partition, and a single task for the largest partition. Without it Spark ignores the hint, and each partition
    gets one task.
    """
    adaptive = str(spark.conf.get("spark.sql.adaptive.enabled")).lower() == "true"
    return frame.hint("rebalance", *names) if adaptive else frame.repartition(*names)


@dataclass(frozen=True)
class CountRows:
    """Counts rows of exchange types by partition folder."""

    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Counter[str]]:
        """The count of each folder."""
        yield count_folders((from_exchange(batch, self.schema) for batch in batches), self.schema.names)


def count_frame(spark: SparkSession, frame: DataFrame, schema: pa.Schema, columns: Sequence[str]) -> Counter[str]:
    """Row counts of a DataFrame of exchange columns, by partition folder."""
    wanted = frame.select(*(exchange_name(schema.get_field_index(name)) for name in columns))
    decoded = decoded_schema(pa.schema([schema.field(name) for name in columns])).remove_metadata()
    return sum(results(spark, wanted, CountRows(decoded), "parketto: partitions"), Counter())


@dataclass(frozen=True)
class ScanRows(Generic[Result]):
    """Applies a function to rows of exchange types."""

    schema: pa.Schema
    scan: Scan[Result]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Result]:
        """One result for each Spark task."""
        yield self.scan(from_exchange(batch, self.schema) for batch in batches)


@dataclass(frozen=True)
class DeriveColumns:
    """Appends computed columns to rows of exchange types."""

    columns: DerivedColumns | ParsedColumns
    exchanged: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows with these columns."""
        schema = decoded_schema(self.columns.takes).remove_metadata()
        with raising_typed():
            for batch in batches:
                yield to_exchange(self.columns.added(from_exchange(batch, schema)), self.exchanged)


def derived_frame(frame: DataFrame, columns: DerivedColumns | ParsedColumns) -> DataFrame:
    """A DataFrame of exchange columns, followed by computed ones, or with parsed ones."""
    exchanged = exchange_schema(decoded_schema(columns.schema))
    return frame.mapInArrow(PickledFunction(DeriveColumns(columns, exchanged)), spark_schema(exchanged))


@dataclass(frozen=True)
class SpoolRows:
    """Spools the rows of a DataFrame, in order, to files that all tasks can read."""

    store: Store
    staging: Staging
    memory: int
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[str]:
        """The path of the spool file, if there are rows."""
        attempt = task_attempt()
        number = int(attempt.split("-")[1])
        path = self.staging.spool_path(f"rows-{number:08d}-{attempt}")
        with Worker(self.store, self.staging, self.memory) as worker:
            rows = (from_exchange(batch, self.schema) for batch in batches)
            if spool(rows, self.schema, path, worker):
                yield path


def spool(batches: Iterable[pa.RecordBatch], schema: pa.Schema, path: str, worker: Worker) -> int:
    """Write rows to one spool file, and return their number. Without rows there is no file."""
    rows = 0
    writer = FileWriter(
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


def spool_footers(store: Store, paths: Sequence[str]) -> tuple[FileInfo, ...]:
    """The footers of spool files."""
    entries = store.stat_many(paths)
    return read_snapshot(store, "", [entries[path] for path in paths], None).files

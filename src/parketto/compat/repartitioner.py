"""`Repartitioner`: writes a dataset to a new location with other partition columns."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Sequence
from typing import TypedDict

from fsspec import AbstractFileSystem

from parketto.arguments import MEGABYTE, Thresholds, check_codec, check_names, check_positive_integer
from parketto.compat.transform import TransformFunction, transformed_rows, wants_spark_frame
from parketto.dataset import Dataset
from parketto.engines.base import Engine
from parketto.errors import InvalidArgument
from parketto.operations.migrate import Migration, check_apart, count_partitions, migrate, plan_migration
from parketto.operations.running import running
from parketto.parquet.row_source import FileRows, RowSource
from parketto.progress import ProgressOption, bar_on_terminal
from parketto.storage.options import GivenOptions


class SizeEstimate(TypedDict):
    """The size of the new dataset: exact row and partition counts, and the size of the current files."""

    total_rows: int
    num_partitions: int
    avg_rows_per_partition: float
    estimated_size_mb: float
    partition_cols: list[str]


class RepartitionStats(TypedDict):
    """What a repartitioning did, or, in a dry run, would do."""

    files_read: int
    #: In a dry run: an estimate that assumes the current compression ratio.
    files_written: int
    records_read: int
    records_written: int
    partitions_created: int
    #: Always 0: errors are raised, and then nothing was published.
    errors: int
    #: In UTC, as ISO 8601.
    start_time: str
    end_time: str


class Repartitioner:
    """Writes the rows of a dataset to a new dataset with other partition columns.

    The new dataset is published atomically. Partition columns are also stored in the files. Without a
    `transform_fn` the schema is kept exactly.

    Args:
        source_dir: The directory of the existing dataset.
        target_dir: The directory of the new dataset; neither may be inside of the other.
        new_partition_cols: The new partition columns.
        compression: The codec of the new files.
        batch_size: The maximum number of rows per call of a `transform_fn`.
        engine: The engine; by default Spark.
        filesystem: An fsspec filesystem for both, if the paths do not determine it.
        storage_options: Where the files are, or plain options for the filesystem.
        overwrite: Whether existing data files of the target may be replaced.
        progress: True to show it, False, or a callback that gets a `Progress`; by default a bar on a terminal,
            if `rich` is installed.

    Example:
        >>> import pyarrow as pa
        >>> from parketto import Dataset, Repartitioner
        >>> rows = pa.table({"product": ["BTC", "ETH", "BTC"], "day": [1, 1, 2], "price": [1.0, 2.0, 3.0]})
        >>> _ = Dataset("memory://by-day-example", engine="pyarrow").write(rows, partition_by="day")
        >>> mover = Repartitioner(
        ...     "memory://by-day-example", "memory://by-product-example", ["product"], engine="pyarrow"
        ... )
        >>> mover.estimate_size()["num_partitions"]
        2
        >>> stats = mover.repartition()
        >>> stats["records_written"], stats["partitions_created"], stats["errors"]
        (3, 2, 0)
    """

    def __init__(
        self,
        source_dir: str | os.PathLike[str],
        target_dir: str | os.PathLike[str],
        new_partition_cols: Sequence[str],
        compression: str = "zstd",
        batch_size: int = 1_000_000,
        *,
        engine: str | Engine | None = None,
        filesystem: AbstractFileSystem | None = None,
        storage_options: GivenOptions = None,
        overwrite: bool = False,
        progress: ProgressOption = None,
    ) -> None:
        given = [new_partition_cols] if isinstance(new_partition_cols, str) else new_partition_cols
        self._columns = check_names("new_partition_cols", given)
        self._codec = check_codec(compression) or "none"
        check_positive_integer("batch_size", batch_size)
        self._batch_size, self._overwrite, self._progress = batch_size, overwrite, progress
        self._source = Dataset(source_dir, engine, filesystem=filesystem, storage_options=storage_options)
        self._target = Dataset(
            target_dir, self._source.engine, filesystem=filesystem, storage_options=storage_options
        )
        check_apart(self._source._context, self._target._context)

    def estimate_size(self, transform_fn: TransformFunction | None = None) -> SizeEstimate:
        """Count rows and partitions. Only partition columns are read, and of many files only the footer.

        Args:
            transform_fn: The function that creates the partition columns, if they do not exist yet; then all rows
                are read.

        Raises:
            ValueError: A partition column does not exist (the message lists those that do).
            FileNotFoundError: There is no dataset.
        """
        files, counts = count_partitions(self._source._context, self._migration(transform_fn))
        total = sum(counts.values())
        return SizeEstimate(
            total_rows=total,
            num_partitions=len(counts),
            avg_rows_per_partition=total / len(counts) if counts else 0.0,
            estimated_size_mb=files.size_bytes / MEGABYTE,
            partition_cols=list(self._columns),
        )

    def repartition(
        self,
        delete_source: bool = False,
        validate: bool = True,
        dry_run: bool = False,
        transform_fn: TransformFunction | None = None,
    ) -> RepartitionStats:
        """Write the new dataset.

        Args:
            delete_source: Delete the data files of the source after the target is published and verified; other
                files are kept. If this is interrupted in between, both datasets are complete.
            validate: Do not publish if the row count differs from that of the source.
            dry_run: Only count: nothing is written or removed.
            transform_fn: A function from a Polars DataFrame of at most `batch_size` rows to another one. It may
                add, change and drop columns, including partition columns; with `validate=False` also rows. It is
                first called without rows, to determine the schema, and runs in the engine's tasks. If it is
                annotated with Spark's DataFrame, it gets the whole dataset as a Spark DataFrame, in Spark's types
                (nanoseconds are truncated).

        Raises:
            ValueError: A partition column does not exist; the target already contains data; a function failed
                (`TransformFailed`) or does not return the same columns for every batch.
            FileNotFoundError: There is no dataset.
            CommitFailed: The row count differs (see `validate`). Nothing was published.
            CommitConflict: Another writer changed the files; nothing was published, or, if the message says so,
                the source was not deleted.

        Example:
            >>> import datetime as dt, polars as pl, pyarrow as pa
            >>> from parketto import Dataset, Repartitioner
            >>> hours = [dt.datetime(2025, 11, 26, hour) for hour in (9, 9, 10)]
            >>> ticks = Dataset("memory://ticks-by-nothing-example", engine="pyarrow")
            >>> _ = ticks.write(pa.table({"timestamp": hours, "price": [1.0, 2.0, 3.0]}))
            >>> def add_hour(frame: pl.DataFrame) -> pl.DataFrame:
            ...     return frame.with_columns(pl.col("timestamp").dt.hour().alias("hour"))
            >>> mover = Repartitioner(
            ...     "memory://ticks-by-nothing-example", "memory://by-hour-example", ["hour"], engine="pyarrow"
            ... )
            >>> mover.repartition(transform_fn=add_hour)["partitions_created"]
            2
        """
        start = dt.datetime.now(dt.UTC)
        source, target = self._source._context, self._target._context
        wanted = self._migration(transform_fn, validate=validate, delete_source=delete_source)
        progress = bar_on_terminal(self._progress)
        with running(target, "repartition", progress, dry_run=dry_run) as run:
            report = (
                plan_migration(source, target, wanted)
                if dry_run
                else migrate(source, target, wanted, run.progress)
            )
            stats = RepartitionStats(
                files_read=report.files_read,
                files_written=report.files_written,
                records_read=report.rows_read,
                records_written=report.rows_written,
                partitions_created=report.partitions,
                errors=0,
                start_time=start.isoformat(),
                end_time=dt.datetime.now(dt.UTC).isoformat(),
            )
            return run.done(stats)

    def _migration(
        self, function: TransformFunction | None, *, validate: bool = True, delete_source: bool = False
    ) -> Migration:
        if function is not None and not callable(function):
            raise InvalidArgument(f"transform_fn must be a function, not {type(function).__name__}")

        def prepare(rows: FileRows) -> RowSource:
            assert function is not None, "only used with a function"
            if wants_spark_frame(function):
                return self._source.engine.transformed(rows, self._source._context.root, function)
            return transformed_rows(rows, function, self._batch_size)

        return Migration(
            self._columns,
            self._codec,
            Thresholds.of(None, None),
            None if function is None else prepare,
            validate=validate,
            overwrite=self._overwrite,
            delete_source=delete_source,
        )

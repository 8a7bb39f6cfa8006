"""Repartitioner: the rows of a dataset in a new place, under other partition columns."""

from __future__ import annotations

import datetime as dt
import logging
import os
from collections.abc import Sequence
from typing import TypedDict

from fsspec import AbstractFileSystem

from parketto.dataset import Dataset
from parketto.engines.base import Engine, ProgressCallback
from parketto.errors import InvalidArgument
from parketto.etl.progress import shown
from parketto.etl.transform import TransformFunction, transformed_rows, wants_spark_frame
from parketto.kernels.rows import FileRows, RowSource
from parketto.operations.migrate import Migration, check_apart, count_partitions, migrate, plan_migration
from parketto.plan.limits import MEGABYTE, Thresholds, check_codec, check_names, check_positive_whole
from parketto.storage.options import GivenOptions

logger = logging.getLogger(__name__)


class SizeEstimate(TypedDict):
    """What a new dataset will be like: rows and partitions are counted, sizes are those of today's files."""

    total_rows: int
    num_partitions: int
    avg_rows_per_partition: float
    estimated_size_mb: float
    partition_cols: list[str]


class RepartitionStats(TypedDict):
    """What a repartitioning did, or, in a dry run, would do."""

    files_read: int
    #: In a dry run: how many files there would be if data compresses as it does now.
    files_written: int
    records_read: int
    records_written: int
    partitions_created: int
    #: Always 0: what goes wrong is raised, and then nothing was published.
    errors: int
    start_time: dt.datetime
    end_time: dt.datetime


class Repartitioner:
    """Writes the rows of one dataset as another one that is partitioned differently.

    The new dataset appears in one step, or not at all. Partition columns stay in the files as well. Without a
    function the schema is kept to the letter.

    Args:
        source_dir: The directory of the dataset that there is.
        target_dir: Where the new one goes; neither may be inside of the other.
        new_partition_cols: The columns that make the new folders.
        compression: The codec of the new files.
        batch_size: The most rows that a `transform_fn` gets at once.
        engine: What does the work; by default Spark.
        filesystem: An fsspec filesystem for both, if the paths alone do not say which.
        storage_options: Where the files are, or plain options for the filesystem.
        overwrite: Whether data files that are in the target already may be replaced.
        progress: Called with a `Progress` as work gets done; by default a bar, on a terminal with `rich`.

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
        progress: ProgressCallback | None = None,
    ) -> None:
        given = [new_partition_cols] if isinstance(new_partition_cols, str) else new_partition_cols
        self._columns = check_names("new_partition_cols", given)
        self._codec = check_codec(compression) or "none"
        check_positive_whole("batch_size", batch_size)
        self._batch_size, self._overwrite, self._progress = batch_size, overwrite, progress
        self._source = Dataset(source_dir, engine, filesystem, storage_options)
        self._target = Dataset(target_dir, self._source.engine, filesystem, storage_options)
        check_apart(self._source._place, self._target._place)

    def estimate_size(self, transform_fn: TransformFunction | None = None) -> SizeEstimate:
        """Count rows and partitions; only the partition columns are read, and of many files only the footer.

        Args:
            transform_fn: The function that will make the partition columns, if they are not there yet; then all
                rows are read.

        Raises:
            ValueError: A partition column is not there (the message lists those that are).
            FileNotFoundError: There is no dataset.
        """
        files, counts = count_partitions(self._source._place, self._migration(transform_fn))
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
            delete_source: Remove the data files of the source once the target is published and verified; other
                files stay. If it is interrupted in between, both datasets are complete.
            validate: Refuse to publish if there are not as many rows as before.
            dry_run: Only count: nothing is written or removed.
            transform_fn: A function that gets a Polars DataFrame of at most `batch_size` rows and returns another
                one. It may add, change and drop columns, also those of the partitions; with `validate=False` rows
                as well. It is first called without rows, to see what it returns, and runs inside of the engine's
                tasks. If it is annotated with Spark's DataFrame it gets the whole dataset as one of these, in the
                types that Spark has (nanoseconds are cut).

        Raises:
            ValueError: A partition column is not there; the target has data already; a function failed
                (`TransformFailed`) or does not return the same columns for every batch.
            FileNotFoundError: There is no dataset.
            CommitFailed: The row count differs (see `validate`). Nothing was published.
            CommitConflict: Somebody else changed the files meanwhile; nothing was published, or, if the message
                says so, the source was not removed.

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
        source, target = self._source._place, self._target._place
        wanted = self._migration(transform_fn, validate=validate, delete_source=delete_source)
        logger.info("repartitioning %s into %s by %s", source.root, target.root, ", ".join(self._columns))
        if dry_run:
            report = plan_migration(source, target, wanted)
        else:
            with shown(self._progress, f"repartitioning by {', '.join(self._columns)}") as progress:
                report = migrate(source, target, wanted, progress)
        logger.info(
            "%s %d files with %d rows in %d partitions",
            "would write" if dry_run else "wrote",
            report.files_written,
            report.rows_written,
            report.partitions,
        )
        return RepartitionStats(
            files_read=report.files_read,
            files_written=report.files_written,
            records_read=report.rows_read,
            records_written=report.rows_written,
            partitions_created=report.partitions,
            errors=0,
            start_time=start,
            end_time=dt.datetime.now(dt.UTC),
        )

    def _migration(
        self, function: TransformFunction | None, *, validate: bool = True, delete_source: bool = False
    ) -> Migration:
        if function is not None and not callable(function):
            raise InvalidArgument(f"transform_fn must be a function, not {type(function).__name__}")

        def prepare(rows: FileRows) -> RowSource:
            assert function is not None, "without a function there is nothing to prepare"
            if wants_spark_frame(function):
                return self._source.engine.transformed(rows, self._source._place.root, function)
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

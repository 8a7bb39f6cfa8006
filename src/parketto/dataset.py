"""Dataset: the front door. Every operation once, whatever engine carries it out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from fsspec import AbstractFileSystem

from parketto.commit.recovery import Recovery, recover
from parketto.commit.workspace import Workspace
from parketto.engines.base import Engine, ProgressCallback
from parketto.engines.registry import get_engine
from parketto.errors import InvalidArgument, quoted
from parketto.kernels.rows import RowSource
from parketto.kernels.write import Output
from parketto.kernels.writer import FileFormat
from parketto.operations.edit import EditRequest, edit
from parketto.operations.maintain import maintain
from parketto.operations.merge import merge
from parketto.operations.place import Place
from parketto.operations.repartition import repartition
from parketto.operations.sources import given_rows
from parketto.operations.write import write
from parketto.plan.limits import Thresholds, check_codec, check_max_rows, check_order_columns
from parketto.plan.merge import MergeRules, MergeStats, Strategy
from parketto.plan.naming import Naming, NamingScheme
from parketto.plan.rewrite import (
    RewritePlan,
    check_orderable_files,
    check_partition_columns,
    plan_compaction,
    plan_optimization,
)
from parketto.stats import EditStats, MaintenanceStats, WriteStats
from parketto.storage.footers import FileInfo
from parketto.storage.hive import PartitionFilter
from parketto.storage.opening import open_store
from parketto.storage.options import GivenOptions
from parketto.storage.snapshot import while_files_vanish

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import Column, SparkSession

WRITE_MODES = ("append", "overwrite")
PUBLISH_MODES = ("auto", "rename")


class Dataset:
    """A directory of Parquet files.

    Every operation is planned before it runs, atomic, and safe against a kill at any instant: the next
    operation, or `recover()`, brings the dataset to exactly the state before or after.

    Args:
        path: The directory, local or a URL such as `s3://bucket/events`.
        engine: What carries the operations out: `"spark"` (the default, unless the environment variable
            PARKETTO_ENGINE names another), `"duckdb"`, `"pyarrow"`, or an engine that you have made yourself.
        filesystem: An fsspec filesystem, if the path alone does not say which.
        storage_options: Where the files are (`AwsStorageOptions`, `StorageOptions`, …), or plain options for the
            filesystem that the path names.
        journal: A folder to keep the journal and staged files in, on the same filesystem; by default beside
            the dataset, in `.<name>.parketto`, and only while an operation runs. All who work on a dataset must
            name the same folder: there they find each other.
        publish: `"auto"` swaps a directory for its successor where the filesystem can, so that readers see the old
            files or the new ones. `"rename"` moves single files in and out: choose it if somebody else holds on
            to the directory itself (a bind mount of just this folder, an NFS client, a watcher), or writes into
            it under another name first: their rename can fail, loudly, in the instant of a swap.
        spark: The Spark session to work on; by default the active one, or one that is started when needed.
        memory_mb: About how much memory may be used for data: on Spark by each task, else in all. DuckDB spills
            what does not fit.
        threads: With DuckDB and PyArrow, how many threads there are: files or groups of files worked on at once.

    Example:
        >>> import pyarrow as pa
        >>> events = Dataset("memory://events-example", engine="pyarrow")
        >>> for day in range(3):
        ...     _ = events.write(pa.table({"day": [day], "hits": [day * 10]}))
        >>> stats = events.compact(target_mb_per_file=64)
        >>> stats["before_file_count"], stats["after_file_count"]
        (3, 1)
        >>> sorted(events.read(columns=["hits"]).column("hits").to_pylist())
        [0, 10, 20]
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        engine: str | Engine | None = None,
        filesystem: AbstractFileSystem | None = None,
        storage_options: GivenOptions = None,
        *,
        journal: str | os.PathLike[str] | None = None,
        publish: Literal["auto", "rename"] = "auto",
        spark: SparkSession | None = None,
        memory_mb: int | None = None,
        threads: int | None = None,
    ) -> None:
        self._store, self.path = open_store(path, filesystem, storage_options)
        if publish not in PUBLISH_MODES:
            raise InvalidArgument(f"unknown publish {publish!r}; valid choices: {quoted(PUBLISH_MODES)}")
        self._storage_options = storage_options
        options = {"spark": spark, "memory_mb": memory_mb, "threads": threads}
        self.engine = get_engine(engine, **{name: value for name, value in options.items() if value is not None})
        workspace = Workspace(self._store, self.path, None if journal is None else os.fspath(journal))
        self._place = Place(self._store, self.path, workspace, self.engine, swap=publish == "auto")

    def __repr__(self) -> str:
        return f"Dataset({self.path!r}, engine={self.engine.name!r})"

    def files(self, partition_filter: PartitionFilter = None) -> list[FileInfo]:
        """The data files, with what their footers say, in the order of their paths."""
        return list(self._place.snapshot(partition_filter, stats_columns=None).files)

    def read(self, columns: Sequence[str] | None = None, partition_filter: PartitionFilter = None) -> pa.Table:
        """The rows as one PyArrow table, files in the order of their paths.

        Args:
            columns: Which columns to read; by default all that are in the files.
            partition_filter: Which partitions to read.
        """
        from parketto.kernels.reader import read_table

        return while_files_vanish(
            self.path, lambda: read_table(self._store, self._place.snapshot(partition_filter).files, columns)
        )

    def recover(self) -> Recovery:
        """Finish or undo an interrupted operation and remove what it staged; say what was done.

        Every operation does this first. Calling it again does nothing.

        Example:
            >>> str(Dataset("memory://events-example", engine="pyarrow").recover())
            'nothing to recover'
        """
        return recover(self._place.workspace)

    def write(
        self,
        rows: Any,
        mode: Literal["append", "overwrite"] = "append",
        *,
        max_rows_per_file: int | None = None,
        compression: str = "snappy",
        partition_by: str | Sequence[str] | None = None,
        naming: NamingScheme | None = None,
        basename_template: str | None = None,
        progress: ProgressCallback | None = None,
    ) -> WriteStats:
        """Add rows as new files, or replace all rows by them.

        All files appear together or not at all. Overwriting replaces Parquet files only and leaves everything
        else in the directory alone; files that others add meanwhile survive it.

        Args:
            rows: A PyArrow table, record batch or record batch reader; a reader is streamed.
            mode: `"append"` or `"overwrite"`.
            max_rows_per_file: Start a new file after that many rows.
            compression: snappy, gzip, lz4, zstd, brotli or none.
            partition_by: Columns whose values make the folders (`day=1/…`); they also stay in the files. Rows that
                are added to a dataset with partitions go to theirs, in the form that it has.
            naming: `"uuid"` (the default), `"timestamp"` or `"sequential"`.
            basename_template: Such as `"data_{}.parquet"`; without a `naming` its files are numbered, from 000 or
                after the highest number that there is.
            progress: Called with a `Progress` whenever a piece of the work is done.

        Example:
            >>> ticks = Dataset("memory://ticks-example", engine="pyarrow")
            >>> rows = pa.table({"day": [1, 2, 1], "price": [1.0, 2.0, 3.0]})
            >>> _ = ticks.write(rows, partition_by="day", basename_template="data_{}.parquet")
            >>> [file.path for file in ticks.files()]
            ['/ticks-example/day=1/data_000.parquet', '/ticks-example/day=2/data_000.parquet']
        """
        if mode not in WRITE_MODES:
            raise InvalidArgument(f"unknown mode {mode!r}; valid modes: {quoted(WRITE_MODES)}")
        max_rows = check_max_rows(max_rows_per_file)
        codec = check_codec(compression)
        names = Naming.of(naming, basename_template)
        source = self._rows(rows)
        partitions = check_partition_columns(partition_by, source.schema)
        output = Output(self.path, FileFormat(source.schema, codec or "none"), source.schema, partitions, max_rows)
        return write(self._place, source, output, mode, names, progress)

    def compact(
        self,
        target_mb_per_file: float | None = None,
        target_rows_per_file: int | None = None,
        partition_filter: PartitionFilter = None,
        compression: str | None = None,
        dry_run: bool = False,
        *,
        progress: ProgressCallback | None = None,
    ) -> MaintenanceStats:
        """Put small files together, and split files that have too many rows.

        Doing it again with the same thresholds does nothing.

        Args:
            target_mb_per_file: How large files should be; 128 if neither threshold is given. Files between
                75 % and 180 % of it are left alone.
            target_rows_per_file: How many rows a rewritten file may have at most.
            partition_filter: Which partitions to work on; the others are not looked at.
            compression: The codec of rewritten files; by default each group keeps the one it has.
            dry_run: Only plan: nothing is written or removed.
            progress: Called with a `Progress` whenever a group of files is done.

        Raises:
            ValueError: An argument makes no sense; raised before anything is read.
            FileNotFoundError: There is no dataset, or the filter excludes all of its files.
            CommitConflict: Somebody else changed the files meanwhile; nothing of this was published.
        """
        thresholds = Thresholds.of(target_mb_per_file, target_rows_per_file)
        codec = check_codec(compression)
        return maintain(
            self._place,
            lambda files: plan_compaction(files, thresholds, codec),
            "compact",
            partition_filter,
            dry_run=dry_run,
            progress=progress,
            # Sizes come out differently than planned; what can still be put together then, is.
            until_settled=True,
        )

    def optimize(
        self,
        zorder_columns: Sequence[str],
        target_mb_per_file: float | None = None,
        target_rows_per_file: int | None = None,
        partition_filter: PartitionFilter = None,
        compression: str | None = None,
        dry_run: bool = False,
        *,
        progress: ProgressCallback | None = None,
    ) -> MaintenanceStats:
        """Order the rows of each partition by the given columns, NULLs last, into files of the target size.

        Partitions that are in that order already, as far as their footers tell, are left alone.

        Args:
            zorder_columns: The columns that queries filter by, the most important first.
            target_mb_per_file: How large files should be; 128 if neither threshold is given.
            target_rows_per_file: How many rows a rewritten file may have at most.
            partition_filter: Which partitions to work on.
            compression: The codec of rewritten files; by default each group keeps the one it has.
            dry_run: Only plan: nothing is written or removed.
            progress: Called with a `Progress` whenever a group of files is done.

        Raises:
            ValueError: An argument makes no sense or names an unknown column; nothing was touched.
            FileNotFoundError: There is no dataset, or the filter excludes all of its files.
            CommitConflict: Somebody else changed the files meanwhile; nothing of this was published.
        """
        columns = check_order_columns(zorder_columns)
        thresholds = Thresholds.of(target_mb_per_file, target_rows_per_file)
        codec = check_codec(compression)

        def planner(files: Sequence[FileInfo]) -> RewritePlan:
            check_orderable_files(files, columns)
            return plan_optimization(files, columns, thresholds, codec)

        return maintain(
            self._place,
            planner,
            "optimize",
            partition_filter,
            dry_run=dry_run,
            progress=progress,
            stats_columns=columns,
        )

    def merge(
        self,
        source: Any,
        key_columns: str | Sequence[str],
        strategy: Strategy = "upsert",
        *,
        dedup_order_by: str | Sequence[str] | None = None,
        compression: str = "snappy",
        partition_by: str | Sequence[str] | None = None,
        progress: ProgressCallback | None = None,
    ) -> MergeStats:
        """Bring the rows of a source into the dataset by their keys. Only files with a matching key are rewritten.

        Afterwards every source key that was in the dataset stands exactly once, with the source's values (NULLs
        included); further rows with that key are removed and counted as deleted. A key whose partition changed
        moves there. `total == previous + inserted - deleted`.

        Args:
            source: A PyArrow table or reader, a pandas or Polars frame, a path, or a Spark DataFrame.
            key_columns: The columns that identify a row.
            strategy: `"upsert"` updates and inserts; `"insert"` only adds new keys; `"update"` only changes known
                ones; `"full_merge"` makes the dataset equal to the source (other rows are deleted);
                `"deduplicate"` is an upsert whose source may have a key several times: the last row counts.
            dedup_order_by: For `"deduplicate"`: the row with the highest values of these columns counts instead.
            compression: The codec of all files that are written.
            partition_by: For a dataset that does not exist yet: the columns that make its folders.
            progress: Called with a `Progress` whenever a piece of the work is done.

        Raises:
            ValueError: An argument, a missing or additional column, NULL or duplicate keys; nothing was changed.
            TypeError: A column has another type than in the dataset; nothing was changed.
            CommitConflict: Somebody else changed the files meanwhile; nothing of this was published.

        Example:
            >>> users = Dataset("memory://users-example", engine="pyarrow")
            >>> _ = users.write(pa.table({"id": [1, 2], "name": ["Ada", "Bob"]}))
            >>> users.merge(pa.table({"id": [2, 3], "name": ["Ben", "Cy"]}), key_columns=["id"])
            {'inserted': 1, 'updated': 1, 'deleted': 0, 'total': 3}
            >>> users.merge(pa.table({"id": [3], "name": ["Cyd"]}), ["id"], strategy="full_merge")
            {'inserted': 0, 'updated': 1, 'deleted': 2, 'total': 1}
        """
        rules = MergeRules.of(strategy, key_columns, dedup_order_by)
        codec = check_codec(compression) or "none"
        rows = self._rows(source)
        partitions = check_partition_columns(partition_by, rows.schema)
        return merge(self._place, rows, rules, codec, partitions, progress)

    def delete(
        self,
        where: str | pc.Expression | pl.Expr | Column,
        partition_filter: PartitionFilter = None,
        compression: str | None = None,
        dry_run: bool = False,
        *,
        progress: ProgressCallback | None = None,
    ) -> EditStats:
        """Remove the rows for which a condition is true. Files without such a row are not touched.

        Args:
            where: A condition: SQL (`"price > 100 AND side = 'ask'"`), a PyArrow expression, a Polars expression
                (`pl.col("price") > 100`) or a Spark Column (`F.col("price") > 100`). A row for which it is NULL
                stays.
            partition_filter: Which partitions to work on; the others are not looked at.
            compression: The codec of rewritten files; by default each keeps its own.
            dry_run: Only count: nothing is written or removed.
            progress: Called with a `Progress` whenever a file is done.

        Raises:
            ValueError: The condition makes no sense, or names an unknown column; nothing was touched.
            FileNotFoundError: There is no dataset, or the filter excludes all of its files.
            CommitConflict: Somebody else changed the files meanwhile; nothing of this was published.

        Example:
            >>> prices = Dataset("memory://delete-example", engine="pyarrow")
            >>> _ = prices.write(pa.table({"price": [1.0, 250.0, None]}))
            >>> prices.delete("price > 100")["rows_matched"]
            1
            >>> prices.read().column("price").to_pylist()
            [1.0, None]
            >>> import polars as pl
            >>> prices.delete(pl.col("price").is_null())["rows_matched"]
            1
        """
        request = EditRequest("delete", where, None, check_codec(compression))
        return edit(self._place, request, partition_filter, dry_run=dry_run, progress=progress)

    def update(
        self,
        where: str | pc.Expression | pl.Expr | Column,
        values: Mapping[str, Any],
        partition_filter: PartitionFilter = None,
        compression: str | None = None,
        dry_run: bool = False,
        *,
        progress: ProgressCallback | None = None,
    ) -> EditStats:
        """Change the rows for which a condition is true. Files without such a row are not touched.

        Args:
            where: A condition: SQL, a PyArrow expression, a Polars expression or a Spark Column. A row for which
                it is NULL is not changed.
            values: New values by column: plain values, `parketto.sql("price * 2")`, or expressions of PyArrow,
                Polars or Spark, mixed as you like. All of them see the row as it was. A row whose partition column
                changes moves to its new partition.
            partition_filter: Which partitions to work on; the others are not looked at.
            compression: The codec of rewritten files; by default each keeps its own.
            dry_run: Only count: nothing is written or removed.
            progress: Called with a `Progress` whenever a file is done.

        Raises:
            ValueError: Something makes no sense, names an unknown column or does not fit its type.
            FileNotFoundError: There is no dataset, or the filter excludes all of its files.
            CommitConflict: Somebody else changed the files meanwhile; nothing of this was published.

        Example:
            >>> from parketto import sql
            >>> quotes = Dataset("memory://update-example", engine="pyarrow")
            >>> _ = quotes.write(pa.table({"bid": [1.0, 3.0], "ask": [2.0, 2.5]}))
            >>> quotes.update("bid > ask", {"bid": sql("ask"), "ask": sql("bid")})["rows_matched"]
            1
            >>> quotes.read().to_pylist()
            [{'bid': 1.0, 'ask': 2.0}, {'bid': 2.5, 'ask': 3.0}]
        """
        request = EditRequest("update", where, values, check_codec(compression))
        return edit(self._place, request, partition_filter, dry_run=dry_run, progress=progress)

    def repartition(
        self,
        partition_by: str | Sequence[str] | None,
        target_mb_per_file: float | None = None,
        compression: str | None = None,
        *,
        progress: ProgressCallback | None = None,
    ) -> WriteStats:
        """Lay the dataset out by other partition columns, in place and in one step.

        Rows, types and metadata stay. Partition columns stand in the files as well, so that each can be queried
        alone; columns that stood only in the old paths are kept in the files from now on.

        Args:
            partition_by: The columns that make the folders; None takes all folders away.
            target_mb_per_file: About how large files should become at most; 128 by default.
            compression: The codec of the new files; by default the one that most of the data has.
            progress: Called with a `Progress` whenever a piece of the work is done.

        Example:
            >>> trades = Dataset("memory://repartition-example", engine="pyarrow")
            >>> _ = trades.write(pa.table({"day": [1, 1, 2], "side": ["ask", "bid", "ask"], "n": [1, 2, 3]}))
            >>> trades.repartition(["side"])["files_written"]
            2
            >>> sorted(file.partition for file in trades.files())
            [(('side', 'ask'),), (('side', 'bid'),)]
        """
        thresholds = Thresholds.of(target_mb_per_file, None)
        return repartition(self._place, partition_by, thresholds, check_codec(compression), progress)

    def _rows(self, rows: Any) -> RowSource:
        return given_rows(rows, self.engine, self._store.fs, self._storage_options)

"""Dataset: the front door. Every operation once, whatever engine carries it out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from parketto.dataset.editing import EditableDataset
from parketto.engines.base import ProgressCallback
from parketto.errors import InvalidArgument, quoted
from parketto.kernels.write import Output
from parketto.kernels.writer import FileFormat
from parketto.operations.maintain import MaintenanceReport, maintain
from parketto.operations.repartition import repartition
from parketto.operations.suggest import Advice, suggest
from parketto.operations.write import write
from parketto.plan.clustering import DEFAULT_CURVE, Curve, check_clustering, plan_clustering
from parketto.plan.copying import Rewrite, check_rewrite
from parketto.plan.limits import CompactionScope, Thresholds, check_codec, check_max_rows, check_positive_whole
from parketto.plan.naming import Naming, NamingScheme
from parketto.plan.rewrite import (
    RewritePlan,
    check_orderable_files,
    check_partition_columns,
    plan_compaction,
)
from parketto.stats import MaintenanceStats, WriteStats
from parketto.storage.footers import FileInfo
from parketto.storage.hive import PartitionFilter

WRITE_MODES = ("append", "overwrite")


class Dataset(EditableDataset):
    """A directory of Parquet files.

    Every operation is planned before it runs, atomic, and safe against a kill at any instant: the next
    operation, or `recover()`, brings the dataset to exactly the state before or after.

    Args:
        path: The directory, local or a URL such as `s3://bucket/events`.
        engine: What carries the operations out: `"spark"` (the default, unless the environment variable
            PARKETTO_ENGINE names another), `"duckdb"`, `"pyarrow"`, or an engine that you have made yourself.
        filesystem: An fsspec filesystem, if the path alone does not say which. Its cache of listings is switched
            off, because that would hide what other processes do.
        storage_options: Where the files are (`AwsStorageOptions`, `StorageOptions`, …), or plain options for the
            filesystem that the path names.
        journal: A folder to keep the log and staged files in, on the same filesystem; by default beside
            the dataset, in `.<name>.parketto`. All who work on a dataset must name the same folder: there they
            find each other.
        publish: `"auto"` swaps the lowest directory that holds all changes, where the filesystem can, so that
            readers see the old files or the new ones; that takes about 30 µs per file in it. `"rename"` moves
            single files in and out: choose it if somebody else holds on to the directory itself (a bind mount of
            just this folder, an NFS client, a watcher), or writes into it under another name first: their rename
            can fail, loudly, in the instant of a swap.
        spark: The Spark session to work on; by default the active one, or one that is started when needed.
        memory_mb: About how much memory may be used for data: on Spark by each task, else in all. DuckDB spills
            what does not fit.
        threads: With DuckDB and PyArrow, how many threads there are: files or groups of files worked on at once.
        timezone: The time zone in which SQL conditions and new values read times that do not say theirs, and
            `CURRENT_DATE`: an IANA name such as `"America/New_York"`, or an offset such as `"+05:30"`. By default
            the Spark session's (`spark.sql.session.timeZone`) on Spark, so that conditions mean what they mean to
            Spark; UTC on the other engines. What is given here goes before the session's.
        isolation: When deletes, updates and merges conflict with what others do at the same time.
            `"serializable"`: when a file that was read for the decision has changed, or a file has appeared that
            the condition or the keys could concern, judged by its path, its bounds and its keys. `"snapshot"`:
            only when a file that is to be replaced has changed.
        retries: How often an operation is planned anew after a conflict, if its source can be read again. The last
            attempt keeps others from committing while it works.
        history: `"on"` keeps a record of each commit in `.<name>.parketto/log`, for `history()` and `commit_id`.
            `"off"` keeps records only while they are needed, and of pieces of work that have a `commit_id`; so it
            is where a partition (`day=1`) is worked on as a dataset of its own.

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
        >>> import datetime as dt
        >>> noon = dt.datetime(2026, 7, 1, 12, tzinfo=dt.UTC)
        >>> calls = Dataset("memory://calls-example", engine="pyarrow", timezone="America/New_York")
        >>> _ = calls.write(pa.table({"at": [noon]}))
        >>> calls.delete("at = '2026-07-01 08:00:00'", dry_run=True)["rows_matched"]
        1
    """

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
        commit_id: str | None = None,
        retries: int | None = None,
        progress: ProgressCallback | None = None,
    ) -> WriteStats:
        """Add rows as new files, or replace all rows by them.

        All files appear together or not at all. Overwriting replaces Parquet files only and leaves everything
        else in the directory alone; files that others add meanwhile survive it.

        Rows that are added have the columns of the dataset, in any order, and get its types: texts, dictionaries
        and timestamps may come in any width or unit. Values that do not fit into these types are refused.

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
            commit_id: What you call this piece of work, such as `"orders:17"` (an application, a colon, a number).
                If the log knows it, nothing is done and the first one's result is returned: a batch that is
                replayed does no harm. Remembered for 30 days, the last one of each application for ever.
            retries: How often a conflict is planned anew, for this operation; by default as the dataset says.
            progress: Called with a `Progress` whenever a piece of the work is done.

        Raises:
            ValueError: An argument makes no sense, or rows that are added lack columns or have others.
            TypeError: A column of rows that are added has another type than in the dataset, or values that do not
                fit into that type. Nothing was changed.

        Example:
            >>> ticks = Dataset("memory://ticks-example", engine="pyarrow")
            >>> import pyarrow as pa
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
        output = Output(
            self._place.root, FileFormat(source.schema, codec or "none"), source.schema, partitions, max_rows
        )
        place = self._placed(None, retries)
        return write(place, source, output, mode, names, progress, commit_id=commit_id)

    def compact(
        self,
        target_mb_per_file: float | None = None,
        target_rows_per_file: int | None = None,
        partition_filter: PartitionFilter = None,
        compression: str | None = None,
        dry_run: bool = False,
        *,
        min_file_count: int = 1,
        max_file_size_mb: float | None = None,
        rewrite: Rewrite = "auto",
        verify: bool = False,
        progress: ProgressCallback | None = None,
    ) -> MaintenanceStats:
        """Put small files together, and split files that have too many rows.

        Doing it again with the same thresholds does nothing.

        Args:
            target_mb_per_file: How large files should be; 128 if neither threshold is given. Files between
                75 % and 180 % of it are left alone.
            target_rows_per_file: How many rows a rewritten file may have at most.
            partition_filter: Which partitions to work on; the others are not looked at.
            compression: The codec of rewritten files; by default row groups that are copied keep theirs, and what
                is encoded gets the one that most of its group has.
            dry_run: Only plan: nothing is written or removed. `planned_rewrites` says what would be copied.
            min_file_count: Leave partitions alone that have fewer files.
            max_file_size_mb: Leave files alone that are as large or larger; they do not count above either.
            rewrite: How rows come into the new files. `"auto"` copies row groups as bytes that are worth keeping,
                and makes few good ones out of small ones that stand together. `"copy"` copies all that can be
                copied: the fastest, and the new files have the row groups that the old ones had. `"encode"`
                decodes and encodes everything, and so checks it.
            verify: Whether row groups are decoded before they are copied as bytes, and their checksums verified,
                as by `check(deep=True)`. Without it a copy carries damaged bytes along. It takes about as long as
                to read what is copied.
            progress: Called with a `Progress` whenever a group of files is done.

        Raises:
            ValueError: An argument makes no sense; raised before anything is read.
            FileNotFoundError: There is no dataset, or the filter excludes all of its files.
            UnreadableFile: A file is damaged; with `verify`, the error also names the column. Nothing was changed.
            CommitConflict: Somebody else changed the files meanwhile; nothing of this was published.
        """
        thresholds = Thresholds.of(target_mb_per_file, target_rows_per_file)
        scope = CompactionScope.of(min_file_count, max_file_size_mb)
        codec = check_codec(compression)
        way = check_rewrite(rewrite)
        return self._compact(
            thresholds, scope, codec, way, partition_filter, dry_run, None, progress, verify=verify
        ).stats

    def _compact(
        self,
        thresholds: Thresholds,
        scope: CompactionScope,
        compression: str | None,
        rewrite: Rewrite,
        partition_filter: PartitionFilter,
        dry_run: bool,
        backup: str | os.PathLike[str] | None,
        progress: ProgressCallback | None,
        *,
        verify: bool = False,
    ) -> MaintenanceReport:
        return maintain(
            self._place,
            lambda files: plan_compaction(files, thresholds, compression, scope, rewrite),
            "compact",
            partition_filter,
            dry_run=dry_run,
            progress=progress,
            # Sizes come out differently than planned; what can still be put together then, is.
            until_settled=True,
            backups=self._backups(backup),
            arguments={
                "target_bytes": thresholds.target_bytes,
                "target_rows": thresholds.target_rows,
                "compression": compression,
                "rewrite": rewrite,
            },
            verify=verify,
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
        curve: Curve = DEFAULT_CURVE,
        progress: ProgressCallback | None = None,
    ) -> MaintenanceStats:
        """Lay out the rows of each partition so that queries on any of the columns can skip most of them.

        A curve through all columns at once decides which rows share a row group and a file; inside of a row group
        rows are sorted by the columns, NULLs last. What is laid out so already is left alone; new files are
        laid out together with those that they overlap, if queries gain by it.

        Args:
            zorder_columns: The columns that queries filter by. For `"linear"` the most important first.
            target_mb_per_file: How large files should be; 128 if neither threshold is given.
            target_rows_per_file: How many rows a rewritten file may have at most.
            partition_filter: Which partitions to work on.
            compression: The codec of rewritten files; by default each group keeps the one it has.
            dry_run: Only plan: nothing is written or removed. `expected_reads` says what it is worth.
            curve: `"hilbert"` (the default) serves all columns about alike, and best; `"zorder"` is coarser;
                `"linear"` is a plain sort, which serves the first column and hardly any other. One column is
                always sorted.
            progress: Called with a `Progress` whenever a group of files is done.

        Raises:
            ValueError: An argument makes no sense or names an unknown column; nothing was touched.
            FileNotFoundError: There is no dataset, or the filter excludes all of its files.
            CommitConflict: Somebody else changed the files meanwhile; nothing of this was published.

        Example:
            >>> import pyarrow as pa
            >>> visits = Dataset("memory://visits-example", engine="pyarrow")
            >>> rows = pa.table({"user": list(range(100)) * 100, "day": [n // 100 for n in range(10_000)]})
            >>> _ = visits.write(rows)
            >>> stats = visits.optimize(["user", "day"], target_rows_per_file=625)
            >>> stats["after_file_count"], stats["curve"]
            (16, 'hilbert')
            >>> visits.optimize(["user", "day"], target_rows_per_file=625)["unchanged_because"]
            'already laid out by these columns'
        """
        clustering = check_clustering(zorder_columns, curve)
        thresholds = Thresholds.of(target_mb_per_file, target_rows_per_file)
        codec = check_codec(compression)

        def planner(files: Sequence[FileInfo]) -> RewritePlan:
            check_orderable_files(files, clustering.columns)
            return plan_clustering(files, clustering, thresholds, codec)

        return maintain(
            self._place,
            planner,
            "optimize",
            partition_filter,
            arguments={
                "columns": list(clustering.columns),
                "curve": clustering.curve,
                "target_mb_per_file": target_mb_per_file,
                "target_rows_per_file": target_rows_per_file,
                "compression": codec,
            },
            dry_run=dry_run,
            progress=progress,
            stats_columns=clustering.columns,
        ).stats

    def suggest(
        self,
        queries: Sequence[Any] | Mapping[Any, float],
        target_mb_per_file: float | None = None,
        partition_filter: PartitionFilter = None,
        *,
        max_columns: int = 4,
        progress: ProgressCallback | None = None,
    ) -> Advice:
        """Propose columns to lay the dataset out by, from what queries look for. Nothing is written.

        Layouts are tried on a sample of the rows, so that skew, correlations and columns of few distinct values
        count for what they are.

        Args:
            queries: Conditions as for `delete` (`"user = 7"`, expressions), and names of columns that are queried
                by ranges of 1 % of the rows. A mapping gives them weights, such as how often they run.
            target_mb_per_file: How large files would be, as for `optimize`.
            partition_filter: Which partitions to look at.
            max_columns: How many columns to propose at most.
            progress: Called with a `Progress` whenever a piece of the sampling is done.

        Returns:
            `suggestions`, the best first, each with `columns` and `curve` for `optimize`, the share of the row
            groups that queries would read on average (`reads`) and each for itself (`reads_by_query`);
            `reads_now`, what they read of the dataset as it is; and `distinct_values` of each column.

        Example:
            >>> import pyarrow as pa
            >>> clicks = Dataset("memory://suggest-example", engine="pyarrow")
            >>> rows = {"user": [n * 7919 % 10_007 for n in range(100_000)], "at": list(range(100_000))}
            >>> _ = clicks.write(pa.table({**rows, "kind": [n % 2 for n in range(100_000)]}))
            >>> advice = clicks.suggest(["user = 7", "at BETWEEN 500 AND 900"], target_mb_per_file=0.05)
            >>> sorted(advice["suggestions"][0]["columns"]), advice["reads_now"]
            (['at', 'user'], 1.0)
        """
        check_positive_whole("max_columns", max_columns)
        thresholds = Thresholds.of(target_mb_per_file, None)
        return suggest(self._place, queries, thresholds, max_columns, partition_filter, progress)

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
            >>> import pyarrow as pa
            >>> trades = Dataset("memory://repartition-example", engine="pyarrow")
            >>> _ = trades.write(pa.table({"day": [1, 1, 2], "side": ["ask", "bid", "ask"], "n": [1, 2, 3]}))
            >>> trades.repartition(["side"])["files_written"]
            2
            >>> sorted(file.partition for file in trades.files())
            [(('side', 'ask'),), (('side', 'bid'),)]
        """
        thresholds = Thresholds.of(target_mb_per_file, None)
        return repartition(self._place, partition_by, thresholds, check_codec(compression), progress)

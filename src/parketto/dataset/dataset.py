"""`Dataset`, the main entry point: all operations, on any engine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from parketto.arguments import CompactionScope, Thresholds, check_codec, check_positive_integer
from parketto.dataset.repartitioning import RepartitionableDataset
from parketto.errors import InvalidArgument, quoted
from parketto.operations.running import running
from parketto.planning.clustering import DEFAULT_CURVE
from parketto.progress import ProgressOption
from parketto.results import MaintenanceRun, MaintenanceStats
from parketto.storage.hive import PartitionFilter

if TYPE_CHECKING:
    from parketto.engines.base import ProgressCallback
    from parketto.operations.budget import Meter
    from parketto.operations.maintain import MaintenanceReport
    from parketto.operations.suggest import Advice
    from parketto.parquet.file_info import FileInfo
    from parketto.planning.clustering import Curve
    from parketto.planning.copy_policy import Rewrite
    from parketto.planning.policy import Policy
    from parketto.planning.rewrite import RewritePlan

#: Which files are merged: all, in the dataset's schema, or only those with equal schemas.
SchemaRule = Literal["unify", "exact"]
SCHEMA_RULES = ("unify", "exact")


def keeps_own_schemas(rule: str) -> bool:
    """Whether a schema rule leaves each file its own schema."""
    if rule not in SCHEMA_RULES:
        raise InvalidArgument(f"unknown schema {rule!r}; valid choices: {quoted(SCHEMA_RULES)}")
    return rule == "exact"


class Dataset(RepartitionableDataset):
    """A directory of Parquet files.

    Every operation is planned before it runs, and atomic. If a process is killed at any point, the next operation
    or `recover()` brings the dataset to the state before or after the operation.

    Args:
        path: The directory, local or a URL such as `s3://bucket/events`.
        engine: What executes operations: `"spark"` (the default, unless the environment variable
            PARKETTO_ENGINE is set), `"duckdb"`, `"pyarrow"`, or an engine instance.
        filesystem: An fsspec filesystem, if the path does not determine it. Its listing cache is disabled, because
            it would hide the changes of other processes.
        storage_options: Where the files are (`AwsStorageOptions`, `StorageOptions`, …), or plain options for the
            path's filesystem.
        workspace: The directory for the log and staged files, on the same filesystem; by default
            `.<name>.parketto` beside the dataset. All writers of a dataset must use the same directory: they
            coordinate through it.
        publish: `"auto"` swaps the lowest directory that contains all changes, where the filesystem supports it,
            so that readers see either the old files or the new ones; this takes about 30 µs per file in the
            directory. `"rename"` moves single files in and out. Use it if another process holds the directory
            itself open (a bind mount of this directory, an NFS client, a watcher), or writes into it under a
            temporary name: its rename can fail, with an error, during a swap.
        spark: The Spark session; by default the active one, or one that is started when needed.
        memory_mb: The approximate memory for rows: per task on Spark, in total on other engines. Libraries, and
            copies of very large values, come on top (see "Memory" under Guarantees in the documentation).
        threads: The size of the thread pool of DuckDB and PyArrow: how many files or groups of files are processed
            at once.
        timezone: The time zone of timestamps without one in SQL conditions and new values, and of `CURRENT_DATE`:
            an IANA name such as `"America/New_York"`, or an offset such as `"+05:30"`. The default on Spark is the
            session's (`spark.sql.session.timeZone`), so that conditions have Spark's meaning; on other engines it
            is UTC. A value given here overrides the session's.
        isolation: When deletes, updates and merges conflict with concurrent changes. `"serializable"`: if a file
            that was read for the decision has changed, or if the condition or the keys could match rows of an
            added file, judged by its path, bounds and keys. `"snapshot"`: only if a file to be replaced has
            changed.
        retries: How often an operation is planned again after a conflict, if its source can be read again. The
            last attempt blocks other commits while it runs.
        history: `"on"` keeps a record of each commit in `.<name>.parketto/log`, for `history()` and `commit_id`.
            `"off"` keeps records only while they are needed, and those with a `commit_id`; this also applies where
            a partition (`day=1`) is opened as a dataset.
        retention: How long replaced files are kept in `.<name>.parketto/kept`, in seconds or as a `timedelta`, so
            that a `read` or `scan` that began before can finish. The default is 15 minutes for `compact`,
            `optimize`, `repartition` and `unify_schema`, and 24 hours for other operations. They need disk space
            for that time, and until the next commit or `recover()` removes them. 0 keeps nothing; neither does
            `history="off"`.

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

    def compact(
        self,
        target_mb_per_file: float | None = None,
        target_rows_per_file: int | None = None,
        *,
        partition_filter: PartitionFilter = None,
        compression: str | None = None,
        dry_run: bool = False,
        min_file_count: int = 1,
        max_file_size_mb: float | None = None,
        rewrite: Rewrite = "auto",
        verify: bool = False,
        schema: SchemaRule = "unify",
        backup: str | os.PathLike[str] | None = None,
        progress: ProgressOption = None,
    ) -> MaintenanceStats:
        """Merge small files, and split files with too many rows.

        Idempotent: a second run with the same thresholds does nothing.

        Args:
            target_mb_per_file: The target file size; 128 if neither threshold is given. Files between 75 % and
                180 % of it are skipped.
            target_rows_per_file: The maximum number of rows of a rewritten file.
            partition_filter: The partitions to compact; the others are not read.
            compression: The codec of rewritten files; by default copied row groups keep theirs, and encoded ones
                get the most common codec of their group.
            dry_run: Only plan: nothing is written or removed. `planned_rewrites` lists what would be copied.
            min_file_count: Skip partitions with fewer files.
            max_file_size_mb: Skip files of this size or larger; they do not count for `min_file_count` either.
            rewrite: How rows are written to the new files. `"auto"` copies large row groups as bytes and merges
                adjacent small ones. `"copy"` copies every row group that can be copied: this is the fastest, and
                keeps the row groups of the old files. `"encode"` decodes and encodes everything, which also
                verifies it.
            verify: Decode row groups and verify their checksums before they are copied as bytes, as
                `check(deep=True)` does. Without it damaged bytes are copied unnoticed. It takes about as long as
                reading the copied data.
            schema: `"unify"` (the default) merges files that differ, in the dataset's schema; `reconciled_columns`
                lists the columns that differ. `"exact"` merges only files with equal schemas.
            backup: A directory for the replaced files, from which `restore` brings them back: a path on the same
                filesystem, or a URL.
            progress: True to show it, or a callback that gets a `Progress` after each group of files.

        Raises:
            ValueError: An argument is invalid; raised before anything is read.
            FileNotFoundError: There is no dataset, or the filter excludes all of its files.
            UnreadableFile: A file is damaged; with `verify`, the error also names the column. Nothing was changed.
            CommitConflict: Another writer changed the files; nothing was published.
        """
        from parketto.planning.copy_policy import check_rewrite

        thresholds = Thresholds.of(target_mb_per_file, target_rows_per_file)
        scope = CompactionScope.of(min_file_count, max_file_size_mb)
        codec = check_codec(compression)
        rewrite, own_schemas = check_rewrite(rewrite), keeps_own_schemas(schema)
        with running(self._context, "compact", progress, dry_run=dry_run) as run:
            report = self._compact(
                thresholds,
                scope,
                codec,
                rewrite,
                partition_filter,
                dry_run,
                backup,
                run.progress,
                verify=verify,
                own_schemas=own_schemas,
            )
            return run.done(report.stats)

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
        recompress: bool = True,
        own_schemas: bool = False,
    ) -> MaintenanceReport:
        from parketto.operations.maintain import maintain
        from parketto.planning.rewrite import plan_compaction

        return maintain(
            self._context,
            lambda files: plan_compaction(files, thresholds, compression, scope, rewrite, recompress=recompress),
            "compact",
            partition_filter,
            dry_run=dry_run,
            progress=progress,
            # Written sizes differ from planned ones, so a first pass may leave files that can still be merged.
            until_settled=True,
            backups=self._backups(backup),
            arguments={
                "target_bytes": thresholds.target_bytes,
                "target_rows": thresholds.target_rows,
                "compression": compression,
                "rewrite": rewrite,
            },
            verify=verify,
            own_schemas=own_schemas,
        )

    def optimize(
        self,
        columns: Sequence[str],
        *,
        target_mb_per_file: float | None = None,
        target_rows_per_file: int | None = None,
        partition_filter: PartitionFilter = None,
        compression: str | None = None,
        dry_run: bool = False,
        curve: Curve = DEFAULT_CURVE,
        schema: SchemaRule = "unify",
        progress: ProgressOption = None,
    ) -> MaintenanceStats:
        """Cluster the rows of each partition so that queries on any of the columns can skip most row groups.

        A space-filling curve over all columns assigns rows to row groups and files; within a row group, rows are
        sorted by the columns, NULLs last. Clustered files are skipped; new files are clustered together with those
        that they overlap, if queries benefit.

        Args:
            columns: The columns that queries filter by. For `"linear"` the most important first.
            target_mb_per_file: The target file size; 128 if neither threshold is given.
            target_rows_per_file: The maximum number of rows of a rewritten file.
            partition_filter: The partitions to cluster.
            compression: The codec of rewritten files; by default each group keeps its codec.
            dry_run: Only plan: nothing is written or removed. `expected_reads` estimates the benefit.
            curve: `"hilbert"` (the default) clusters best, and all columns about equally; `"zorder"` is coarser;
                `"linear"` is a plain sort, which helps the first column and hardly any other. A single column is
                always sorted.
            schema: As in `compact`.
            progress: True to show it, or a callback that gets a `Progress` after each group of files.

        Raises:
            ValueError: An argument is invalid or a column is unknown; nothing was changed.
            FileNotFoundError: There is no dataset, or the filter excludes all of its files.
            CommitConflict: Another writer changed the files; nothing was published.

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
        from parketto.operations.maintain import maintain
        from parketto.planning.clustering import check_clustering, plan_clustering
        from parketto.planning.rewrite import check_orderable_files

        clustering = check_clustering(columns, curve)
        thresholds = Thresholds.of(target_mb_per_file, target_rows_per_file)
        codec, own_schemas = check_codec(compression), keeps_own_schemas(schema)

        def planner(files: Sequence[FileInfo]) -> RewritePlan:
            check_orderable_files(files, clustering.columns)
            return plan_clustering(files, clustering, thresholds, codec)

        arguments = {
            "columns": list(clustering.columns),
            "curve": clustering.curve,
            "target_mb_per_file": target_mb_per_file,
            "target_rows_per_file": target_rows_per_file,
            "compression": codec,
        }
        with running(self._context, "optimize", progress, dry_run=dry_run) as run:
            report = maintain(
                self._context,
                planner,
                "optimize",
                partition_filter,
                arguments=arguments,
                dry_run=dry_run,
                progress=run.progress,
                stats_columns=clustering.columns,
                own_schemas=own_schemas,
            )
            return run.done(report.stats)

    def suggest(
        self,
        queries: Sequence[Any] | Mapping[Any, float],
        *,
        target_mb_per_file: float | None = None,
        partition_filter: PartitionFilter = None,
        max_columns: int = 4,
        progress: ProgressOption = None,
    ) -> Advice:
        """Suggest clustering columns for a set of queries. Nothing is written.

        Layouts are evaluated on a sample of the rows, so skew, correlation and low cardinality are accounted for.

        Args:
            queries: Conditions as for `delete` (`"user = 7"`, expressions), and names of columns that are queried
                by ranges of 1 % of the rows. A mapping assigns weights, such as how often each query runs.
            target_mb_per_file: The target file size, as for `optimize`.
            partition_filter: The partitions to sample.
            max_columns: The maximum number of columns to suggest.
            progress: True to show it, or a callback that gets a `Progress` as sampling proceeds.

        Returns:
            `suggestions`, the best first, each with `columns` and `curve` for `optimize`, and the share of row
            groups that queries would read on average (`reads`) and per query (`reads_by_query`); `reads_now`, the
            share that they read of the current layout; and `distinct_values` of each column.

        Example:
            >>> import pyarrow as pa
            >>> clicks = Dataset("memory://suggest-example", engine="pyarrow")
            >>> rows = {"user": [n * 7919 % 10_007 for n in range(100_000)], "at": list(range(100_000))}
            >>> _ = clicks.write(pa.table({**rows, "kind": [n % 2 for n in range(100_000)]}))
            >>> advice = clicks.suggest(["user = 7", "at BETWEEN 500 AND 900"], target_mb_per_file=0.05)
            >>> sorted(advice["suggestions"][0]["columns"]), advice["reads_now"]
            (['at', 'user'], 1.0)
        """
        from parketto.operations.suggest import suggest

        check_positive_integer("max_columns", max_columns)
        thresholds = Thresholds.of(target_mb_per_file, None)
        with running(self._context, "suggest", progress) as run:
            return run.done(
                suggest(self._context, queries, thresholds, max_columns, partition_filter, run.progress)
            )

    def maintain(
        self,
        policy: Policy | Mapping[str, Any],
        *,
        dry_run: bool = False,
        progress: ProgressOption = None,
    ) -> MaintenanceRun:
        """Do what a policy finds due: compact, cluster and unify partitions, one commit each.

        Idempotent: a second run finds nothing to do. An interrupted run keeps the commits that it made. If another
        writer is in the way of one partition, the run reports the conflict and goes on with the next. Needs the
        extra `parketto[maintenance]`. `parketto.maintenance.run` does the same for the datasets of a file.

        Args:
            policy: A `Policy`, or a mapping with its arguments: `compact`, `cluster`, `unify_schema`, `vacuum`,
                `leave_alone`, `budget`.
            dry_run: Only report what would be done: nothing is written. Sizes and counts of later steps are
                judged by the files as they are now.
            progress: True to show it, or a callback that gets a `Progress` from each operation.

        Returns:
            A `MaintenanceRun`: `actions` that were done, each with its partition, reason, files and bytes; and
            what is due but was `left`: because of the budget, `leave_alone`, a conflict or an error.

        Raises:
            ValueError: The policy is invalid; nothing was changed.
            FileNotFoundError: There is no dataset.

        Example:
            >>> import pyarrow as pa
            >>> import datetime as dt
            >>> sales = Dataset("memory://maintain-example", engine="pyarrow")
            >>> days = [dt.date(2026, 1, 1), dt.date(2999, 1, 1)]
            >>> for n in range(30):
            ...     _ = sales.write(pa.table({"day": days, "n": [n, n]}), partition_by="day")
            >>> policy = {"compact": {"small_files": 20}, "leave_alone": "day >= CURRENT_DATE"}
            >>> run = sales.maintain(policy)
            >>> [(each["partition"], each["files_before"], each["files_after"]) for each in run.actions]
            [('day=2026-01-01', 30, 1)]
            >>> run.actions[0]["reason"]
            '30 files below 96 MB, more than 20'
            >>> [(each["partition"], each["because"]) for each in run.left]
            [('day=2999-01-01', 'left alone')]
            >>> sales.maintain({"compact": {"small_files": 30}})
            <MaintenanceRun: nothing to do in 1 dataset>
        """
        from parketto.planning.policy import Policy  # here, because it needs pydantic

        return self._maintain(Policy.of(policy), None, dry_run=dry_run, progress=progress)

    def _maintain(
        self, policy: Policy, outer: Meter | None, *, dry_run: bool, progress: ProgressOption
    ) -> MaintenanceRun:
        from parketto.operations.apply_policy import apply_policy  # here, because they need pydantic
        from parketto.operations.budget import Meter

        meter = Meter(policy.budget, outer)
        with running(self._context, "maintain", progress, dry_run=dry_run) as run:
            return run.done(
                apply_policy(self._context, self.path, policy, meter, dry_run=dry_run, progress=run.progress)
            )

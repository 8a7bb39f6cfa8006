"""Dataset: the front door. Every operation once, whatever engine carries it out."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import pyarrow as pa
from fsspec import AbstractFileSystem

from parketto.commit.recovery import Recovery, list_settled, recover
from parketto.commit.transaction import Transaction
from parketto.commit.verify import verify_groups, verify_written
from parketto.commit.workspace import Workspace
from parketto.engines.base import Context, Engine, GroupResult, ProgressCallback, StagedFile, WriteRequest
from parketto.engines.registry import DEFAULT_ENGINE, get_engine
from parketto.errors import DatasetNotFound, InvalidArgument, quoted
from parketto.plan.limits import Thresholds, check_codec, check_max_rows, check_order_columns
from parketto.plan.naming import Naming, NamingScheme
from parketto.plan.rewrite import (
    RewritePlan,
    check_orderable_files,
    check_partition_columns,
    plan_compaction,
    plan_optimization,
)
from parketto.stats import MaintenanceStats, WriteStats, maintenance_stats
from parketto.storage.footers import FileInfo
from parketto.storage.hive import PartitionFilter, directory_matcher
from parketto.storage.opening import open_store
from parketto.storage.snapshot import Snapshot, discover, refuse_foreign, refuse_missing, while_files_vanish
from parketto.storage.store import FileEntry

Planner = Callable[[Sequence[FileInfo]], RewritePlan]
Rows: TypeAlias = pa.Table | pa.RecordBatch | pa.RecordBatchReader
WRITE_MODES = ("append", "overwrite")
PUBLISH_MODES = ("auto", "rename")


class Dataset:
    """A directory of Parquet files.

    Every operation is planned before it runs, atomic, and safe against a kill at any instant: the next
    operation, or `recover()`, brings the dataset to exactly the state before or after.

    Args:
        path: The directory, local or a URL such as `memory://events`.
        engine: What carries the operations out: `"pyarrow"`.
        filesystem: An fsspec filesystem, if the path alone does not say which.
        storage_options: Options for the filesystem that the path names.
        journal: A folder to keep the journal and staged files in, on the same filesystem; by default beside
            the dataset, in `.<name>.parketto`, and only while an operation runs. All who work on a dataset must
            name the same folder: there they find each other.
        publish: `"auto"` swaps a directory for its successor where the filesystem can, so that readers see the old
            files or the new ones. `"rename"` moves single files in and out: choose it if somebody else holds on
            to the directory itself (a bind mount of just this folder, an NFS client, a watcher), or writes into
            it under another name first: their rename can fail, loudly, in the instant of a swap.
        memory_mb: About how much memory an engine may use for data.
        threads: How many groups of files are rewritten at once.

    Example:
        >>> import pyarrow as pa
        >>> events = Dataset("memory://events-example")
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
        engine: str | Engine = DEFAULT_ENGINE,
        filesystem: AbstractFileSystem | None = None,
        storage_options: Mapping[str, Any] | None = None,
        *,
        journal: str | os.PathLike[str] | None = None,
        publish: Literal["auto", "rename"] = "auto",
        memory_mb: int | None = None,
        threads: int | None = None,
    ) -> None:
        self._store, self.path = open_store(path, filesystem, storage_options)
        if publish not in PUBLISH_MODES:
            raise InvalidArgument(f"unknown publish {publish!r}; valid choices: {quoted(PUBLISH_MODES)}")
        self._swap = publish == "auto"
        options = {"memory_mb": memory_mb, "threads": threads}
        self.engine = get_engine(engine, **{name: value for name, value in options.items() if value is not None})
        self._workspace = Workspace(self._store, self.path, None if journal is None else os.fspath(journal))

    def __repr__(self) -> str:
        return f"Dataset({self.path!r}, engine={self.engine.name!r})"

    def files(self, partition_filter: PartitionFilter = None) -> list[FileInfo]:
        """The data files, with what their footers say, in the order of their paths."""
        return list(self._snapshot(partition_filter, stats_columns=None).files)

    def read(self, columns: Sequence[str] | None = None, partition_filter: PartitionFilter = None) -> pa.Table:
        """The rows as one PyArrow table, files in the order of their paths.

        Args:
            columns: Which columns to read; by default all that are in the files.
            partition_filter: Which partitions to read.
        """
        from parketto.engines.pyarrow.reader import read_table

        return while_files_vanish(
            self.path, lambda: read_table(self._store, self._snapshot(partition_filter).files, columns)
        )

    def recover(self) -> Recovery:
        """Finish or undo an interrupted operation and remove what it staged; say what was done.

        Every operation does this first. Calling it again does nothing.

        Example:
            >>> str(Dataset("memory://events-example").recover())
            'nothing to recover'
        """
        return recover(self._workspace)

    def write(
        self,
        rows: Rows,
        mode: Literal["append", "overwrite"] = "append",
        *,
        max_rows_per_file: int | None = None,
        compression: str = "snappy",
        partition_by: str | Sequence[str] | None = None,
        naming: NamingScheme | None = None,
        basename_template: str | None = None,
    ) -> WriteStats:
        """Add rows as new files, or replace all rows by them.

        All files appear together or not at all. Overwriting replaces Parquet files only and leaves everything
        else in the directory alone; files that others add meanwhile survive it.

        Args:
            rows: A PyArrow table, record batch or record batch reader; a reader is streamed.
            mode: `"append"` or `"overwrite"`.
            max_rows_per_file: Start a new file after that many rows.
            compression: snappy, gzip, lz4, zstd, brotli or none.
            partition_by: Columns whose values make the folders (`day=1/…`); they also stay in the files.
            naming: `"uuid"` (the default), `"timestamp"` or `"sequential"`.
            basename_template: Such as `"data_{}.parquet"`; without a `naming` its files are numbered, from 000 or
                after the highest number that there is.

        Example:
            >>> ticks = Dataset("memory://ticks-example")
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
        source = _CountedRows(rows)
        partitions = check_partition_columns(partition_by, source.schema)
        refuse_foreign(self._store, self.path)
        with Transaction(self._workspace, mode, swap=self._swap) as transaction:
            replaced = self._existing(transaction) if mode == "overwrite" else []
            request = WriteRequest(source.schema, source.batches, self.path, codec or "none", max_rows, partitions)
            staged = self.engine.write(request, Context(self._store, transaction))
            written = verify_written(self._store, staged, source.count, source.schema.names)
            transaction.commit(staged, replaced, names)
        return WriteStats(
            rows_written=source.count,
            files_written=len(written),
            bytes_written=sum(file.size_bytes for file in written),
            files_replaced=len(replaced),
        )

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
        return self._maintain(
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

        return self._maintain(
            planner, "optimize", partition_filter, dry_run=dry_run, progress=progress, stats_columns=columns
        )

    def _maintain(
        self,
        planner: Planner,
        operation: str,
        partition_filter: PartitionFilter,
        *,
        dry_run: bool,
        progress: ProgressCallback | None,
        stats_columns: Sequence[str] = (),
        until_settled: bool = False,
    ) -> MaintenanceStats:
        """Discover → plan → execute → verify → commit → report."""
        if dry_run:
            return maintenance_stats(planner(self._snapshot(partition_filter, stats_columns).files), dry_run=True)
        directory_matcher(partition_filter)  # what makes no sense is refused before anything is made
        refuse_missing(self._store, self.path)
        with Transaction(self._workspace, operation, swap=self._swap) as transaction:
            snapshot = discover(
                self._store,
                self.path,
                lambda: transaction.list_files(partition_filter),
                stats_columns,
            )
            plan = planner(snapshot.files)
            work = _Rewriting(self, transaction, snapshot, stats_columns, progress)
            after = work.run(plan, planner if until_settled else None)
            return maintenance_stats(plan, after, dry_run=False)

    def _snapshot(self, partition_filter: PartitionFilter, stats_columns: Collection[str] | None = ()) -> Snapshot:
        return discover(
            self._store, self.path, lambda: list_settled(self._workspace, partition_filter), stats_columns
        )

    def _existing(self, transaction: Transaction) -> list[FileEntry]:
        try:
            return transaction.list_files()
        except DatasetNotFound:
            return []


class _Rewriting:
    """Carries a plan out inside a transaction, again and again while the results leave something to plan."""

    def __init__(
        self,
        dataset: Dataset,
        transaction: Transaction,
        snapshot: Snapshot,
        stats_columns: Sequence[str],
        progress: ProgressCallback | None,
    ) -> None:
        self._engine, self._store = dataset.engine, dataset._store
        self._transaction, self._snapshot, self._stats_columns = transaction, snapshot, stats_columns
        self._context = Context(self._store, transaction, progress)
        self._staged: dict[str, StagedFile] = {}

    def run(self, plan: RewritePlan, planner: Planner | None) -> list[FileInfo]:
        """Execute, verify and commit; returns the files that there are afterwards."""
        files: list[FileInfo] = list(self._snapshot.files)
        if not plan.groups:
            return files
        while plan.groups:
            results = self._execute(plan)
            new = verify_groups(self._store, results, self._stats_columns)
            files = [*plan.untouched, *new]
            for file in (file for group in plan.groups for file in group):
                if file.path in self._staged:
                    self._transaction.discard(self._staged.pop(file.path).path)
            self._staged |= {staged.path: staged for result in results for staged in result.staged}
            if planner is None:
                break
            plan = planner(files)
        remaining = {file.path for file in files}
        retired = [file.entry for file in self._snapshot.files if file.path not in remaining]
        self._transaction.commit(list(self._staged.values()), retired)
        return files

    def _execute(self, plan: RewritePlan) -> Sequence[GroupResult]:
        try:
            return self._engine.rewrite(plan, self._context)
        except Exception:
            # A file that vanished under the engine is a conflict, whatever error it showed itself as.
            self._transaction.check_unchanged(
                [file.entry for group in plan.groups for file in group if file.path not in self._staged]
            )
            raise


class _CountedRows:
    """Rows from a caller as batches, counted on their way."""

    def __init__(self, rows: Rows) -> None:
        self.count = 0
        if isinstance(rows, pa.RecordBatch):
            rows = pa.Table.from_batches([rows])
        if not isinstance(rows, pa.Table | pa.RecordBatchReader):
            raise InvalidArgument(
                f"rows must be a PyArrow Table, RecordBatch or RecordBatchReader, not {type(rows).__name__}"
            )
        self.schema: pa.Schema = rows.schema
        if not self.schema.names:
            raise InvalidArgument("rows without any column cannot be written")
        self.batches = self._counted(rows.to_batches() if isinstance(rows, pa.Table) else rows)

    def _counted(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.count += batch.num_rows
            yield batch

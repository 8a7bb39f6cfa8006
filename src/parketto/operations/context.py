"""The context of every operation: the dataset's store, workspace and engine, and how operations run."""

from __future__ import annotations

import logging
import posixpath
import random
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import pyarrow as pa

from parketto.commit.backup import Backup
from parketto.commit.footer_index import MIN_FILES, FooterIndex
from parketto.commit.identity import identity_of
from parketto.commit.lease import Lease
from parketto.commit.replays import check_same_batch, check_same_request, replayed
from parketto.commit.request import AlreadyCommitted, Request, logged_value
from parketto.commit.retention import KeptFiles, retention_seconds
from parketto.commit.settled import Listing, list_settled
from parketto.commit.transaction import Transaction
from parketto.commit.workspace import Workspace
from parketto.engines.base import Context, Engine, ProgressCallback
from parketto.errors import (
    CommitConflict,
    DatasetNotFound,
    InvalidArgument,
    LockTimeout,
    ParkettoError,
    quoted,
)
from parketto.expressions.time_zones import Clock
from parketto.parquet.bounded_columns import StatsColumns
from parketto.parquet.file_info import FileInfo
from parketto.parquet.partition_spec import path_types
from parketto.parquet.snapshot import Snapshot, read_snapshot
from parketto.runtime.staging import Staging
from parketto.storage.hive import PartitionFilter, directory_matcher
from parketto.storage.listing import (
    is_inside,
    refuse_missing,
    relative,
    retry_on_vanished_files,
    select_data_files,
)
from parketto.storage.snapshot_files import SnapshotStore
from parketto.storage.store import FileEntry, Store
from parketto.storage.walk import Enter
from parketto.tasks.footers import footer_tasks

if TYPE_CHECKING:
    from parketto.operations.index_pruning import IndexSearch
    from parketto.operations.path_pruning import RowCondition

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
Isolation = Literal["serializable", "snapshot"]
ISOLATIONS = ("serializable", "snapshot")
# Delay before the first retry; it doubles with each retry. Jitter keeps two writers from colliding again.
_RETRY_DELAY_SECONDS = 0.02


def check_isolation(isolation: str) -> Isolation:
    """Validate an isolation level."""
    if isolation not in ISOLATIONS:
        raise InvalidArgument(f"unknown isolation {isolation!r}; valid choices: {quoted(ISOLATIONS)}")
    return cast("Isolation", isolation)


def check_retries(retries: Any) -> int:
    """Validate a number of retries."""
    if not isinstance(retries, int) or isinstance(retries, bool) or retries < 0:
        raise InvalidArgument(f"retries must be a whole number of at least 0, got {retries!r}")
    return int(retries)


@dataclass(frozen=True)
class Backups:
    """A folder for backups, on any filesystem."""

    store: Store
    directory: str
    #: Whether to identify backups by URLs instead of paths.
    as_url: bool = False

    def check_outside(self, store: Store, root: str) -> None:
        """Refuse a folder inside the dataset: readers would take the copies for data."""
        if self.store.same_files(store) and is_inside(self.directory, root):
            raise InvalidArgument(f"backups in {self.directory!r} would be inside the dataset {root!r}")


@dataclass(frozen=True)
class _RetiredFiles:
    """Finds files of a dataset that a commit has retired. It can be pickled."""

    kept: KeptFiles
    root: str

    def __call__(self, path: str, fingerprint: str) -> FileEntry | None:
        return self.kept.find(relative(path, self.root), fingerprint)


@dataclass(frozen=True)
class PastState:
    """The files of a dataset after an earlier commit, as they were listed then.

    Attributes:
        number: The commit.
        files: The files.
        kept: Where those are that later commits have retired, by path and fingerprint.
    """

    number: int
    files: Sequence[FileEntry]
    kept: Mapping[tuple[str, str], FileEntry]


@dataclass(frozen=True)
class DatasetContext:
    """A dataset's location, its engine, and the settings of its operations."""

    store: Store
    root: str
    workspace: Workspace
    engine: Engine
    swap: bool = True
    #: The time zone of expressions; None means the engine's.
    timezone: str | None = None
    #: Whether concurrently added files can be a conflict, and how often to retry after a conflict.
    isolation: Isolation = "serializable"
    retries: int = 3
    #: How long retired files are kept, in seconds; None means the defaults (see `commit/retention.py`).
    retention: float | None = None
    #: The staged files of other processes, which the operation commits.
    lease: Lease | None = None
    #: The stream and the micro-batch, for the log. The numbers of a stream's commit ids only grow.
    stream: Mapping[str, Any] | None = None
    #: The state to read, if it is not the current one.
    past: PastState | None = None

    def clock(self) -> Clock:
        """The time zone and the current time for the expressions of one operation."""
        return Clock(self.engine.timezone if self.timezone is None else self.timezone)

    def snapshot(
        self,
        partition_filter: PartitionFilter = None,
        stats_columns: StatsColumns = (),
        *,
        own_schemas: bool = False,
        without: Set[str] = frozenset(),
        rows: RowCondition | None = None,
    ) -> Snapshot:
        """A snapshot of the current files, for reading.

        Args:
            partition_filter: The partitions.
            stats_columns: The columns whose bounds are kept; None keeps all.
            own_schemas: Whether each file has its own schema, instead of that of the dataset.
            without: Directories whose files are not read.
            rows: Which rows are needed: folders without any are not listed.
        """

        def listed(enter: Enter | None) -> Listing:
            found = self._listing(partition_filter, enter)
            if not without:
                return found
            kept = [entry for entry in found.files if posixpath.dirname(entry.path) not in without]
            return replace(found, files=kept)

        rows = rows if self.past is None else None
        return self._discover(listed, partition_filter, stats_columns, rows, own_schemas=own_schemas)

    def snapshot_store(self) -> Store:
        """A store that reads the files of a snapshot, also those that later commits have retired."""
        retired = _RetiredFiles(KeptFiles(self.store, self.workspace.path), self.root)
        return SnapshotStore(self.store, retired, None if self.past is None else self.past.kept)

    def _listing(self, partition_filter: PartitionFilter, enter: Enter | None = None) -> Listing:
        if self.past is None:
            return list_settled(self.workspace, partition_filter, enter=enter)
        everything = list(self.past.files)
        files = select_data_files(self.store, self.root, everything, partition_filter)
        return Listing(files, self.past.number, everything)

    def listed(self, partition_filter: PartitionFilter = None) -> list[FileEntry]:
        """The current data files; it is an error if there are none."""
        return list_settled(self.workspace, partition_filter).files

    def listed_if_any(self) -> list[FileEntry]:
        """The current data files; none if the dataset does not exist yet."""
        try:
            return self.listed()
        except DatasetNotFound:
            return []

    def run(
        self,
        request: Request,
        attempt: Callable[[Transaction], Result],
        *,
        known: Callable[[Mapping[str, Any]], Result] | None = None,
        backups: Backups | None = None,
        repeatable: bool = True,
        dry_run: bool = False,
    ) -> Result:
        """Run an operation in a transaction; after a conflict, retry it with a fresh plan.

        The last attempt keeps other writers from committing while it runs, so that no operation starves.

        Args:
            request: The operation, as the log records it.
            attempt: Discovers, plans, executes and commits.
            known: Builds the result from the statistics of an earlier commit with the same `commit_id`.
            backups: Where to keep the retired files.
            repeatable: Whether a second attempt can read the same rows again.
            dry_run: Whether `attempt` commits nothing.
        """
        if dry_run and request.commit_id is not None:
            assert known is not None, "operations that take a commit_id pass `known`"
            earlier = self.repeats(request)
            planned = self.run(replace(request, commit_id=None), attempt, repeatable=repeatable)
            return planned if earlier is None else known(replayed(planned, earlier))
        self.engine.check_store(self.store)
        retries = self.retries if repeatable else 0
        try:
            self._refuse_repeated(request)
            for number in range(retries + 1):
                try:
                    with self._transaction(request, backups, alone=0 < retries == number) as transaction:
                        return attempt(transaction)
                except LockTimeout:
                    raise
                except CommitConflict as conflict:
                    if number == retries:
                        raise
                    logger.info("retrying %s after a conflict: %s", request.operation, conflict)
                    time.sleep(random.uniform(0.5, 1.0) * _RETRY_DELAY_SECONDS * 2**number)  # noqa: S311 - no secret
        except AlreadyCommitted as done:
            entry = done.entry
            logger.info("%s %r was already committed at %s", request.operation, request.commit_id, entry["at"])
            self._check_replay(request, entry)
            assert known is not None, "operations that take a commit_id pass `known`"
            return known(replayed(entry["statistics"], entry))
        raise AssertionError("unreachable")

    def _transaction(self, request: Request, backups: Backups | None, *, alone: bool) -> Transaction:
        backup = None
        if backups is not None:
            backup = Backup(backups.store, backups.directory, request.operation, as_url=backups.as_url)
        return Transaction(self.workspace, request, swap=self.swap, backup=backup, alone=alone, lease=self.lease)

    def _refuse_repeated(self, request: Request) -> None:
        """Raise AlreadyCommitted if the log contains the commit_id."""
        entry = self._earlier(request, ordered=request.ordered)
        if entry is not None:
            raise AlreadyCommitted(entry)

    def repeats(self, request: Request) -> dict[str, Any] | None:
        """The commit that has done the work already, if the operation is a replay; for dry runs."""
        if (entry := self._earlier(request, ordered=request.ordered)) is not None:
            self._check_replay(request, entry)
        return entry

    def _earlier(self, request: Request, *, ordered: bool = False) -> dict[str, Any] | None:
        """The commit in the log with this commit_id."""
        if (commit_id := request.commit_id) is None:
            return None
        log, identity = self.workspace.log, identity_of(self.store, self.root)
        return self.workspace.read_log(lambda view: log.find(commit_id, view, identity, ordered=ordered))

    def _check_replay(self, request: Request, entry: Mapping[str, Any]) -> None:
        """Refuse a commit_id that was used for something else."""
        check_same_request(request, entry, self.root)
        offsets = (self.stream or {}).get("source_offsets")
        if offsets is not None:
            check_same_batch(request, offsets, self._earlier(request), self.root)

    def request(
        self,
        operation: str,
        arguments: Mapping[str, Any] | None = None,
        commit_id: Any = None,
    ) -> Request:
        """The operation, as the log records it, without the arguments that are None."""
        if commit_id is not None and not (commit_id and isinstance(commit_id, str)):
            raise InvalidArgument(f"commit_id must be a non-empty string such as 'orders:17', got {commit_id!r}")
        everything = {**(arguments or {}), **(self.stream or {})}
        given = {name: logged_value(value) for name, value in everything.items() if value is not None}
        kept = retention_seconds(operation, self.retention)
        return Request(operation, given, self.engine.name, commit_id, kept, ordered=self.stream is not None)

    def snapshot_in(
        self,
        transaction: Transaction,
        partition_filter: PartitionFilter = None,
        stats_columns: StatsColumns = (),
        *,
        own_schemas: bool = False,
        rows: RowCondition | None = None,
    ) -> Snapshot:
        """A snapshot of the files at a moment when no commit is half done; arguments as in `snapshot`."""
        return self._discover(
            lambda enter: transaction.listing(partition_filter, enter),
            partition_filter,
            stats_columns,
            rows,
            own_schemas=own_schemas,
            learn=transaction.learn,
        )

    def check_exists(self, partition_filter: PartitionFilter = None) -> None:
        """Refuse an invalid filter or a missing dataset before anything is created."""
        directory_matcher(partition_filter)
        refuse_missing(self.store, self.root)

    def existing(self, transaction: Transaction, *, loosely: bool = False) -> list[FileEntry]:
        """The current files; none if the dataset does not exist yet."""
        try:
            return transaction.list_loosely() if loosely else transaction.list_files()
        except DatasetNotFound:
            return []

    def context(self, transaction: Transaction, progress: ProgressCallback | None = None) -> Context:
        """The engine's context for a transaction."""
        return Context(self.store, transaction.staging, transaction.operation, progress)

    def _discover(
        self,
        list_files: Callable[[Enter | None], Listing],
        partition_filter: PartitionFilter,
        stats_columns: StatsColumns,
        rows: RowCondition | None,
        *,
        own_schemas: bool,
        learn: Callable[[pa.Table], None] | None = None,
    ) -> Snapshot:
        from parketto.operations.folder_types import FolderTypes, partitions_without_rows

        def found_in(listing: Listing, sample: Sequence[FileInfo] = ()) -> Snapshot:
            listed, types = listing.files, FolderTypes(self.store, self.root, listing, sample)
            if rows is not None and self._is_indexed(listed):
                return self._index(learn, listing.begun).matching(
                    listed, stats_columns, rows, types.without, sample
                )
            # If nothing is listed, a file without rows shows the schema.
            shown = () if listed else tuple(replace(file.stored, num_rows=0, row_groups=()) for file in sample[:1])
            found = Snapshot(self.root, shown) if shown else self._described(listing, stats_columns, learn)
            some = listing.left_out or len(listing.files) < len(listing.everything)
            if some and any(map(_has_path_only_columns, found.files)):
                empty = partitions_without_rows((file.partition, file.num_rows) for file in found.files)
                found = found.with_path_types(types.without(empty))
            return found

        def everything() -> Snapshot:
            found = found_in(list_files(None))
            return found if own_schemas else found.unified()

        def pruned() -> Snapshot | None:
            from parketto.operations.path_pruning import PathPruning

            assert rows is not None, "folders are pruned by a condition"
            pruning = PathPruning(self.store, self.root, rows, partition_filter)
            listing = list_files(pruning.enter)
            if not pruning.ruled_out:
                return found_in(listing).unified() if listing.files else None
            try:
                # Rows are presented as far as the dataset's schema is known without the other files.
                found = found_in(listing, pruning.sample).unified(pruning.sample)
            except ParkettoError:
                return None  # all files show whether it is an error
            return replace(found, complete=False) if pruning.accepts(found) else None

        found = None if rows is None or own_schemas else retry_on_vanished_files(self.root, pruned)
        return retry_on_vanished_files(self.root, everything) if found is None else found

    def _is_indexed(self, listed: Sequence[FileEntry]) -> bool:
        return self.past is None and len(listed) >= MIN_FILES and self.workspace.keeps_history

    def _described(
        self, listing: Listing, stats_columns: StatsColumns, learn: Callable[[pa.Table], None] | None
    ) -> Snapshot:
        """The files of a listing, by the footer index as far as it knows them."""
        if not self._is_indexed(listing.files):
            return self._read(listing.files, stats_columns)
        # Where a footer costs a request, its bounds cost nothing.
        learns = stats_columns is None or not self.store.often_cached
        return self._index(learn, listing.begun).described(listing.files, stats_columns, learns=learns)

    def _index(self, learn: Callable[[pa.Table], None] | None = None, begun: float = 0.0) -> IndexSearch:
        from parketto.operations.index_pruning import IndexSearch

        return IndexSearch(
            FooterIndex(self.store, self.workspace.path),
            self.root,
            lambda entries, columns: self._read(entries, columns).files,
            learn,
            begun,
            self.engine.footers_in_tasks or 0,
        )

    def total_rows(self, partition_filter: PartitionFilter) -> int:
        """The number of rows of all files."""

        def read() -> int:
            listed = self._listing(partition_filter).files
            known = self._is_indexed(listed)
            return int(self._index().files(listed).counts.sum()) if known else self._read(listed, ()).total_rows

        return retry_on_vanished_files(self.root, read)

    def partition_types(self) -> Mapping[str, pa.DataType]:
        """The types of partition columns that the paths of all current files imply."""
        from parketto.operations.folder_types import partitions_of

        return path_types(partitions_of(self.listed_if_any(), self.root))

    def with_path_types(self, files: Sequence[FileInfo]) -> tuple[FileInfo, ...]:
        """Some files, with the types of partition columns that the paths of all current files imply."""
        if not any(map(_has_path_only_columns, files)):
            return tuple(files)
        return Snapshot(self.root, tuple(files)).with_path_types(self.partition_types()).files

    def _read(self, listed: Sequence[FileEntry], stats_columns: StatsColumns) -> Snapshot:
        """Read footers in local threads or, from the engine's threshold on, in its tasks."""
        if self.past is not None:
            return read_snapshot(self.snapshot_store(), self.root, listed, stats_columns)
        if self.engine.footers_in_tasks is None or len(listed) < self.engine.footers_in_tasks:
            return read_snapshot(self.store, self.root, listed, stats_columns)
        self.engine.check_store(self.store)
        tasks = footer_tasks(listed, self.root, stats_columns)
        found = self.engine.run(tasks, Context(self.store, Staging(""), "footers"))
        return Snapshot(self.root, tuple(file for files in found for file in files))


def _has_path_only_columns(file: FileInfo) -> bool:
    assert file.schema is not None, "a footer always has a schema"
    return any(name not in file.schema.names for name, _ in file.partition)


def entries(files: Sequence[FileInfo]) -> list[FileEntry]:
    """The listing entries of files."""
    return [file.entry for file in files]

"""A dataset as operations see it: where it is, and what carries them out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from parketto.commit.backup import Backup
from parketto.commit.recovery import list_settled
from parketto.commit.transaction import Transaction
from parketto.commit.workspace import Workspace
from parketto.engines.base import Context, Engine, ProgressCallback
from parketto.errors import DatasetNotFound, InvalidArgument
from parketto.kernels.footers import footer_tasks
from parketto.kernels.work import Staging
from parketto.plan.zones import Clock
from parketto.storage.footers import FileInfo, StatsColumns
from parketto.storage.hive import PartitionFilter, directory_matcher
from parketto.storage.snapshot import Snapshot, is_inside, read_snapshot, refuse_missing, while_files_vanish
from parketto.storage.store import FileEntry, Store


@dataclass(frozen=True)
class Backups:
    """A folder for backups, on any filesystem."""

    store: Store
    directory: str
    #: Whether backups are to be known by their URLs.
    as_url: bool = False

    def check_outside(self, store: Store, root: str) -> None:
        """Copies inside of the dataset would be data again."""
        if self.store.same_files(store) and is_inside(self.directory, root):
            raise InvalidArgument(f"backups in {self.directory!r} would be inside of the dataset {root!r}")


@dataclass(frozen=True)
class Place:
    """Where a dataset is, and the engine that works on it."""

    store: Store
    root: str
    workspace: Workspace
    engine: Engine
    swap: bool = True
    #: The time zone of expressions; None leaves it to the engine.
    timezone: str | None = None

    def clock(self) -> Clock:
        """The time zone and the present instant for the expressions of one operation."""
        return Clock(self.engine.timezone if self.timezone is None else self.timezone)

    def snapshot(self, partition_filter: PartitionFilter = None, stats_columns: StatsColumns = ()) -> Snapshot:
        """The files as they are now, for reading."""
        return self._discover(lambda: list_settled(self.workspace, partition_filter), stats_columns)

    def listed(self, partition_filter: PartitionFilter = None) -> list[FileEntry]:
        """The data files as they are now; none is an error."""
        return list_settled(self.workspace, partition_filter)

    def transaction(self, operation: str, backups: Backups | None = None) -> Transaction:
        """An operation that will change something; what it retires can be kept."""
        self.engine.check_store(self.store)
        backup = None
        if backups is not None:
            backup = Backup(backups.store, backups.directory, operation, as_url=backups.as_url)
        return Transaction(self.workspace, operation, swap=self.swap, backup=backup)

    def snapshot_in(
        self,
        transaction: Transaction,
        partition_filter: PartitionFilter = None,
        stats_columns: StatsColumns = (),
    ) -> Snapshot:
        """The files at a moment when nobody is in the middle of a commit."""
        return self._discover(lambda: transaction.list_files(partition_filter), stats_columns)

    def check_exists(self, partition_filter: PartitionFilter = None) -> None:
        """What makes no sense is refused before anything is made."""
        directory_matcher(partition_filter)
        refuse_missing(self.store, self.root)

    def existing(self, transaction: Transaction) -> list[FileEntry]:
        """The files that there are; none if there is no dataset yet."""
        try:
            return transaction.list_files()
        except DatasetNotFound:
            return []

    def context(self, transaction: Transaction, progress: ProgressCallback | None = None) -> Context:
        """What the engine works with during a transaction."""
        return Context(self.store, transaction.staging, transaction.operation, progress)

    def _discover(self, list_files: Callable[[], Sequence[FileEntry]], stats_columns: StatsColumns) -> Snapshot:
        return while_files_vanish(self.root, lambda: self._read(list_files(), stats_columns))

    def _read(self, listed: Sequence[FileEntry], stats_columns: StatsColumns) -> Snapshot:
        """Footers: here with some threads, or, if there are very many, wherever the engine's tasks run."""
        if self.engine.footers_in_tasks is None or len(listed) < self.engine.footers_in_tasks:
            return read_snapshot(self.store, self.root, listed, stats_columns)
        self.engine.check_store(self.store)
        tasks = footer_tasks(listed, self.root, stats_columns)
        found = self.engine.run(tasks, Context(self.store, Staging(""), "footers"))
        return Snapshot(self.root, tuple(file for files in found for file in files))


def entries(files: Sequence[FileInfo]) -> list[FileEntry]:
    """The files as a listing shows them."""
    return [file.entry for file in files]

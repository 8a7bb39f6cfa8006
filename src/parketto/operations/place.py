"""A dataset as operations see it: where it is, and what carries them out."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

from parketto.commit.backup import Backup
from parketto.commit.committing import AlreadyCommitted, Request
from parketto.commit.identity import identity_of
from parketto.commit.recovery import list_settled
from parketto.commit.transaction import Transaction
from parketto.commit.workspace import Workspace
from parketto.engines.base import Context, Engine, ProgressCallback
from parketto.errors import CommitConflict, DatasetNotFound, InvalidArgument, LockTimeout, quoted
from parketto.kernels.footers import footer_tasks
from parketto.kernels.work import Staging
from parketto.plan.zones import Clock
from parketto.storage.footers import FileInfo, StatsColumns
from parketto.storage.hive import PartitionFilter, directory_matcher
from parketto.storage.snapshot import Snapshot, is_inside, read_snapshot, refuse_missing, while_files_vanish
from parketto.storage.store import FileEntry, Store

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
Isolation = Literal["serializable", "snapshot"]
ISOLATIONS = ("serializable", "snapshot")
# Before the second attempt; twice that before the third, and so on. Random, so that two do not meet again.
_PAUSE_SECONDS = 0.02


def check_isolation(isolation: str) -> Isolation:
    """Refuse anything but the choices."""
    if isolation not in ISOLATIONS:
        raise InvalidArgument(f"unknown isolation {isolation!r}; valid choices: {quoted(ISOLATIONS)}")
    return cast("Isolation", isolation)


def check_retries(retries: Any) -> int:
    """Refuse anything but a number of attempts."""
    if not isinstance(retries, int) or isinstance(retries, bool) or retries < 0:
        raise InvalidArgument(f"retries must be a whole number from 0 on, got {retries!r}")
    return int(retries)


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
    #: Whether files that others add meanwhile can be a conflict, and how often a conflict is planned anew.
    isolation: Isolation = "serializable"
    retries: int = 3

    def clock(self) -> Clock:
        """The time zone and the present instant for the expressions of one operation."""
        return Clock(self.engine.timezone if self.timezone is None else self.timezone)

    def snapshot(self, partition_filter: PartitionFilter = None, stats_columns: StatsColumns = ()) -> Snapshot:
        """The files as they are now, for reading."""
        return self._discover(lambda: list_settled(self.workspace, partition_filter).files, stats_columns)

    def listed(self, partition_filter: PartitionFilter = None) -> list[FileEntry]:
        """The data files as they are now; none is an error."""
        return list_settled(self.workspace, partition_filter).files

    def run(
        self,
        request: Request,
        attempt: Callable[[Transaction], Result],
        *,
        known: Callable[[Mapping[str, Any]], Result] | None = None,
        backups: Backups | None = None,
        repeatable: bool = True,
    ) -> Result:
        """Carry an operation out in a transaction; after a conflict again, with a fresh plan.

        The last attempt keeps others from committing while it works, so that nobody is overtaken for ever.

        Args:
            request: What is asked for.
            attempt: Discovers, plans, executes and commits.
            known: Makes a result of the statistics of an earlier commit with the same `commit_id`.
            backups: Where to keep what is retired.
            repeatable: Whether a second attempt can read the same rows again.
        """
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
                    logger.info("%s is planned anew after a conflict: %s", request.operation, conflict)
                    time.sleep(random.uniform(0.5, 1.0) * _PAUSE_SECONDS * 2**number)  # noqa: S311 - no secret
        except AlreadyCommitted as done:
            entry = done.entry
            logger.info("%s %r was committed at %s already", request.operation, request.commit_id, entry["at"])
            assert known is not None, "whoever takes a commit_id can say what came of it"
            return known(entry["statistics"])
        raise AssertionError("unreachable")

    def _transaction(self, request: Request, backups: Backups | None, *, alone: bool) -> Transaction:
        backup = None
        if backups is not None:
            backup = Backup(backups.store, backups.directory, request.operation, as_url=backups.as_url)
        return Transaction(self.workspace, request, swap=self.swap, backup=backup, alone=alone)

    def _refuse_repeated(self, request: Request) -> None:
        """A piece of work that the log knows is not begun again."""
        if (commit_id := request.commit_id) is not None:
            log, identity = self.workspace.log, identity_of(self.store, self.root)
            entry = self.workspace.read_log(lambda view: log.find(commit_id, view, identity))
            if entry is not None:
                raise AlreadyCommitted(entry)

    def request(
        self, operation: str, arguments: Mapping[str, Any] | None = None, commit_id: Any = None
    ) -> Request:
        """What an operation is called in the log; arguments that were not given are left out."""
        if commit_id is not None and not (commit_id and isinstance(commit_id, str)):
            raise InvalidArgument(f"commit_id must be a text such as 'orders:17', got {commit_id!r}")
        given = {name: value for name, value in (arguments or {}).items() if value is not None}
        return Request(operation, given, self.engine.name, commit_id)

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

    def existing(self, transaction: Transaction, *, loosely: bool = False) -> list[FileEntry]:
        """The files that there are; none if there is no dataset yet."""
        try:
            return transaction.list_loosely() if loosely else transaction.list_files()
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

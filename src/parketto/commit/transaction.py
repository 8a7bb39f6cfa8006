"""A transaction: stages the files of one operation, and is the only way to publish them."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

import pyarrow as pa

from parketto.commit.backup import Backup
from parketto.commit.committing import Commit, data_files
from parketto.commit.heartbeat import Heartbeat
from parketto.commit.identity import identity_of
from parketto.commit.lease import Lease
from parketto.commit.record import FoundFile, to_json_value
from parketto.commit.recovery import new_id, recover, recover_locked
from parketto.commit.request import AlreadyCommitted, Change, CheckAdded, Request
from parketto.commit.settled import Listing, list_settled
from parketto.commit.validation import check_unchanged, who_changed
from parketto.commit.workspace import Workspace
from parketto.errors import CommitConflict, CommitFailed, CommitStateUnknown, ParkettoError
from parketto.planning.naming import Naming
from parketto.runtime.staging import StagedFile, Staging
from parketto.storage.hive import PartitionFilter, is_data_path
from parketto.storage.listing import relative, select_data_files
from parketto.storage.locks import Lock, NoLock
from parketto.storage.store import FileEntry
from parketto.storage.walk import Enter

logger = logging.getLogger(__name__)

# How often another writer may take the commit's number first, without locks.
_NUMBER_ATTEMPTS = 100


class Transaction:
    """One operation on a dataset, as a context manager.

    Entering recovers an interrupted operation. Leaving removes the files that are still staged: none after a
    commit, all of them after an error.

    Args:
        workspace: The workspace with the log.
        request: The operation, as the log records it.
        swap: Whether directories may be swapped.
        backup: Where to keep the retired files.
        alone: Keep other writers from committing from the start, not only during the commit.
        lease: The folder with files that other processes have staged; by default a new folder.
    """

    def __init__(
        self,
        workspace: Workspace,
        request: Request,
        *,
        swap: bool = True,
        backup: Backup | None = None,
        alone: bool = False,
        lease: Lease | None = None,
    ) -> None:
        self._workspace, self._store, self._request = workspace, workspace.store, request
        self._lease = lease
        self._swapping, self._backup, self._alone = swap, backup, alone
        #: The path of the backup of the retired files, if there is one.
        self.backup_path: str | None = None
        self._id = new_id() if lease is None else lease.id
        self._begun = time.monotonic()
        self._directory = ""
        self._lock: Lock | None = None
        self._alive: Lock = NoLock()
        self._heartbeat: Heartbeat | None = None
        self._listing: Listing | None = None
        self._learned: pa.Table | None = None
        self._unsettled = self._cleared = False

    @property
    def identity(self) -> str:
        """The id of this attempt, by which the log records its commit."""
        return self._id

    @property
    def operation(self) -> str:
        """The name of the operation."""
        return self._request.operation

    def __enter__(self) -> Transaction:
        if self._workspace.locks:
            recover(self._workspace)  # without locks, the listing and the commit read the log anyway
        if self._alone:
            self._lock = self._workspace.lock()
        try:
            if self._lock is not None and self._workspace.locks:
                recover_locked(self._workspace)  # the previous holder of the lock may have died
            self._directory, self._alive = self._workspace.begin(self._id)
            if self._lease is not None and self._workspace.locks:
                self._lease.end(self._store)
            if not self._workspace.locks:
                self._heartbeat = Heartbeat(self._store, f"{self._directory}/alive")
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, Exception) and not isinstance(error, ParkettoError | AlreadyCommitted):
                error.add_note(f"The {self.operation} was not committed; the dataset is unchanged.")
            self._clean_up()
        finally:
            self._release()

    def list_files(self, partition_filter: PartitionFilter = None) -> list[FileEntry]:
        """The dataset's files at a moment when no commit is half done."""
        return self.listing(partition_filter).files

    def listing(self, partition_filter: PartitionFilter = None, enter: Enter | None = None) -> Listing:
        """The data files with all other files of the listed folders; arguments as in `list_settled`."""
        locked = self._lock is not None and self._workspace.locks
        self._learned = None  # rows of an earlier listing may be of files that a purge has removed since
        self._listing = list_settled(self._workspace, partition_filter, enter=enter, to_change=True, locked=locked)
        return self._listing

    def list_loosely(self) -> list[FileEntry]:
        """The dataset's files, for an operation that only adds files. Other writers may commit meanwhile."""
        if self._workspace.locks:
            return self.list_files()
        root = self._workspace.root
        found = list(self._store.list_files(root))
        # A dataset without an identity object has no commits: this saves a request for the log.
        number = None if identity_of(self._store, root, found) else 0
        self._listing = Listing([], number, found)  # also if there is no dataset yet
        self._listing = Listing(select_data_files(self._store, root, found), number, found)
        return self._listing.files

    def lists_only(self, files: Sequence[FileEntry]) -> bool:
        """Whether these are all data files of the dataset, also in folders that the operation has not listed."""
        if self._listing is None:
            return False
        root = self._workspace.root
        if len(data_files(self._listing.everything, root)) != len(files):
            return False
        folders = (f"{root}/{folder}" for folder in self._listing.left_out)
        return not any(
            is_data_path(relative(entry.path, root)) for each in folders for entry in self._store.list_files(each)
        )

    def learn(self, rows: pa.Table) -> None:
        """Keep rows that the footer index lacks, until the commit writes them."""
        self._learned = rows

    @property
    def staging(self) -> Staging:
        """The staging folder of this operation."""
        return Staging(self._directory, self._store.local_path(self._directory))

    def discard(self, path: str) -> None:
        """Remove an intermediate staged file."""
        self._store.remove(path)

    @contextlib.contextmanager
    def conflicts_over(self, inputs: Sequence[FileEntry]) -> Iterator[None]:
        """Turn any error into CommitConflict if an input has changed or vanished while it was read."""
        try:
            yield
        except Exception:
            seen = 0 if self._listing is None else self._listing.number or 0
            check_unchanged(self._store, inputs, None, self._workspace, seen)
            for entry in inputs:  # a commit that was undone has removed files for a moment only
                if who := who_changed(self._workspace, entry.path, seen):
                    raise CommitConflict.over(entry.path, gone=True, who=who) from None
            raise

    def commit(
        self,
        publish: Sequence[StagedFile],
        retire: Sequence[FileEntry],
        *,
        naming: Naming | None = None,
        named: Sequence[StagedFile] = (),
        read: Sequence[FileEntry] = (),
        check_added: CheckAdded | None = None,
        follows: tuple[str, ...] | None = None,
        names_may_exist: bool = False,
        statistics: Any = None,
        validate: Callable[[], None] | None = None,
        found: Sequence[FoundFile] = (),
    ) -> None:
        """Publish the staged files and retire the old ones: all of it, or nothing.

        Args:
            publish: The staged files.
            retire: The files that they replace.
            naming: Names the staged files now, when no other writer can take the same names.
            named: The staged files that already have their final names.
            read: Files that the operation has based its decisions on: a change of one is a conflict.
            check_added: Refuses concurrently added data files that matter to the operation.
            follows: The partition columns of all files: concurrently added files with other ones are a
                conflict.
            names_may_exist: Whether files of these names may already exist, which is a conflict.
            statistics: The statistics to log: a mapping, or a function that gets the path of the backup.
            validate: Raises CommitConflict if something besides files has changed that the operation relies on, or
                does what must happen before the commit. No other commit comes between its last call and this one.
            found: What other programs have done to data files, to be registered.
        """
        self._store.sync([*(file.path for file in publish), f"{self._directory}/new", self._directory])
        backup = self._backup if retire else None
        try:
            if backup is not None:
                # Before the lock, because copying is slow; that the files are unchanged is checked under the lock.
                backup.preserve(self._store, self._workspace.root, retire)
                self.backup_path = backup.name
            logged = statistics(self.backup_path) if callable(statistics) else statistics
            if backup is not None:
                # A purge looks for it there.
                logged = {**to_json_value(logged or {}), "backup_path": self.backup_path}
            change = Change(
                publish,
                retire,
                naming,
                named,
                read,
                check_added,
                follows,
                names_may_exist,
                logged,
                backup,
                validate,
                found,
            )
            self._commit(change)
        except CommitStateUnknown:
            raise
        except BaseException:
            self.backup_path = None
            if backup is not None:
                backup.discard()
            raise

    def _commit(self, change: Change) -> None:
        if self._heartbeat is not None:
            self._heartbeat.stop()  # from the commit on, a sweep settles it first
        commit = Commit(
            self._workspace,
            self._request,
            self._id,
            self._directory,
            self._listing,
            learned=self._learned,
            swap=self._swapping,
            begun=self._begun,
        )
        try:
            for _ in range(_NUMBER_ATTEMPTS):
                with contextlib.nullcontext(self._lock) if self._lock else self._workspace.locked() as lock:
                    if commit.attempt(change, lock):
                        return
        finally:
            self._unsettled, self._cleared = commit.unsettled, commit.cleared
        raise CommitConflict(
            f"other writers keep committing to {self._workspace.root!r}; nothing was published, run it again"
        )

    def _clean_up(self) -> None:
        if self._unsettled or self._cleared:
            return  # the process that settles the commit needs the staged files
        try:
            self._workspace.end(self._directory, self._alive)
        except (OSError, CommitFailed) as error:
            # The outcome is decided; the next operation sweeps what is left.
            logger.warning("could not remove %s yet: %s", self._directory, error)

    def _release(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.stop()
        self._alive.release()
        if self._lock is not None:
            self._lock.release()
        if self._directory:
            self._workspace.tidy()

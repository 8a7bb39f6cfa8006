"""A transaction: a place to stage files, and the one way to make them part of the dataset."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import logging
import posixpath
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import NoReturn

from parketto.commit.apply import Applier
from parketto.commit.backup import Backup
from parketto.commit.journal import Journal, Publication, Retirement
from parketto.commit.recovery import list_settled, recover, recover_locked
from parketto.commit.swap import Swap, build_twin
from parketto.commit.workspace import Workspace
from parketto.errors import CommitConflict, CommitFailed, CommitStateUnknown, ParkettoError
from parketto.kernels.work import StagedFile, Staging
from parketto.plan.naming import Naming
from parketto.storage.hive import PartitionFilter, is_data_path
from parketto.storage.locks import Lock
from parketto.storage.snapshot import relative
from parketto.storage.store import FileEntry, Store

logger = logging.getLogger(__name__)


def check_unchanged(store: Store, inputs: Sequence[FileEntry]) -> None:
    """Raise CommitConflict if any input is not the file it was when it was listed."""
    found = store.stat_many([entry.path for entry in inputs])
    for entry in inputs:
        current = found.get(entry.path)
        if current is None or current.fingerprint != entry.fingerprint:
            raise CommitConflict.over(entry.path, gone=current is None)


class Transaction:
    """One operation on a dataset, as a context manager.

    Entering recovers what an earlier operation left. Leaving removes everything that was staged: after a
    commit there is nothing, after an error all of it.
    """

    def __init__(
        self, workspace: Workspace, operation: str, *, swap: bool = True, backup: Backup | None = None
    ) -> None:
        self._workspace, self._store, self.operation = workspace, workspace.store, operation
        self._swapping, self._backup = swap, backup
        #: Where the files that a commit has retired are kept, if anywhere.
        self.backup_path: str | None = None
        now = dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%S")
        self._id = f"{now}-{uuid.uuid4().hex[:12]}"
        self._directory = ""
        self._alive: Lock | None = None

    def __enter__(self) -> Transaction:
        recover(self._workspace)
        with self._workspace.locked():
            recover_locked(self._workspace)
            self._directory, self._alive = self._workspace.new_transaction_directory(self._id)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._alive is not None, "entered before it is left"
        try:
            if isinstance(error, Exception) and not isinstance(error, ParkettoError):
                error.add_note(f"The {self.operation} was not committed; the dataset is unchanged.")
            self._clean_up()
        finally:
            self._alive.release()

    def list_files(self, partition_filter: PartitionFilter = None) -> list[FileEntry]:
        """The dataset's files at a moment when nobody is in the middle of a commit."""
        return list_settled(self._workspace, partition_filter, exclusive=True)

    @property
    def staging(self) -> Staging:
        """Where this operation may write."""
        return Staging(self._directory, self._store.local_path(self._directory))

    def discard(self, path: str) -> None:
        """Remove a staged file that was only an intermediate."""
        self._store.remove(path)

    def check_unchanged(self, inputs: Sequence[FileEntry]) -> None:
        """Raise CommitConflict if any input is not the file it was when it was listed."""
        check_unchanged(self._store, inputs)

    @contextlib.contextmanager
    def conflicts_over(self, inputs: Sequence[FileEntry]) -> Iterator[None]:
        """A file that vanished while it was read is a conflict, whatever error it showed itself as."""
        try:
            yield
        except Exception:
            self.check_unchanged(inputs)
            raise

    def commit(
        self,
        publish: Sequence[StagedFile],
        retire: Sequence[FileEntry],
        naming: Naming | None = None,
        check_listing: Callable[[list[FileEntry]], None] | None = None,
    ) -> None:
        """Make the staged files part of the dataset and take the retired ones out: all of it, or nothing.

        With a `naming` the staged files get their names now, when nobody else can take the same ones. For an
        operation to which files matter that it has not read, `check_listing` gets all data files as they are now,
        when nobody else can add any, and raises a conflict if it must.
        """
        self._store.sync([*(file.path for file in publish), f"{self._directory}/new", self._directory])
        if self._backup is None or not retire:
            self._commit(publish, retire, naming, check_listing, None)
            return
        try:
            # Before the lock: copying takes its time. Whether they are still the same files is looked at under it.
            self._backup.preserve(self._store, self._workspace.root, retire)
            self._commit(publish, retire, naming, check_listing, self._backup)
        except CommitStateUnknown:
            raise
        except BaseException:
            self._backup.discard()
            raise
        self.backup_path = self._backup.name

    def _commit(
        self,
        publish: Sequence[StagedFile],
        retire: Sequence[FileEntry],
        naming: Naming | None,
        check_listing: Callable[[list[FileEntry]], None] | None,
        backup: Backup | None,
    ) -> None:
        with self._workspace.locked() as lock:
            recover_locked(self._workspace)
            self.check_unchanged(retire)
            if check_listing is not None:
                root = self._workspace.root
                found = self._store.list_files(root)
                check_listing([entry for entry in found if is_data_path(relative(entry.path, root))])
            if naming is not None:
                publish = self._named(publish, naming)
            self._check_destinations(publish, retire)
            try:
                self._inherit_access(publish, retire)
                journal = self._journal(publish, retire, self._twins(publish, retire))
            except FileNotFoundError:
                self.check_unchanged(retire)  # somebody has just taken a file away: say so
                raise
            if backup is not None:
                backup.seal(self._store, self._workspace.root, publish)
            applier, applied = Applier(self._workspace, journal, first=True), False
            if not lock.is_held():
                raise CommitConflict(
                    "the lock ran out while this was about to commit; nothing was changed, run it again"
                )
            try:
                self._workspace.write_journal(journal)
                applier.roll_forward()
                applied = True
                self._workspace.clear_journal()
            except BaseException as error:  # noqa: BLE001 - Ctrl-C too; `_give_up` always raises
                self._give_up(error, journal, applier, applied)

    def _named(self, publish: Sequence[StagedFile], naming: Naming) -> list[StagedFile]:
        by_directory: defaultdict[str, list[StagedFile]] = defaultdict(list)
        for file in publish:
            by_directory[posixpath.dirname(file.destination)].append(file)
        return [
            StagedFile(file.path, f"{directory}/{name}")
            for directory, files in by_directory.items()
            for file, name in zip(files, naming.names(len(files), self._store.list_names(directory)), strict=True)
        ]

    def _twins(self, publish: Sequence[StagedFile], retire: Sequence[FileEntry]) -> tuple[Swap, ...]:
        if not self._swapping:
            return ()
        root, work = self._workspace.root, self._workspace.path
        swap = build_twin(self._store, root, work, f"{self._directory}/twin", publish, retire)
        return () if swap is None else (swap,)

    def _journal(
        self, publish: Sequence[StagedFile], retire: Sequence[FileEntry], swaps: tuple[Swap, ...]
    ) -> Journal:
        root, work = self._workspace.root, self._workspace.path
        folder = relative(self._directory, work)
        staged = self._store.stat_many([file.path for file in publish])

        return Journal(
            id=self._id,
            operation=self.operation,
            root=self._workspace.relative_root,
            publish=tuple(
                Publication(
                    relative(file.path, work), relative(file.destination, root), staged[file.path].fingerprint
                )
                for file in publish
            ),
            retire=tuple(
                Retirement(relative(entry.path, root), entry.fingerprint, f"{folder}/old/{number}")
                for number, entry in enumerate(retire)
            ),
            swaps=swaps,
        )

    def _check_destinations(self, publish: Sequence[StagedFile], retire: Sequence[FileEntry]) -> None:
        touched = {posixpath.dirname(path) for path in self._touched(publish, retire)}
        for directory in sorted(touched):
            if problem := self._store.writable_problem(directory):
                raise CommitFailed(f"{problem}; nothing was changed")
        for path in self._store.stat_many([file.destination for file in publish]):
            raise CommitConflict(f"{path!r} exists already; nothing was changed")

    def _inherit_access(self, publish: Sequence[StagedFile], retire: Sequence[FileEntry]) -> None:
        """What replaces private files is private, too."""
        new: defaultdict[str, list[str]] = defaultdict(list)
        for file in publish:
            new[posixpath.dirname(file.destination)].append(file.path)
        old: defaultdict[str, list[str]] = defaultdict(list)
        for entry in retire:
            old[posixpath.dirname(entry.path)].append(entry.path)
        everything = [entry.path for entry in retire]
        for directory, paths in new.items():
            self._store.inherit_access(paths, old[directory] or everything)

    @staticmethod
    def _touched(publish: Sequence[StagedFile], retire: Sequence[FileEntry]) -> list[str]:
        return [*(file.destination for file in publish), *(entry.path for entry in retire)]

    def _give_up(self, error: BaseException, journal: Journal, applier: Applier, applied: bool) -> NoReturn:
        """After a failed commit: undo it if that can be done, and say truly what state things are in."""
        try:
            written = self._workspace.read_journal() is not None
            if written and not applied and not applier.irreversible:
                undo = dataclasses.replace(journal, state="rollback")
                self._workspace.write_journal(undo)
                Applier(self._workspace, undo).roll_back()
                self._workspace.clear_journal()
                written = False
        except BaseException as second:
            raise self._unknown(error) from second
        if written or applied:
            raise self._unknown(error) from error
        if not isinstance(error, Exception) or isinstance(error, CommitFailed):
            raise error
        raise CommitFailed(f"the {self.operation} was not committed, nothing was changed: {error}") from error

    def _unknown(self, error: BaseException) -> CommitStateUnknown:
        return CommitStateUnknown(
            f"the {self.operation} was interrupted while it was committed ({error!r}). No row is lost: the "
            f"journal at {self._workspace.journal_path!r} says how to finish, and the next operation or "
            "recover() will do it"
        )

    def _clean_up(self) -> None:
        # Under the lock, so that a sweep never meets a folder that is half removed; leaving the lock then tidies
        # the workspace away if nobody else uses it.
        try:
            with self._workspace.locked():
                if self._workspace.journal_may_name(self._id):
                    return  # recovery still needs what is in there, whatever error brought us here
                self._store.remove_tree(self._directory)
        except (OSError, CommitFailed) as error:
            # The operation itself is decided; what is left in the way is swept by the next one.
            logger.warning("could not remove %s yet: %s", self._directory, error)

"""The commit of one operation: validate, create the record, apply it, record the outcome."""

from __future__ import annotations

import itertools
import logging
import posixpath
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NoReturn

import pyarrow as pa

from parketto.commit.appliers import Applier, applier_of
from parketto.commit.identity import identity_of, mark
from parketto.commit.log import KEPT_RECORDS, STALL_SECONDS, LogView, now
from parketto.commit.record import KEPT, Outcome, Publication, Record, Retirement, to_json_value
from parketto.commit.recovery import abort_dead_uploads, author, dead_among, settle, sweep, sweep_free
from parketto.commit.request import AlreadyCommitted, Change, Request
from parketto.commit.retention import KeptFiles, kept_folder, kept_until
from parketto.commit.settled import Listing
from parketto.commit.swap import Swap, build_twin
from parketto.commit.validation import check_unchanged, who_changed
from parketto.commit.workspace import Workspace, WorkspaceState
from parketto.errors import CommitConflict, CommitFailed, CommitStateUnknown, ParkettoError
from parketto.planning.naming import Naming
from parketto.runtime.staging import StagedFile
from parketto.storage.hive import is_data_path, partition_values
from parketto.storage.listing import relative
from parketto.storage.locks import Lock
from parketto.storage.store import FileEntry

logger = logging.getLogger(__name__)

_PAGE = 1000  # objects per listing request on S3
# Where a listing is a request, commits that retire nothing look for expired files only this often.
_EXPIRY_COMMITS = 10


class Commit:
    """The commit of one operation.

    Args:
        workspace: The workspace with the log.
        request: The operation, as the log records it.
        identity: The id of the attempt.
        directory: Its folder in the workspace.
        listing: The listing that the operation is based on, if there is one.
        learned: Rows for the footer index, of files whose footers the operation has read.
        swap: Whether directories may be swapped.
        begun: When the operation began, on the monotonic clock.
    """

    def __init__(
        self,
        workspace: Workspace,
        request: Request,
        identity: str,
        directory: str,
        listing: Listing | None,
        *,
        learned: pa.Table | None = None,
        swap: bool,
        begun: float,
    ) -> None:
        self._workspace, self._store, self._log = workspace, workspace.store, workspace.log
        self._request, self._id, self._directory = request, identity, directory
        self._listing, self._swapping, self._begun = listing, swap, begun
        self._learned = learned
        self._mark: str | None = None
        #: The record may be in the log, unsettled: then other processes need the staged files.
        self.unsettled = False
        #: Whether nothing of the operation is left in the workspace.
        self.cleared = False

    def attempt(self, change: Change, lock: Lock) -> bool:
        """Commit; False if another writer has taken the number, so that validation must run again."""
        read_at = time.time()
        state = self._settled()
        publish = self._validated(change, state)
        if not lock.is_held():
            raise CommitConflict("the lock expired before the commit; nothing was changed, run it again")
        number = state.log.last + 1
        record = self._record(number, change, publish, state)
        if change.backup is not None:
            change.backup.seal(self._store, self._workspace.root, publish)
        if not self._create(number, record, read_at):
            return False
        self._apply(number, record, state)
        self._tidy_up(record, state)
        if self._listing is not None and self._workspace.keeps_history:
            from parketto.commit.index_update import update_index

            # Under the lock, so that a later purge removes what is written here.
            update_index(self._workspace, record, self._listing, self._learned, state.log.last)
        return True

    def _settled(self) -> WorkspaceState:
        """The workspace, once all commits before this one are settled."""
        while True:
            state = self._workspace.read_state()
            if state.log.done:
                return state
            settle(self._workspace, state.log)

    def _validated(self, change: Change, state: WorkspaceState) -> Sequence[StagedFile]:
        """The files to publish, if nothing has changed that the operation relies on."""
        store, root = self._store, self._workspace.root
        if (commit_id := self._request.commit_id) is not None:
            identity = identity_of(store, root)
            ordered = self._request.ordered
            entry = self._workspace.read_log(
                lambda view: self._log.find(commit_id, view, identity, ordered=ordered), state.log
            )
            if entry is not None:
                raise AlreadyCommitted(entry)
        there: dict[str, FileEntry] | None = None
        if change.check_added is not None or (change.inputs and not store.is_local_disk):
            there = {entry.path: entry for entry in data_files(self._list_again(), root)}
        self._check(change.inputs, there)
        if change.check_added is not None and (added := self._added((there or {}).values())):
            change.check_added(added, self._who_changed)
        if change.follows is not None and (store.is_local_disk or state.log.last != self._last_seen):
            self._check_layout(there, change.follows)
        publish = change.publish if change.naming is None else self._named(change, change.naming)
        self._check_destinations(publish, change)
        self._check_staged(publish, state)
        if change.validate is not None:
            change.validate()
        return publish

    def _list_again(self) -> Iterator[FileEntry]:
        """The files that are in the folders which the operation has listed."""
        walk = None if self._listing is None else self._listing.walk
        root = self._workspace.root
        return self._store.list_files(root) if walk is None else self._store.list_files(root, walk)

    def _check_layout(self, there: Mapping[str, FileEntry] | None, partition_by: tuple[str, ...]) -> None:
        """Refuse to add files if another writer has changed the partition columns.

        A change of layout replaces all files. So on object stores one page of the listing, one request, shows it.
        """
        root = self._workspace.root
        if there is None:
            listed = self._list_again()
            page = listed if self._store.is_local_disk else itertools.islice(listed, _PAGE)
            there = {entry.path: entry for entry in data_files(page, root)}
        for entry in self._added(there.values()):
            folder = posixpath.dirname(relative(entry.path, root))
            if tuple(name for name, _ in partition_values(folder)) != partition_by:
                raise CommitConflict.over(entry.path, gone=False, who=self._who_changed(entry.path))

    def _check(self, inputs: Sequence[FileEntry], there: Mapping[str, FileEntry] | None = None) -> None:
        check_unchanged(self._store, inputs, there, self._workspace, self._last_seen or 0)

    def _who_changed(self, path: str) -> str:
        return who_changed(self._workspace, path, self._last_seen or 0)

    @property
    def _last_seen(self) -> int | None:
        """The last commit before the operation listed the dataset; None if unknown."""
        return 0 if self._listing is None else self._listing.number

    def _added(self, files: Iterable[FileEntry]) -> list[FileEntry]:
        """The data files that appeared after the operation listed the dataset."""
        seen = [] if self._listing is None else data_files(self._listing.everything, self._workspace.root)
        known = {(entry.path, entry.fingerprint) for entry in seen}
        return [entry for entry in files if (entry.path, entry.fingerprint) not in known]

    def _check_staged(self, publish: Sequence[StagedFile], state: WorkspaceState) -> None:
        """Without locks a process that stalls may be taken for dead."""
        if self._workspace.locks:
            return
        staged = {entry.path for entry in self._staged(state)}
        if missing := [file.path for file in publish if file.path not in staged]:
            raise CommitFailed(
                f"{missing[0]!r} is gone: this process stalled for so long that other writers took it for dead "
                "and removed its staged files. Nothing was changed; run the operation again"
            )

    def _staged(self, state: WorkspaceState) -> Sequence[FileEntry]:
        return state.staging.get(posixpath.basename(self._directory), ())

    def _check_destinations(self, publish: Sequence[StagedFile], change: Change) -> None:
        destinations = [file.destination for file in publish]
        touched = {posixpath.dirname(path) for path in (*destinations, *(old.path for old in change.retire))}
        # Retired files are moved there, which must not fail after the record was created.
        touched |= {f"{self._workspace.path}/{KEPT}"} if self._keeps(change) else set()
        for directory in sorted(touched):
            if problem := self._store.writable_problem(directory, self._directory):
                raise CommitFailed(f"{problem}; nothing was changed")
        if self._store.is_local_disk or change.names_may_exist:
            for path in self._store.stat_many(destinations):
                raise CommitConflict(f"{path!r} exists already; nothing was changed")

    def _named(self, change: Change, naming: Naming) -> list[StagedFile]:
        # Random names are not checked where a listing costs a request.
        random = naming.scheme == "uuid" and not self._store.is_local_disk
        by_directory: defaultdict[str, list[StagedFile]] = defaultdict(list)
        named = list(change.named)
        kept = frozenset(named)
        for file in change.publish:
            if file not in kept:
                by_directory[posixpath.dirname(file.destination)].append(file)
        for directory, files in by_directory.items():
            names = naming.names(len(files), [] if random else self._store.list_names(directory))
            named += [
                StagedFile(file.path, f"{directory}/{name}") for file, name in zip(files, names, strict=True)
            ]
        return named

    def _keeps(self, change: Change) -> bool:
        """Whether the retired files are kept for some time."""
        return bool(change.retire and self._request.retention_seconds and self._workspace.keeps_history)

    def _record(self, number: int, change: Change, publish: Sequence[StagedFile], state: WorkspaceState) -> Record:
        root, work, store = self._workspace.root, self._workspace.path, self._store
        until = kept_until(self._request.retention_seconds) if self._keeps(change) else None
        parking = (
            f"{posixpath.basename(self._directory)}/old" if until is None else kept_folder(number, until, self._id)
        )
        try:
            self._inherit_access(publish, change.retire)
            swap = self._twin(publish, change.retire)
        except FileNotFoundError:
            self._check(change.retire)  # another writer has just removed a file: report that
            raise
        staged = {entry.path: entry for entry in self._staged(state)}
        if any(file.path not in staged for file in publish):
            staged = store.stat_many([file.path for file in publish])
        return Record(
            id=self._id,
            operation=self._request.operation,
            root=self._workspace.relative_root,
            dataset=self._identities(swap),
            publish=tuple(
                Publication(
                    relative(file.path, work),
                    relative(file.destination, root),
                    staged[file.path].fingerprint,
                    staged[file.path].size_bytes,
                )
                for file in publish
            ),
            retire=tuple(
                Retirement(relative(entry.path, root), entry.fingerprint, f"{parking}/{at}", entry.size_bytes)
                for at, entry in enumerate(change.retire)
            ),
            swap=swap,
            commit_id=self._request.commit_id,
            at=now(),
            duration_seconds=self._seconds(),
            engine=self._request.engine,
            author=author(),
            arguments=to_json_value(self._request.arguments),
            statistics=to_json_value(change.statistics or {}),
            kept_until=until,
            found=tuple(change.found),
        )

    def _twin(self, publish: Sequence[StagedFile], retire: Sequence[FileEntry]) -> Swap | None:
        if not self._swapping:
            return None
        folder = f"{self._directory}/twin"
        return build_twin(self._store, self._workspace.root, self._workspace.path, folder, publish, retire)

    def _identities(self, swap: Swap | None) -> tuple[str, ...]:
        """The identities of the dataset, before and after the commit."""
        store, root = self._store, self._workspace.root
        own = identity_of(store, root, None if self._listing is None else self._listing.everything)
        if not own and (swap is None or swap.directory):
            self._mark = self._mark or mark(store, root)
            own = frozenset({self._mark})
        after = store.birth(f"{self._workspace.path}/{swap.twin}") if swap and not swap.directory else None
        return tuple(sorted(own)) + (() if after is None else (after,))

    def _inherit_access(self, publish: Sequence[StagedFile], retire: Sequence[FileEntry]) -> None:
        """Give the new files the access rights of those that they replace."""
        new: defaultdict[str, list[str]] = defaultdict(list)
        for file in publish:
            new[posixpath.dirname(file.destination)].append(file.path)
        old: defaultdict[str, list[str]] = defaultdict(list)
        for entry in retire:
            old[posixpath.dirname(entry.path)].append(entry.path)
        everything = [entry.path for entry in retire]
        for directory, paths in new.items():
            self._store.inherit_access(paths, old[directory] or everything)

    def _create(self, number: int, record: Record, read_at: float) -> bool:
        """Create the record: the point of no return. False if another writer has the number."""
        self.unsettled = True  # until it is certain that there is no record
        try:
            if self._workspace.locks:
                # The record is durable only if its parent folders are.
                self._store.make_dirs(self._log.folder)
                self._store.sync([self._workspace.path, posixpath.dirname(self._workspace.path) or "/"])
            self._log.create(number, record)
        except FileExistsError:
            # A request that is repeated because its response was lost finds its own record.
            self.unsettled = self._owns(number, record)
            return self.unsettled
        except BaseException as error:
            self.unsettled = self._is_in_log(number, record, error)
            if self.unsettled:
                raise self._interrupted(error) from error
            if not isinstance(error, Exception) or isinstance(error, CommitFailed):
                raise
            raise self._failed(error) from error
        # If this process stalled for very long, records of that number may have existed and been removed.
        self.unsettled = time.time() - read_at < STALL_SECONDS / 2 or not self._is_void(number, record)
        return self.unsettled

    def _owns(self, number: int, record: Record) -> bool:
        try:
            return self._log.owns(number, record)
        except BaseException as error:
            raise self._log_unreachable(error) from error

    def _is_in_log(self, number: int, record: Record, failure: BaseException) -> bool:
        """Whether a record is in the log, after the request that creates it has failed.

        If it is not, it never will be. The request may still be in flight, so a sweep of this operation's staged
        files, which are not needed then, takes its number.
        """
        if self._workspace.locks or isinstance(failure, PermissionError):
            return self._owns(number, record)
        try:
            sweep(self._workspace, number, [record.staging])
        except FileExistsError:
            return self._owns(number, record)
        except BaseException as error:
            raise self._log_unreachable(error) from error
        return False

    def _log_unreachable(self, error: BaseException) -> CommitStateUnknown:
        return CommitStateUnknown(
            f"it is unknown whether the {self._request.operation} was committed: the log cannot be reached "
            f"({error!r}). No row is lost; run recover() and check the dataset before you run it again"
        )

    def _is_void(self, number: int, record: Record) -> bool:
        def is_void(view: LogView) -> bool:
            return number <= view.checkpoint and all(entry["id"] != record.id for entry in self._log.entries(view))

        if not self._workspace.read_log(is_void):
            return False
        self._store.remove(self._log.path(number))
        return True

    def _apply(self, number: int, record: Record, state: WorkspaceState) -> None:
        # Without locks, the listing before the commit contains all staged files of this operation.
        staged = None if self._workspace.locks else [entry.path for entry in self._staged(state)]
        applier = applier_of(self._workspace, number, record, first=True, staged=staged)
        try:
            applier.roll_forward()
            applier.clear()
            self.cleared = staged is not None
            outcome = self._log.settle(number, "complete", self._seconds())
        except BaseException as error:  # noqa: BLE001 - Ctrl-C too; `_give_up` always raises
            found = self._settled_by_others(number, error)
            if found is None:
                self._give_up(error, number, applier)
            outcome = found
        self.unsettled = False
        if outcome == "abandoned":
            raise CommitFailed(
                f"the {record.operation} was not committed: the dataset at {self._workspace.root!r} was moved or "
                f"removed meanwhile. The staged files are kept in {self._workspace.aside(record)!r}"
            )

    def _settled_by_others(self, number: int, error: BaseException) -> Outcome | None:
        """The outcome, if another process has settled the commit: then an error of this one does not matter."""
        if self._workspace.locks or not isinstance(error, Exception):
            return None
        try:
            return self._log.settle(number, "complete") if self._log.is_settled(number) else None
        except OSError:
            return None

    def _give_up(self, error: BaseException, number: int, applier: Applier) -> NoReturn:
        """Undo the commit after an error, if possible, and raise an error that states the result."""
        if not self._workspace.locks or applier.irreversible:
            raise self._interrupted(error) from error
        try:
            self._log.decide_undo(number, repr(error))
            applier.roll_back()
            self._log.settle(number, "undone")
        except BaseException as second:
            raise self._interrupted(error) from second
        self.unsettled = False
        if not isinstance(error, Exception) or isinstance(error, CommitFailed):
            raise error
        raise self._failed(error) from error

    def _tidy_up(self, record: Record, state: WorkspaceState) -> None:
        """Remove kept files that are expired, and staged files of dead writers; fold old records.

        The commit is final. Errors here are logged, and a later commit tries again.
        """
        keep = KEPT_RECORDS if self._workspace.keeps_history else 0
        others = {name: files for name, files in state.staging.items() if name != record.staging}
        try:
            free = self._store.is_local_disk or not self._store.shared
            if record.retire or free or (state.log.last + 1) % _EXPIRY_COMMITS == 0:
                # What is moved into the staging folder is removed with it, without the lock.
                KeptFiles(self._store, self._workspace.path).remove_expired(trash=self._directory)
            if self._log.is_long(state.log.last + 1 - state.log.checkpoint, keep):
                later = self._workspace.read_state()
                folded = self._log.fold(later.log, keep, alone=self._workspace.locks)
                if folded and not self._workspace.locks:
                    abort_dead_uploads(self._workspace, later)
            if not self._workspace.locks and dead_among(others):
                sweep_free(self._workspace, self._workspace.read_state())
        except (OSError, ParkettoError) as error:
            logger.warning("could not clean up %s yet: %s", self._workspace.path, error)

    def _seconds(self) -> float:
        return round(time.monotonic() - self._begun, 6)

    def _failed(self, error: BaseException) -> CommitFailed:
        return CommitFailed(f"the {self._request.operation} was not committed, nothing was changed: {error}")

    def _interrupted(self, error: BaseException) -> CommitStateUnknown:
        return CommitStateUnknown(
            f"the {self._request.operation} was interrupted while it was committed ({error!r}). No row is lost: "
            f"the log at {self._log.folder!r} records how to finish, and the next operation or recover() does it"
        )


def data_files(entries: Iterable[FileEntry], root: str) -> list[FileEntry]:
    """The data files among all files below a dataset."""
    return [entry for entry in entries if is_data_path(relative(entry.path, root))]

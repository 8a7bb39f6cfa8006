"""The workspace: the folder beside a dataset with its log and its staged files.

    .events.parketto/
        log/              one record per commit (see `log.py`)
        lock              held during a commit, on stores with reliable locks
        tx-<id>/          one per running operation
            new/          staged files
            old/          retired files that are not kept, parked until the commit is settled
            lease         touched regularly, if several processes stage files (see `lease.py`)
        kept/             retired files, for a retention time (see `retention.py`)
        tx-<id>.alive     locked, or touched regularly, while its process is alive
        index/            what footers say, so that they need not be read (see `footer_index.py`)
        changes/          tombstones of applied changes
        quarantine/       announcements of quarantined rows (see `quarantine.py`)

Staged and parked names do not end in `.parquet`, so that a glob over the parent folder does not match them.
Without a history, the folder is removed when it is empty.
"""

from __future__ import annotations

import contextlib
import hashlib
import posixpath
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from parketto.commit.log import Log, LogView, view_of
from parketto.commit.record import KEPT, Record
from parketto.errors import CommitFailed, InvalidArgument, ParkettoError, UntrustedWorkspace
from parketto.storage.locks import Lock, NoLock, held, wait_for
from parketto.storage.store import FileEntry, Store

LOCK_TIMEOUT_SECONDS = 600.0
_READING_ATTEMPTS = 10  # other writers may fold records while the log is read
TRANSACTION_PREFIX = "tx-"
_SUFFIX = ".parketto"
_MAX_NAME_BYTES = 255  # limit of common filesystems; longer workspace names are cut and hashed
_ALIVE = ".alive"
#: The name of a file in the folder of an operation that several processes take part in.
LEASE = "lease"
#: The folder of the footer index (see `footer_index.py`).
INDEX = "index"
#: The folder of announcements (see `quarantine.py`).
QUARANTINE = "quarantine"
#: Without a lock, a writer counts as dead when nothing of it was touched for this long. Heartbeats are much more
#: frequent (see `heartbeat.py`); the rest allows for clock skew.
DEAD_SECONDS = 900.0
# Sorts after all names in `changes/` and `kept/`, and before the lock, the log and the staging folders.
_AFTER_KEPT = f"{KEPT}0"
# A record below the dataset: a partition is used as a dataset, too, and has its own log.
_INNER_RECORD = re.compile(r"(?P<workspace>.*/\.[^/]+\.parketto)/log/[0-9]{20}(?P<kind>\.done|\.undo)?\.json")


Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class WorkspaceState:
    """The state of a workspace: its log and the staged files, from one listing where possible."""

    log: LogView
    staging: dict[str, list[FileEntry]] = field(default_factory=dict)


class Workspace:
    """The workspace of one dataset.

    Args:
        store: Where the dataset lives.
        root: The dataset's path.
        location: A folder to keep the workspace in; by default the dataset's parent folder.
        path: The path of an existing workspace.
        history: Whether to keep records that are no longer needed.
    """

    def __init__(
        self,
        store: Store,
        root: str,
        location: str | None = None,
        path: str | None = None,
        *,
        history: bool = True,
    ) -> None:
        self.store, self.root = store, root
        # The workspace of a partition is inside the dataset, so it must not be left there.
        self.keeps_history = history and "=" not in posixpath.basename(root)
        self.path = path or _workspace_path(store, root, location)
        self.log = Log(store, f"{self.path}/log")
        self._lock_path = f"{self.path}/lock"

    @property
    def locks(self) -> bool:
        """Whether a lock serializes commits; else only the exclusive creation of records does."""
        return self.store.has_locks or not self.store.creates_exclusively(self.path)

    @contextlib.contextmanager
    def locked(self, timeout: float = LOCK_TIMEOUT_SECONDS) -> Iterator[Lock]:
        """Hold the lock for a commit or a recovery; at the end, an empty workspace is removed."""
        if not self.locks:
            yield NoLock()
            return
        lock = self.lock(timeout)
        with held(lock):
            yield lock
            self._tidy()

    def lock(self, timeout: float = LOCK_TIMEOUT_SECONDS) -> Lock:
        """Acquire the lock; the caller releases it."""
        if not self.locks:
            return NoLock()
        self.make()
        try:
            return wait_for(lambda: self.store.try_lock(self._lock_path), timeout, self.path)
        except ParkettoError:
            raise
        except PermissionError as error:
            raise self._no_permission() from error

    def make(self) -> None:
        """Create the folder if it does not exist; an existing one must be trusted."""
        try:
            self.store.make_private_dirs(self.path, like=self.root)
        except ParkettoError:
            raise
        except PermissionError as error:
            raise self._no_permission() from error
        self.check_trusted()

    def _no_permission(self) -> CommitFailed:
        return CommitFailed(
            f"no permission to keep a log at {self.path!r}; nothing was changed. Make "
            f"{posixpath.dirname(self.path)!r} writable, or pass workspace='<a folder on the same filesystem>'"
        )

    def check_trusted(self) -> None:
        """Refuse a folder that another user may have prepared: every process that finds a record applies it."""
        folders = [self.path, self.log.folder, f"{self.path}/{KEPT}", f"{self.path}/{INDEX}"]
        problem = self.store.distrust(folders, like=self.root)
        if problem:
            raise UntrustedWorkspace(
                f"{problem}, so other users may have written its records; nothing was changed. If it is not "
                "yours, remove it; else give it to the owner of the dataset and let only that user write to it"
            )

    def exists(self) -> bool:
        """Whether there may be something to recover, or a running operation."""
        return self.store.is_dir(self.path)

    def read_state(self) -> WorkspaceState:
        """The current state of the log and the staged files, from one listing."""
        if self.store.is_local_disk:
            names = self.store.list_names(self.log.folder)
            mark = self.store.change_mark(self.log.folder) or self.store.change_mark(posixpath.dirname(self.path))
            if not names and not self.store.list_names(self.path):
                return WorkspaceState(LogView(mark=mark))
            self.check_trusted()
            staging: dict[str, list[FileEntry]] = {name: [] for name in self.transactions()}
            return WorkspaceState(view_of(dict.fromkeys(names, ""), mark), staging)
        logged: dict[str, str] = {}
        staging = {}
        for entry in self.store.list_files_after(self.path, _AFTER_KEPT):
            folder, _, name = entry.path[len(self.path) + 1 :].partition("/")
            if folder == "log":
                logged[name] = entry.fingerprint
            elif folder.startswith(TRANSACTION_PREFIX):
                staging.setdefault(folder.removesuffix(_ALIVE), []).append(entry)
        return WorkspaceState(view_of(logged), staging)

    def read_log(self, read: Callable[[LogView], Result], view: LogView | None = None) -> Result:
        """The result of reading the log; retries if other writers fold its records into a checkpoint meanwhile."""
        for _ in range(_READING_ATTEMPTS - 1):
            with contextlib.suppress(FileNotFoundError):
                return read(self.read_state().log if view is None else view)
            view = None
        return read(self.read_state().log)

    def outer_workspaces(self) -> list[Workspace]:
        """The workspaces of the parent folders, outermost first: each of them may be a dataset, too."""
        folders = []
        folder = posixpath.dirname(self.root)
        inner = posixpath.basename(self.root)
        while "/" in folder.strip("/") or (folder.startswith("/") and len(folder) > 1):
            # Where each check is a request, only the parents of partitions are checked.
            if self.store.is_local_disk or "=" in inner:
                folders.append(folder)
            inner = posixpath.basename(folder)
            folder = posixpath.dirname(folder)
        found = [Workspace(self.store, folder) for folder in reversed(folders)]
        return [workspace for workspace in found if workspace.exists()]

    def unsettled_inner_workspaces(self, listed: Iterable[FileEntry]) -> list[Workspace]:
        """The workspaces of partitions below this dataset that have an unsettled commit."""
        names: dict[str, dict[str, str]] = {}
        for entry in listed:
            if _SUFFIX in entry.path and (match := _INNER_RECORD.fullmatch(entry.path)):
                names.setdefault(match["workspace"], {})[posixpath.basename(entry.path)] = ""
        found = []
        for path, logged in names.items():
            view = view_of(logged)
            if view.done or path == self.path:
                continue
            try:
                record = Log(self.store, f"{path}/log").read(view.last)
            except FileNotFoundError:
                continue
            root = posixpath.normpath(posixpath.join(path, record.root))
            if root.startswith(f"{self.root}/"):  # the log may belong to an unrelated dataset
                found.append(Workspace(self.store, root, path=path))
        return found

    @property
    def relative_root(self) -> str:
        """The path of the dataset, relative to the workspace."""
        return posixpath.relpath(self.root, self.path)

    def aside(self, record: Record) -> str:
        """Where the files of an interrupted commit are kept once its dataset is no longer here."""
        return f"{self.path}.{record.id}"

    def set_aside(self, number: int, record: Record) -> str:
        """Move the files of an interrupted commit away, so that not even its owner continues it here."""
        aside = self.aside(record)
        if self.store.atomic_move:
            self.store.move(self.path, aside)
            return aside
        staged = [entry.path for entry in self.store.list_files(f"{self.path}/{record.staging}")]
        for path in (*staged, self.log.path(number)):
            with contextlib.suppress(FileNotFoundError):  # several processes may do this at once
                copy = f"{aside}{path.removeprefix(self.path)}"
                self.store.make_dirs(posixpath.dirname(copy))
                self.store.copy(path, copy)
        self.store.remove_many(staged)
        return aside

    def begin(self, identity: str) -> tuple[str, Lock]:
        """A folder for one operation, new or leased, and the lock that shows that it is alive."""
        self.make()
        directory = f"{self.path}/{TRANSACTION_PREFIX}{identity}"
        if not self.locks:
            return directory, NoLock()
        # The lock comes first: a process that finds the folder finds it locked.
        alive = wait_for(lambda: self.store.try_lock(f"{directory}{_ALIVE}"), LOCK_TIMEOUT_SECONDS, directory)
        try:
            self.store.make_dirs(f"{directory}/new")
        except BaseException:
            self.end(directory, alive)
            raise
        return directory, alive

    def end(self, directory: str, alive: Lock) -> None:
        """Remove the folder of an operation."""
        self.store.remove_tree(directory)
        if self.locks:
            self.store.remove(f"{directory}{_ALIVE}")
        alive.release()

    def discard(self, directory: str) -> None:
        """Remove the folder of an operation that several processes took part in."""
        self.end(directory, NoLock())
        self.tidy()

    def transactions(self) -> list[str]:
        """The folders of operations, dead or alive."""
        names = self.store.list_names(self.path)
        return sorted({name.removesuffix(_ALIVE) for name in names if name.startswith(TRANSACTION_PREFIX)})

    def sweep(self) -> int:
        """Remove the staged files of dead processes. The caller holds the lock and has recovered."""
        swept = 0
        # Small files are renamed when complete; a process that died before that has left a partial one.
        for folder in (self.log.folder, f"{self.path}/{QUARANTINE}", f"{self.path}/{INDEX}"):
            parts = [name for name in self.store.list_names(folder) if name.endswith(".tmp")]
            self.store.remove_many([f"{folder}/{name}" for name in parts])
        for name in self.each_dead():
            self.store.remove_tree(f"{self.path}/{name}")
            self.store.remove(f"{self.path}/{name}{_ALIVE}")
            swept += 1
        return swept

    def each_dead(self) -> Iterator[str]:
        """The folders of dead operations; each is locked until the next one is asked for. Only where locks are."""
        for name in self.transactions():
            directory = f"{self.path}/{name}"
            if self._is_leased(directory):
                continue
            alive = self.store.try_lock(f"{directory}{_ALIVE}")
            if alive is not None:
                with held(alive):
                    # Its process may have written the lease since, and then released the lock.
                    if not self._is_leased(directory):
                        yield name

    def _is_leased(self, directory: str) -> bool:
        lease = self.store.stat(f"{directory}/{LEASE}")
        return lease is not None and (lease.modified is None or lease.modified > time.time() - DEAD_SECONDS)

    def tidy(self) -> None:
        """Remove the folder if it contains only locks and no operation is running."""
        if not self.locks or self.store.list_names(self.log.folder) or self.transactions():
            return
        try:
            lock = self.store.try_lock(self._lock_path)
        except OSError:
            return
        if lock is not None:
            with held(lock):
                self._tidy()

    def _tidy(self) -> None:
        """Remove the folder if it is empty. The caller holds the lock."""
        if self.store.list_dirs(self.path) not in ([], ["log"]) or self.store.list_names(self.log.folder):
            return
        self.store.remove_empty_dir(self.log.folder)
        self.store.remove(self._lock_path)
        self.store.remove_empty_dir(self.path)


def _workspace_path(store: Store, root: str, location: str | None) -> str:
    parent, _, name = root.rpartition("/")
    if location is not None:
        folder = store.normalize(location)
        if folder == root or folder.startswith(f"{root}/"):
            raise InvalidArgument(f"workspace={location!r} is inside the dataset; choose a folder outside it")
        if (
            store.is_local_disk
            and store.is_dir(root)
            and store.is_dir(folder)
            and not store.same_device(root, folder)
        ):
            raise InvalidArgument(
                f"workspace={location!r} is on another device than the dataset, so files cannot be moved from it; "
                "choose a folder on the same filesystem"
            )
        # Several datasets may share the folder: the hash distinguishes those of the same name.
        return f"{folder}/{_folder_name(f'{name}-{hashlib.sha256(root.encode()).hexdigest()[:8]}')}"
    beside = "/" in root and bool(name)  # a whole bucket or disk has no parent folder
    if beside and store.is_local_disk and store.is_dir(root) and not store.same_device(root, parent or "/"):
        beside = False  # the dataset is a mount point: files cannot be moved across devices
    return f"{parent}/{_folder_name(name)}" if beside else f"{root.rstrip('/')}/.parketto"


def _folder_name(name: str) -> str:
    """The name of a workspace: that of the dataset, cut and hashed if it is too long."""
    whole = f".{name}{_SUFFIX}"
    if len(whole.encode(errors="surrogateescape")) <= _MAX_NAME_BYTES:
        return whole
    encoded = name.encode(errors="surrogateescape")
    cut = encoded[: _MAX_NAME_BYTES - 32].decode(errors="ignore")
    return f".{cut}-{hashlib.sha256(encoded).hexdigest()[:16]}{_SUFFIX}"

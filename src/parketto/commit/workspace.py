"""The folder beside a dataset that holds its journal, its lock and what is being staged.

    .events.parketto/
        lock              held while somebody commits, lists or recovers
        journal.json      there exactly while a commit is under way
        tx-<id>/          one per running operation
            alive         locked as long as its process lives
            new/          staged files
            old/          retired files, parked until the commit is through

Staged and parked names do not end in `.parquet`, so that not even a glob over the parent folder meets them.
The folder is removed again when nothing is left in it.
"""

from __future__ import annotations

import contextlib
import hashlib
import posixpath
from collections.abc import Iterable, Iterator

from parketto.commit.journal import Journal
from parketto.errors import CommitFailed, CommitStateUnknown, InvalidArgument
from parketto.storage.locks import Lock, held, wait_for
from parketto.storage.store import FileEntry, Store

LOCK_TIMEOUT_SECONDS = 600.0
_TRANSACTION_PREFIX = "tx-"
_SUFFIX = ".parketto"
_MAX_NAME_BYTES = 255  # what common filesystems take; a longer name of a workspace is cut and hashed


class Workspace:
    """The workspace of one dataset.

    Args:
        store: Where the dataset lives.
        root: The dataset's path.
        location: A folder to keep the workspace in; by default the dataset's parent folder.
        path: The workspace itself, where it was found.
    """

    def __init__(self, store: Store, root: str, location: str | None = None, path: str | None = None) -> None:
        self.store, self.root = store, root
        self.path = path or _workspace_path(store, root, location)
        self.journal_path = f"{self.path}/journal.json"
        self._lock_path = f"{self.path}/lock"

    @contextlib.contextmanager
    def locked(self, timeout: float = LOCK_TIMEOUT_SECONDS) -> Iterator[Lock]:
        """Be the only one who commits, lists or recovers; on the way out an empty workspace is removed."""
        try:
            self.store.make_private_dirs(self.path, like=self.root)
            lock = wait_for(lambda: self.store.try_lock(self._lock_path), timeout, self.path)
        except PermissionError as error:
            raise CommitFailed(
                f"no permission to keep a journal at {self.path!r}; nothing was changed. Make "
                f"{posixpath.dirname(self.path)!r} writable, or pass journal='<a folder on the same filesystem>'"
            ) from error
        with held(lock):
            yield lock
            self._tidy()

    def exists(self) -> bool:
        """Whether anything may be left to recover, or somebody is at work."""
        return self.store.is_dir(self.path)

    def has_journal(self) -> bool:
        """Whether a commit is under way or was interrupted."""
        return self.store.stat(self.journal_path) is not None

    def above(self) -> list[Workspace]:
        """The workspaces of the folders that this dataset lies in, outermost first: each may be a dataset, too."""
        folders = []
        folder = posixpath.dirname(self.root)
        while "/" in folder.strip("/") or (folder.startswith("/") and len(folder) > 1):
            folders.append(folder)
            folder = posixpath.dirname(folder)
        return [Workspace(self.store, folder) for folder in reversed(folders)]

    def below(self, listed: Iterable[FileEntry]) -> list[Workspace]:
        """The workspaces with a journal among the files below this dataset: of partitions taken as datasets."""
        found = []
        for entry in listed:
            folder, _, name = entry.path.rpartition("/")
            if name != "journal.json" or folder == self.path or not folder.endswith(_SUFFIX):
                continue
            try:
                journal = Journal.from_bytes(self.store.read(entry.path), entry.path)
            except FileNotFoundError:
                continue  # its owner has just finished
            root = posixpath.normpath(posixpath.join(folder, journal.root))
            if root.startswith(f"{self.root}/"):  # others may keep the journals of other datasets here
                found.append(Workspace(self.store, root, path=folder))
        return found

    @property
    def relative_root(self) -> str:
        """The dataset as seen from the workspace: still true when both are moved together."""
        return posixpath.relpath(self.root, self.path)

    def read_journal(self) -> Journal | None:
        """The commit that is under way, if there is one."""
        try:
            content = self.store.read(self.journal_path)
        except FileNotFoundError:
            return None
        journal = Journal.from_bytes(content, self.journal_path)
        if journal.root != self.relative_root:
            raise CommitStateUnknown(
                f"the journal {self.journal_path!r} belongs to another dataset, {journal.root!r} seen from there. "
                "Nothing was changed"
            )
        return journal

    def journal_may_name(self, identity: str) -> bool:
        """Whether there is a journal of that operation, or one that cannot be read."""
        try:
            journal = self.read_journal()
        except CommitStateUnknown:
            return True
        return journal is not None and journal.id == identity

    def write_journal(self, journal: Journal) -> None:
        """The point of no return: from here on recovery acts on the record."""
        # A journal is worth as much as the names that lead to it.
        self.store.sync([self.path, posixpath.dirname(self.path) or "/"])
        self.store.write(self.journal_path, journal.to_bytes())

    def clear_journal(self) -> None:
        """The commit is through."""
        self.store.remove(self.journal_path)
        self.store.sync([self.path])

    def new_transaction_directory(self, identity: str) -> tuple[str, Lock]:
        """A folder for one operation, and the lock that says it is alive. The caller holds the lock."""
        directory = f"{self.path}/{_TRANSACTION_PREFIX}{identity}"
        self.store.make_dirs(f"{directory}/new")
        alive = self.store.try_lock(f"{directory}/alive")
        assert alive is not None, "nobody else knows this name yet"
        return directory, alive

    def sweep(self) -> int:
        """Remove what dead processes have staged. The caller holds the lock and has recovered."""
        swept = 0
        for name in self.store.list_dirs(self.path):
            if name.startswith(_TRANSACTION_PREFIX):
                directory = f"{self.path}/{name}"
                alive = self.store.try_lock(f"{directory}/alive")
                if alive is not None:
                    with held(alive):
                        self.store.remove_tree(directory)
                        swept += 1
        return swept

    def _tidy(self) -> None:
        if self.store.list_dirs(self.path) or self.store.stat(self.journal_path) is not None:
            return
        self.store.remove(f"{self.journal_path}.tmp")
        self.store.remove(self._lock_path)
        self.store.remove_empty_dir(self.path)


def _workspace_path(store: Store, root: str, location: str | None) -> str:
    parent, _, name = root.rpartition("/")
    if location is not None:
        folder = store.normalize(location)
        if folder == root or folder.startswith(f"{root}/"):
            raise InvalidArgument(f"journal={location!r} lies inside the dataset; choose a folder outside of it")
        if store.is_dir(root) and store.is_dir(folder) and not store.same_device(root, folder):
            raise InvalidArgument(
                f"journal={location!r} is on another device than the dataset, so files cannot be moved from it; "
                "choose a folder on the same filesystem"
            )
        # Several datasets may share the folder: the hash keeps those of the same name apart.
        return f"{folder}/{_folder_name(f'{name}-{hashlib.sha256(root.encode()).hexdigest()[:8]}')}"
    beside = "/" in root and bool(name)  # a whole bucket or disk has nothing beside it
    if beside and store.is_dir(root) and not store.same_device(root, parent or "/"):
        beside = False  # the dataset is a mount point: nothing can be moved across
    return f"{parent}/{_folder_name(name)}" if beside else f"{root.rstrip('/')}/.parketto"


def _folder_name(name: str) -> str:
    """The name of a workspace: that of the dataset, unless it leaves no room for the suffix."""
    whole = f".{name}{_SUFFIX}"
    if len(whole.encode(errors="surrogateescape")) <= _MAX_NAME_BYTES:
        return whole
    encoded = name.encode(errors="surrogateescape")
    cut = encoded[: _MAX_NAME_BYTES - 32].decode(errors="ignore")
    return f".{cut}-{hashlib.sha256(encoded).hexdigest()[:16]}{_SUFFIX}"

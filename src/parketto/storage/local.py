"""The local disk as a store: atomic renames, fsync, directory swaps, and locks that the kernel releases."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import operator
import os
import shutil
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from stat import S_IMODE, S_ISDIR, S_ISGID
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa

from parketto.errors import UnreadableFile
from parketto.storage.birth import birth
from parketto.storage.exchange import exchange, exchange_problem, rename_to_free_name
from parketto.storage.locks import HAS_FLOCK, FileLock, Lock, make_dirs
from parketto.storage.mounts import existing_folder, mount_point, same_mount
from parketto.storage.store import FileEntry, Store, refuse_empty
from parketto.storage.tree import Tree, fingerprint, scan_tree
from parketto.storage.trust import distrust
from parketto.storage.walk import Enter
from parketto.storage.writeback import WritebackFile

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

# Errors for a path that does not exist, or cannot because its name is too long.
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG})
# Errors when others add or remove files in a folder that is being removed.
_CHANGING = frozenset({errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST})
_REMOVE_ATTEMPTS = 10
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
# Errors of filesystems without hard links; there, a reader may see a new file before it is complete.
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})
_DISK_THREADS = 8  # concurrent fsync or rmdir calls


class LocalStore(Store):
    """The local disk: atomic renames, fsync, and locks that the kernel releases."""

    atomic_move = True
    # Reading a cached footer is cheaper than a thread switch; cold or remote disks benefit from parallel reads.
    parallel_reads = 4
    often_cached = True
    is_local_disk = True
    has_locks = HAS_FLOCK
    whole_file_bytes = 0

    def __init__(self, fs: AbstractFileSystem | None = None) -> None:
        # Opened lazily: Spark's workers need no fsspec for the local disk.
        self._fs = fs

    def __reduce__(self) -> tuple[Any, ...]:
        ordinary = type(self._fs).__module__ == "fsspec.implementations.local" and not self._fs.storage_options
        return LocalStore, () if self._fs is None or ordinary else (self._fs,)

    @property
    def fs(self) -> AbstractFileSystem:
        if self._fs is None:
            from fsspec.implementations.local import LocalFileSystem

            self._fs = LocalFileSystem()
        return self._fs

    def list_files(self, root: str, enter: Enter | None = None) -> Iterator[FileEntry]:
        real_root = os.path.realpath(root)
        pending, linked = [root], {real_root}
        while pending:
            folder = pending.pop()
            for entry in _scan(folder):
                if not entry.is_dir():
                    yield from _listed(entry)
                elif enter is not None and not enter(entry.path[len(root) :].lstrip("/")):
                    continue
                elif not entry.is_symlink():
                    pending.append(entry.path)
                else:
                    # A link into the dataset itself would list files twice, or loop forever.
                    target = os.path.realpath(entry.path)
                    inside = os.path.commonpath([target, real_root]) == real_root
                    if not inside and target not in linked:
                        linked.add(target)
                        pending.append(entry.path)

    def list_dirs(self, path: str) -> list[str]:
        try:
            with os.scandir(path) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir())
        except FileNotFoundError:
            return []

    def list_names(self, path: str) -> list[str]:
        try:
            return os.listdir(path)
        except OSError as error:
            if error.errno not in _ABSENT:
                raise
            return []

    def stat(self, path: str) -> FileEntry | None:
        try:
            status = os.stat(path)
        except OSError as error:
            if error.errno not in _ABSENT:
                raise
            return None
        return None if S_ISDIR(status.st_mode) else _local_entry(path, status)

    def stat_moved(self, path: str, origin: str) -> FileEntry | None:
        try:
            # A relative link resolves differently in its new folder: follow it from the old one.
            target = os.path.join(os.path.dirname(origin), os.readlink(path))
        except OSError:  # not a link
            target = path
        found = self.stat(target)
        return None if found is None else dataclasses.replace(found, path=path)

    def stat_many(self, paths: Sequence[str]) -> dict[str, FileEntry]:
        found = {path: self.stat(path) for path in paths}
        return {path: entry for path, entry in found.items() if entry is not None}

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def read(self, path: str) -> bytes:
        # Only records and leases are read whole, and those are never links.
        with open(os.open(path, os.O_RDONLY | _NO_FOLLOW | os.O_CLOEXEC), "rb") as file:
            return file.read()

    def read_range(self, path: str, start: int, end: int, fingerprint: str = "") -> bytes:  # noqa: ARG002
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(end - start)

    def open_input(
        self,
        path: str,
        entry: FileEntry | None = None,  # noqa: ARG002
        tail: bytes = b"",  # noqa: ARG002
        block_bytes: int = 0,  # noqa: ARG002
    ) -> Any:
        return pa.OSFile(path, "rb")

    def open_output(self, path: str) -> IO[bytes]:
        return WritebackFile(path)

    def open_written(self, path: str) -> IO[bytes]:
        return open(path, "r+b")

    def write(self, path: str, content: bytes) -> None:
        temporary = f"{path}.tmp"
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        self.sync([os.path.dirname(path)])

    def create(self, path: str, content: bytes) -> None:
        refuse_empty(path, content)
        # A hard link publishes a complete, synced file, and fails if the name is taken.
        temporary = f"{path}.{uuid.uuid4().hex}.tmp"
        try:
            _write_new(temporary, content)
            try:
                os.link(temporary, path)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                _write_new(path, content)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
        self.sync([os.path.dirname(path)])

    def creates_exclusively(self, folder: str) -> bool:  # noqa: ARG002
        return True

    def copy(
        self,
        source: str,
        destination: str,
        size_bytes: int | None = None,  # noqa: ARG002
        fingerprint: str = "",
    ) -> None:
        if fingerprint:
            self._check_fingerprint(source, fingerprint)
        shutil.copy2(source, destination)

    def move(self, source: str, destination: str) -> None:
        os.rename(source, destination)

    def move_to_free_name(self, source: str, destination: str) -> None:
        rename_to_free_name(source, destination)

    def swap_problem(self, directory: str, folders: Iterable[str]) -> str | None:
        return exchange_problem(directory, folders)

    def make_dir_like(self, like: str, path: str) -> None:
        os.makedirs(path)
        status = os.stat(like)
        if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
            os.chown(path, status.st_uid, status.st_gid)
        shutil.copystat(like, path)

    def make_inheriting_dir(self, like: str, path: str) -> None:
        os.makedirs(path)
        status = os.stat(like)
        if status.st_mode & S_ISGID and status.st_gid != os.stat(path).st_gid:
            os.chown(path, -1, status.st_gid)
        shutil.copystat(like, path)
        os.chmod(path, S_IMODE(status.st_mode) | 0o700)

    def link(self, path: str, other: str) -> None:
        os.link(path, other, follow_symlinks=False)

    def swap(self, directory: str, other: str) -> None:
        exchange(directory, other)

    def tree(self, directory: str, limit: int | None = None) -> Tree:
        return scan_tree(directory, limit)

    def identity(self, path: str) -> str | None:
        try:
            status = os.lstat(path)
        except OSError as error:
            if error.errno not in _ABSENT:
                raise
            return None
        return str(status.st_ino) if S_ISDIR(status.st_mode) else fingerprint(status)

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_tree(self, path: str) -> None:
        # A cancelled task may still be writing files; it cannot once the folder is gone.
        for attempt in range(_REMOVE_ATTEMPTS):
            if not os.path.lexists(path):
                return
            if os.path.islink(path):
                os.unlink(path)
                return
            try:
                shutil.rmtree(path)
            except OSError as error:
                if error.errno not in _CHANGING or attempt == _REMOVE_ATTEMPTS - 1:
                    raise

    def remove_empty_dir(self, path: str) -> None:
        _remove_empty_dir(path)

    def remove_empty_dirs(self, paths: Iterable[str]) -> None:
        by_depth: defaultdict[int, list[str]] = defaultdict(list)
        for path in paths:
            by_depth[path.count("/")].append(path)
        for _, folders in sorted(by_depth.items(), reverse=True):
            _for_each(_remove_empty_dir, folders)

    def make_dirs(self, path: str) -> None:
        make_dirs(path)

    def make_private_dirs(self, path: str, like: str) -> None:
        if os.path.isdir(path):
            return
        self.make_dirs(path)
        if os.path.isdir(like):
            with contextlib.suppress(FileNotFoundError):  # another process may have removed it again
                os.chmod(path, os.stat(path).st_mode & os.stat(like).st_mode & 0o777 | 0o700)

    def sync(self, paths: Iterable[str]) -> None:
        _for_each(_sync, list(paths))

    def try_lock(self, path: str) -> Lock | None:
        return FileLock.attempt(path) if HAS_FLOCK else super().try_lock(path)

    def birth(self, path: str) -> str | None:
        try:
            return birth(path)
        except OSError as error:
            if error.errno not in _ABSENT:
                raise
            return None

    def is_own(self, path: str) -> bool:
        return not hasattr(os, "geteuid") or os.lstat(path).st_uid == os.geteuid()

    def has_links(self, root: str, directory: str) -> bool:
        parts = directory.split("/")
        return any(os.path.islink(os.path.join(root, *parts[:count])) for count in range(1, len(parts) + 1))

    def distrust(self, paths: Sequence[str], like: str) -> str | None:
        return next((problem for path in paths if (problem := distrust(path, like))), None)

    def writable_problem(self, directory: str, workspace: str) -> str | None:
        existing = existing_folder(directory)
        if not same_mount(existing, workspace):
            return (
                f"{directory!r} is on another mount, {mount_point(existing)!r}, than {workspace!r}, so files "
                "cannot be moved between them. Unmount it, or maintain it as a separate dataset"
            )
        if not os.path.isdir(directory):
            return _naming_problem(directory)
        return None if os.access(directory, os.W_OK | os.X_OK) else f"no permission to write in {directory!r}"

    def same_device(self, first: str, second: str) -> bool:
        return same_mount(first, second)

    def change_mark(self, directory: str) -> object:
        with contextlib.suppress(FileNotFoundError):
            return os.stat(directory or "/").st_mtime_ns
        return None

    def normalize(self, path: str) -> str:
        return os.path.realpath(super().normalize(path))

    def inherit_access(self, paths: Iterable[str], originals: Sequence[str]) -> None:
        found = [os.stat(original) for original in originals]
        if not found:
            return
        mode = functools.reduce(operator.and_, (status.st_mode & 0o777 for status in found))
        owner = (found[0].st_uid, found[0].st_gid)
        for path in paths:
            if (os.stat(path).st_uid, os.stat(path).st_gid) != owner and os.geteuid() == 0:
                os.chown(path, *owner)
            os.chmod(path, mode)

    def local_path(self, path: str) -> str | None:
        return path


def _write_new(path: str, content: bytes) -> None:
    """Write a file that must not exist yet, and fsync it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o666), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _for_each(action: Callable[[str], None], paths: Sequence[str]) -> None:
    """Run an I/O-bound action on every path, in parallel if there are many."""
    if len(paths) < _DISK_THREADS:
        for path in paths:
            action(path)
        return
    with ThreadPoolExecutor(_DISK_THREADS, thread_name_prefix="parketto-disk") as pool:
        for _ in pool.map(action, paths):
            pass


def _remove_empty_dir(path: str) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(path)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _scan(folder: str) -> list[os.DirEntry[str]]:
    """The entries of a folder, read again if the folder was swapped for another one meanwhile."""
    while True:
        try:
            before = os.stat(folder)
            with os.scandir(folder) as entries:
                found = list(entries)
            after = os.stat(folder)
        except FileNotFoundError:
            return []
        if (before.st_dev, before.st_ino) == (after.st_dev, after.st_ino):
            return found


def _listed(entry: os.DirEntry[str]) -> Iterator[FileEntry]:
    try:
        if not entry.is_file() and not entry.is_symlink() and entry.name.endswith(".parquet"):
            raise UnreadableFile(entry.path, "it is not a regular file")
        yield _local_entry(entry.path, entry.stat())
    except FileNotFoundError:
        if entry.is_symlink() and entry.name.endswith(".parquet"):
            raise UnreadableFile(entry.path, "it is a link to a file that does not exist") from None
        # Otherwise it was removed after the listing.


def _local_entry(path: str, status: os.stat_result) -> FileEntry:
    return FileEntry(path, status.st_size, fingerprint(status), status.st_mtime)


def _naming_problem(directory: str) -> str | None:
    """Why a missing directory cannot be created: a partition value may exceed the limit on name length."""
    missing: list[str] = []
    while not os.path.isdir(directory) and directory != os.path.dirname(directory):
        directory, name = os.path.split(directory)
        missing.append(name)
    longest = os.pathconf(directory, "PC_NAME_MAX") if hasattr(os, "pathconf") else 255
    for name in missing:
        if (length := len(os.fsencode(name))) > longest:
            return (
                f"the folder name {name[:40]!r}… is too long: it has {length} bytes, at most {longest} are allowed"
            )
    return None

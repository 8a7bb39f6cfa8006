"""All that Parketto does to files, over any fsspec filesystem; local disks get durability and real locks.

Nothing else in the package writes, moves or removes a file. `MUTATIONS` names the calls that change
something, so that tests can stop the world at each of them.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import glob
import operator
import os
import posixpath
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

import pyarrow as pa
from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from parketto.errors import InvalidArgument, UnreadableFile
from parketto.storage.exchange import exchange, exchangeable
from parketto.storage.locks import HAS_FLOCK, FileLock, LeaseLock, Lock, ProcessLock

MUTATIONS = (
    "write",
    "create",
    "open_output",
    "move",
    "copy",
    "link",
    "make_twin",
    "swap",
    "remove",
    "remove_tree",
    "remove_empty_dir",
    "make_dirs",
)

# How a listing tells that a file is still the same one: whichever of these the filesystem offers.
_VERSION_FIELDS = ("ETag", "etag", "md5Hash", "md5", "version_id", "LastModified", "last_modified", "mtime")


_STAT_ONE_BY_ONE = 16


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file in a listing. The fingerprint changes when the file is replaced or rewritten."""

    path: str
    size_bytes: int
    fingerprint: str


class Store:
    """Files on any fsspec filesystem, with nothing assumed: moves are copies, locks are leases."""

    #: Whether `move` is one atomic step that keeps the file's identity.
    atomic_move = False

    def __init__(self, fs: AbstractFileSystem) -> None:
        self.fs = fs

    def list_files(self, root: str) -> Iterator[FileEntry]:
        """Every file below the root, in one recursive listing."""
        for path, info in self.fs.find(root, detail=True).items():
            yield self._entry(path, info)

    def list_dirs(self, path: str) -> list[str]:
        """The names of the folders directly inside a folder; none if it does not exist."""
        try:
            found = self.fs.ls(path, detail=True)
        except FileNotFoundError:
            return []
        return sorted(posixpath.basename(info["name"]) for info in found if info["type"] == "directory")

    def stat(self, path: str) -> FileEntry | None:
        """The file as it is now, or None."""
        try:
            info = self.fs.info(path)
        except FileNotFoundError:
            return None
        return self._entry(path, info) if info["type"] == "file" else None

    def stat_many(self, paths: Sequence[str]) -> dict[str, FileEntry]:
        """Those of the files that exist. Many of them cost one listing, not a request each."""
        if len(paths) <= _STAT_ONE_BY_ONE:
            found = {path: self.stat(path) for path in paths}
            return {path: entry for path, entry in found.items() if entry is not None}
        wanted = set(paths)
        listed = self.list_files(posixpath.commonpath(posixpath.dirname(path) for path in paths))
        return {entry.path: entry for entry in listed if entry.path in wanted}

    def is_dir(self, path: str) -> bool:
        """Whether the path is a folder."""
        return bool(self.fs.isdir(path))

    def read(self, path: str) -> bytes:
        """All bytes of a (small) file."""
        return bytes(self.fs.cat_file(path))

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Some bytes of a file."""
        return bytes(self.fs.cat_file(path, start=start, end=end))

    def open_input(self, path: str) -> Any:
        """A seekable binary file to read from, private to the caller."""
        return self.fs.open(path, "rb")

    def open_output(self, path: str) -> IO[bytes]:
        """A binary file to write to, from its beginning."""
        return self.fs.open(path, "wb")  # type: ignore[no-any-return]

    def write(self, path: str, content: bytes) -> None:
        """Replace a small file. Atomic where the filesystem puts objects whole."""
        self.fs.pipe_file(path, content)

    def create(self, path: str, content: bytes) -> None:
        """Make a small file, or raise FileExistsError if it is there already."""
        if self.stat(path) is not None:
            raise FileExistsError(path)
        self.fs.pipe_file(path, content, mode="create")

    def copy(self, source: str, destination: str) -> None:
        """Copy one file, replacing the destination."""
        self.fs.cp_file(source, destination)

    def move(self, source: str, destination: str) -> None:
        """Move one file."""
        self.copy(source, destination)
        self.remove(source)

    def swappable(self, directories: Iterable[str]) -> set[str]:  # noqa: ARG002
        """Those directories that can be exchanged for others in one step, as far as can be told beforehand."""
        return set()

    def make_twin(self, directory: str, twin: str) -> None:
        """Make an empty folder with the owner and the permissions of another one."""
        raise NotImplementedError

    def link(self, path: str, other: str) -> None:
        """Give a file a second name."""
        raise NotImplementedError

    def swap(self, directory: str, twin: str) -> None:
        """Exchange two folders in one step."""
        raise NotImplementedError

    def identities(self, directory: str) -> dict[str, str]:
        """What is directly inside a folder, by name, each with what tells it from any other file."""
        raise NotImplementedError

    def identity(self, directory: str) -> str:
        """What tells a folder from any other folder."""
        raise NotImplementedError

    def remove(self, path: str) -> None:
        """Remove one file; it is no error if it is gone already."""
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm_file(path)

    def remove_tree(self, path: str) -> None:
        """Remove a folder and all in it, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            if not glob.has_magic(path):
                self.fs.rm(path, recursive=True)
                return
            # fsspec would take the name for a pattern, and find nothing.
            for name, info in sorted(self.fs.find(path, withdirs=True, detail=True).items(), reverse=True):
                if info["type"] == "directory":
                    self.remove_empty_dir(name)
                else:
                    self.fs.rm_file(name)
            self.remove_empty_dir(path)

    def remove_empty_dir(self, path: str) -> None:
        """Remove a folder if nothing is in it."""
        with contextlib.suppress(OSError):
            self.fs.rmdir(path)

    def make_dirs(self, path: str) -> None:
        """Make a folder and its parents."""
        self.fs.makedirs(path, exist_ok=True)

    def make_private_dirs(self, path: str, like: str) -> None:  # noqa: ARG002
        """Make a folder that lets nobody in who may not enter another one."""
        self.make_dirs(path)

    def sync(self, paths: Iterable[str]) -> None:
        """Make files or folders survive a power cut, where that is ours to do."""

    def try_lock(self, path: str) -> Lock | None:
        """The lock of that name, or None while somebody else holds it."""
        return LeaseLock.attempt(self, path)

    def writable_problem(self, directory: str) -> str | None:  # noqa: ARG002
        """Why files in a folder could not be added or removed, as far as can be told beforehand."""
        return None

    def same_device(self, first: str, second: str) -> bool:  # noqa: ARG002
        """Whether files can be moved between two folders without copying."""
        return True

    def normalize(self, path: str) -> str:
        """A path or URL of a folder in the form that this store uses."""
        return str(self.fs._strip_protocol(path)).rstrip("/") or "/"

    def inherit_access(self, paths: Iterable[str], originals: Sequence[str]) -> None:
        """Give new files the owner and at most the permissions that the originals have."""

    def local_path(self, path: str) -> str | None:  # noqa: ARG002
        """The path for programs that only know the local disk, or None."""
        return None

    def _entry(self, path: str, info: Mapping[str, Any]) -> FileEntry:
        version = next((info[field] for field in _VERSION_FIELDS if info.get(field)), info.get("created"))
        if isinstance(version, dt.datetime):  # a filesystem may list a number where it stats a datetime
            version = version.timestamp()
        return FileEntry(path, int(info["size"]), f"{info['size']}:{version}")


class MemoryStore(Store):
    """`memory://`: one process, one dictionary of files."""

    def read(self, path: str) -> bytes:
        return bytes(self.fs.cat_file(path))

    def open_input(self, path: str) -> Any:
        # The filesystem hands the same file object, with the same position, to all who open a path.
        return pa.BufferReader(self.read(path))

    def read_range(self, path: str, start: int, end: int) -> bytes:
        return self.read(path)[start:end]

    def try_lock(self, path: str) -> Lock | None:
        return ProcessLock.attempt(path)


class LocalStore(Store):
    """The local disk: atomic renames, fsync, and locks that the kernel frees."""

    atomic_move = True

    def list_files(self, root: str) -> Iterator[FileEntry]:
        real_root = os.path.realpath(root)
        pending, linked = [root], {real_root}
        while pending:
            folder = pending.pop()
            try:
                entries = os.scandir(folder)
            except FileNotFoundError:
                continue
            with entries:
                for entry in entries:
                    if not entry.is_dir():
                        yield from _listed(entry)
                    elif not entry.is_symlink():
                        pending.append(entry.path)
                    else:
                        # A link to a folder of the dataset itself would show its files twice, or never end.
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

    def stat(self, path: str) -> FileEntry | None:
        try:
            status = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return None if os.path.isdir(path) else _local_entry(path, status)

    def stat_many(self, paths: Sequence[str]) -> dict[str, FileEntry]:
        found = {path: self.stat(path) for path in paths}
        return {path: entry for path, entry in found.items() if entry is not None}

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def read(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def open_input(self, path: str) -> Any:
        return pa.OSFile(path, "rb")

    def open_output(self, path: str) -> IO[bytes]:
        return open(path, "wb")

    def write(self, path: str, content: bytes) -> None:
        temporary = f"{path}.tmp"
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        self.sync([os.path.dirname(path)])

    def create(self, path: str, content: bytes) -> None:
        with open(path, "xb") as file:
            file.write(content)

    def copy(self, source: str, destination: str) -> None:
        shutil.copy2(source, destination)

    def move(self, source: str, destination: str) -> None:
        os.rename(source, destination)

    def swappable(self, directories: Iterable[str]) -> set[str]:
        return exchangeable(directories)

    def make_twin(self, directory: str, twin: str) -> None:
        os.makedirs(twin)
        status = os.stat(directory)
        if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
            os.chown(twin, status.st_uid, status.st_gid)
        shutil.copystat(directory, twin)

    def link(self, path: str, other: str) -> None:
        os.link(path, other, follow_symlinks=False)

    def swap(self, directory: str, twin: str) -> None:
        exchange(directory, twin)

    def identities(self, directory: str) -> dict[str, str]:
        with os.scandir(directory) as entries:
            return {entry.name: str(entry.inode()) for entry in entries}

    def identity(self, directory: str) -> str:
        return str(os.stat(directory).st_ino)

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_tree(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def remove_empty_dir(self, path: str) -> None:
        with contextlib.suppress(OSError):
            os.rmdir(path)

    def make_dirs(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def make_private_dirs(self, path: str, like: str) -> None:
        if os.path.isdir(path):
            return
        self.make_dirs(path)
        if os.path.isdir(like):
            with contextlib.suppress(FileNotFoundError):  # another process may have tidied it away again
                os.chmod(path, os.stat(path).st_mode & os.stat(like).st_mode & 0o777 | 0o700)

    def sync(self, paths: Iterable[str]) -> None:
        for path in paths:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def try_lock(self, path: str) -> Lock | None:
        return FileLock.attempt(path) if HAS_FLOCK else super().try_lock(path)

    def writable_problem(self, directory: str) -> str | None:
        if not os.path.isdir(directory):
            return None
        return None if os.access(directory, os.W_OK | os.X_OK) else f"no permission to write in {directory!r}"

    def same_device(self, first: str, second: str) -> bool:
        return os.stat(first).st_dev == os.stat(second).st_dev

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


def _listed(entry: os.DirEntry[str]) -> Iterator[FileEntry]:
    try:
        if not entry.is_file() and not entry.is_symlink() and entry.name.endswith(".parquet"):
            raise UnreadableFile(entry.path, "it is no regular file")
        yield _local_entry(entry.path, entry.stat())
    except FileNotFoundError:
        if entry.is_symlink() and entry.name.endswith(".parquet"):
            raise UnreadableFile(entry.path, "it is a link to a file that does not exist") from None
        # Else it vanished between the listing and the look at it: then it is not there.


def _local_entry(path: str, status: os.stat_result) -> FileEntry:
    return FileEntry(path, status.st_size, f"{status.st_ino}:{status.st_size}:{status.st_mtime_ns}")


def open_store(
    path: str | os.PathLike[str],
    filesystem: AbstractFileSystem | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> tuple[Store, str]:
    """The store that a path lives in, and the path inside of it."""
    location = os.fspath(path)
    if not location:
        raise InvalidArgument("the dataset path is empty")
    if filesystem is not None and not isinstance(filesystem, AbstractFileSystem):
        raise InvalidArgument(
            f"filesystem must be an fsspec filesystem, not {type(filesystem).__name__}; "
            "see fsspec.filesystem('file'), ('s3'), ('memory'), ..."
        )
    if filesystem is None:
        # Only URLs are taken apart: a local folder may have any name, `a::b` too.
        filesystem, stripped = (
            url_to_fs(location, **(storage_options or {}))
            if "://" in location
            else (LocalFileSystem(), LocalFileSystem._strip_protocol(location))
        )
    else:
        stripped = filesystem._strip_protocol(location)
    kind = (
        LocalStore
        if isinstance(filesystem, LocalFileSystem)
        else MemoryStore
        if isinstance(filesystem, MemoryFileSystem)
        else Store
    )
    store = kind(filesystem)
    # Two names of one folder must find the same journal, hence one form of the path.
    return store, store.normalize(str(stripped))

"""All that Parketto does to files, over any fsspec filesystem; local disks get durability and real locks.

Nothing else in the package writes, moves or removes a file. `MUTATIONS` names the calls that change
something, so that tests can stop the world at each of them.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import glob
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa

from parketto.storage.locks import LeaseLock, Lock, ProcessLock

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

MUTATIONS = (
    "write",
    "create",
    "open_output",
    "open_written",
    "move",
    "move_to_free_name",
    "copy",
    "link",
    "make_twin",
    "make_inheriting_dir",
    "swap",
    "remove",
    "remove_tree",
    "remove_empty_dir",
    "remove_empty_dirs",
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
    #: How many small reads are worth having under way at once.
    parallel_reads = 32
    #: Whether what is read is often in memory already, so that to read is work rather than to wait.
    often_cached = False

    #: Whether other processes see the same files.
    shared = True

    def __init__(self, fs: AbstractFileSystem) -> None:
        self._fs: Any = fs
        _forget_listings(fs)

    @property
    def fs(self) -> AbstractFileSystem:
        """The filesystem."""
        return self._fs

    def __reduce__(self) -> tuple[Any, ...]:
        # On its way to another process: there the same kind of store is opened over the same filesystem.
        from parketto.storage.opening import store_over

        return store_over, (self.fs,)

    def same_files(self, other: Store) -> bool:
        """Whether a path names the same file in the other store."""
        return bool(self.fs == other.fs)

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

    def list_names(self, path: str) -> list[str]:
        """The names of all that is directly inside a folder; none if it does not exist."""
        try:
            return [posixpath.basename(name.rstrip("/")) for name in self.fs.ls(path, detail=False)]
        except FileNotFoundError:
            return []

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

    def open_written(self, path: str) -> IO[bytes]:
        """A binary file that a program has written to its `local_path`, to be read and changed."""
        raise NotImplementedError(f"no program can have written {path!r}: it is not on the local disk")

    def write(self, path: str, content: bytes) -> None:
        """Replace a small file. Atomic where the filesystem puts objects whole."""
        self.fs.pipe_file(path, content)

    def create(self, path: str, content: bytes) -> None:
        """Make a small file, or raise FileExistsError if it is there already."""
        if self.stat(path) is not None:
            raise FileExistsError(path)
        try:
            self.fs.pipe_file(path, content, mode="create")
        except OSError as error:
            if _was_overtaken(error):
                raise FileExistsError(path) from error
            raise

    def copy(self, source: str, destination: str) -> None:
        """Copy one file, replacing the destination."""
        self.fs.cp_file(source, destination)

    def move(self, source: str, destination: str) -> None:
        """Move one file."""
        self.copy(source, destination)
        self.remove(source)

    def move_to_free_name(self, source: str, destination: str) -> None:
        """Move a file or a folder in one step, or raise FileExistsError if the name is taken."""
        raise NotImplementedError

    def swap_problem(self, directory: str, folders: Iterable[str]) -> str | None:  # noqa: ARG002
        """Why a directory, with the folders in it, cannot be exchanged for another one, as far as can be told."""
        return "this storage cannot swap directories"

    def make_twin(self, directory: str, twin: str) -> None:
        """Make an empty folder with the owner and the permissions of another one."""
        raise NotImplementedError

    def make_inheriting_dir(self, like: str, path: str) -> None:
        """Make an empty folder in which new ones get the group and permissions that they would get in another."""
        raise NotImplementedError

    def link(self, path: str, other: str) -> None:
        """Give a file a second name."""
        raise NotImplementedError

    def swap(self, directory: str, twin: str) -> None:
        """Exchange two folders in one step."""
        raise NotImplementedError

    def tree(self, directory: str, limit: int | None = None) -> dict[str, dict[str, str]]:
        """The folders below a folder by relative paths ("" is itself), each with its files and their identities.

        A link is a file. Raises OSError if there are more than `limit` files and folders.
        """
        raise NotImplementedError

    def identity(self, path: str) -> str | None:
        """What tells a file (or link) from other files, or a folder from other folders; None if it is missing."""
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

    def remove_empty_dirs(self, paths: Iterable[str]) -> None:
        """Remove those of the folders in which nothing is but others of them, or nothing at all."""
        for path in sorted(paths, reverse=True):
            self.remove_empty_dir(path)

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

    def change_mark(self, directory: str) -> object:  # noqa: ARG002
        """Something that changes when names in a folder come or go, where that can be told cheaply."""
        return None

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


def _forget_listings(fs: AbstractFileSystem) -> None:
    """Have a filesystem ask anew each time: what it remembers of a folder hides what others do there.

    That goes for everybody who uses it: a memory would not notice what engines and other processes change, either.
    """
    from fsspec import AbstractFileSystem
    from fsspec.dircache import DirCache

    cache, inner = getattr(fs, "dircache", None), getattr(fs, "fs", None)
    if isinstance(cache, DirCache) and cache.use_listings_cache:
        cache.use_listings_cache = False
        cache.clear()
    if isinstance(inner, AbstractFileSystem):  # in front of another one, as caches are
        _forget_listings(inner)


def _was_overtaken(error: OSError) -> bool:
    """Whether a file was not made because somebody else made it first; not every service names the condition."""
    answer = getattr(error.__cause__, "response", None) or {}
    return answer.get("ResponseMetadata", {}).get("HTTPStatusCode") in (409, 412)


class MemoryStore(Store):
    """`memory://`: one process, one dictionary of files."""

    shared = False

    def read(self, path: str) -> bytes:
        return bytes(self.fs.cat_file(path))

    def open_input(self, path: str) -> Any:
        # The filesystem hands the same file object, with the same position, to all who open a path.
        return pa.BufferReader(self.read(path))

    def read_range(self, path: str, start: int, end: int) -> bytes:
        return self.read(path)[start:end]

    def try_lock(self, path: str) -> Lock | None:
        return ProcessLock.attempt(path)

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
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from parketto.storage.locks import LeaseLock, Lock

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
    "remove_many",
    "remove_tree",
    "remove_empty_dir",
    "remove_empty_dirs",
    "make_dirs",
    "abort_uploads",
    "abort_copies",
)

# How a listing tells that a file is still the same one: whichever of these the filesystem offers.
_VERSION_FIELDS = ("ETag", "etag", "md5Hash", "md5", "version_id", "LastModified", "last_modified", "mtime")
_TIME_FIELDS = ("LastModified", "last_modified", "mtime", "updated", "created")


HTTP_PRECONDITION_FAILED = 412


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file in a listing. The fingerprint changes when the file is replaced or rewritten."""

    path: str
    size_bytes: int
    fingerprint: str
    #: When it was last written, in seconds since 1970 by the clock of the storage, where that is known.
    modified: float | None = field(default=None, compare=False)


class Store:
    """Files on any fsspec filesystem, with nothing assumed: moves are copies, locks are leases."""

    #: Whether `move` is one atomic step that keeps the file's identity.
    atomic_move = False
    #: How many small reads are worth having under way at once.
    parallel_reads = 32
    #: Whether what is read is often in memory already, so that to read is work rather than to wait.
    often_cached = False

    #: Whether copies are requests to a server, which several can be under way of.
    parallel_copies = False
    #: Files up to this size are read as a whole along with their footer: another request would cost more.
    whole_file_bytes = 1024 * 1024
    #: How many files are looked at one by one; for more of them their folder is listed.
    stat_one_by_one = 16

    #: Whether there are folders; else names only look as if, and a folder is there if a listing shows files.
    has_folders = True
    #: Whether other processes see the same files.
    shared = True
    #: Whether a folder can be told from a later one of the same name (see `birth`).
    keeps_birth = False
    #: Whether a lock is surely free when its holder is dead, and surely held as long as it lives.
    has_locks = False

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

    def stat_moved(self, path: str, origin: str) -> FileEntry | None:  # noqa: ARG002
        """A file that was moved, with the fingerprint that it had at its origin, or None."""
        return self.stat(path)

    def stat_many(self, paths: Sequence[str]) -> dict[str, FileEntry]:
        """Those of the files that exist. Many of them cost one listing, not a request each."""
        if len(paths) <= self.stat_one_by_one:
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

    def read_range(self, path: str, start: int, end: int, fingerprint: str = "") -> bytes:  # noqa: ARG002
        """Some bytes of a file.

        Raises:
            FileNotFoundError: It is gone; or, where that costs nothing to find out, it is no longer the file with
                the fingerprint that is given.
        """
        return bytes(self.fs.cat_file(path, start=start, end=end))

    def read_end(self, path: str, length: int) -> tuple[FileEntry, bytes]:
        """A file as it is now, and its last bytes, all of them if it has fewer; on S3 that is one request.

        Raises:
            FileNotFoundError: There is no such file.
        """
        entry = self.stat(path)
        if entry is None:
            raise FileNotFoundError(path)
        end = entry.size_bytes
        return entry, self.read_range(path, max(0, end - length), end, entry.fingerprint)

    def open_input(
        self,
        path: str,
        entry: FileEntry | None = None,  # noqa: ARG002
        tail: bytes = b"",  # noqa: ARG002
        block_bytes: int = 0,  # noqa: ARG002
    ) -> Any:
        """A seekable binary file to read from, private to the caller.

        Args:
            path: The file.
            entry: The file as a listing has shown it, which can save a request.
            tail: The end of the file as far as it has been read, which can save another one.
            block_bytes: How much to read at once where reading is requests, if all of it is needed in order.
        """
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
        """Make a small file with some content, or raise FileExistsError if there is one.

        A reader finds all of the content or no file. Of several callers at the same time one succeeds, if
        `creates_exclusively` says so for the folder; elsewhere the last one may win. A request whose answer got
        lost is repeated, and can then meet its own success as FileExistsError: compare the contents before you
        believe that somebody else was first. Any other OSError says nothing about whether the file is there.

        Raises:
            ValueError: The content is empty; not every filesystem makes empty files conditionally.
        """
        refuse_empty(path, content)
        if self.stat(path) is not None:
            raise FileExistsError(path)
        try:
            self.fs.pipe_file(path, content, mode="create")
        except OSError as error:
            if http_status(error) != HTTP_PRECONDITION_FAILED:
                raise
            raise FileExistsError(path) from error

    def creates_exclusively(self, folder: str) -> bool:  # noqa: ARG002
        """Whether `create` in a folder lets one of several callers succeed; may try that out once per bucket."""
        return False  # fsspec's own way is to look first and write then

    def copy(self, source: str, destination: str, size_bytes: int | None = None) -> None:  # noqa: ARG002
        """Copy one file, replacing the destination. Where the size is known, that can save a request."""
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

    def remove_many(self, paths: Iterable[str]) -> None:
        """Remove files, in as few requests as the filesystem allows; it is no error if some are gone already."""
        for path in paths:
            self.remove(path)

    def abort_uploads(self, folder: str, older_than: float, spare: Iterable[str] = ()) -> int:  # noqa: ARG002
        """Discard uploads that were begun and never finished; how many they were.

        Only object stores keep such uploads, and charge for them.

        Args:
            folder: Where to look.
            older_than: When they were begun at the latest, in seconds since 1970, by the clock of the storage
                (`FileEntry.modified`).
            spare: Folders in which they are left alone.
        """
        return 0

    def abort_copies(self, destinations: Mapping[str, int]) -> None:
        """Have copies that somebody has begun come to nothing, where a copy is more than one request.

        Args:
            destinations: Where the copies were to be, and their sizes in bytes.
        """

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
        """Make a folder and its parents, where there are folders. Never makes a bucket."""
        self.fs.makedirs(path, exist_ok=True)

    def make_private_dirs(self, path: str, like: str) -> None:  # noqa: ARG002
        """Make a folder that lets nobody in who may not enter another one."""
        self.make_dirs(path)

    def sync(self, paths: Iterable[str]) -> None:
        """Make files or folders survive a power cut, where that is ours to do."""

    def try_lock(self, path: str) -> Lock | None:
        """The lock of that name, or None while somebody else holds it."""
        return LeaseLock.attempt(self, path)

    def birth(self, path: str) -> str | None:  # noqa: ARG002
        """What tells a folder from any other that is ever made, also after a move; None if it is not there."""
        return None

    def is_own(self, path: str) -> bool:  # noqa: ARG002
        """Whether this user has written a file, as far as the filesystem knows users."""
        return True

    def has_links(self, root: str, directory: str) -> bool:  # noqa: ARG002
        """Whether the way from a folder to one below it leads through a symbolic link."""
        return False

    def distrust(self, paths: Sequence[str], like: str) -> str | None:  # noqa: ARG002
        """Why a stranger may have written what is in some folders, compared with who may write in another one."""
        return None

    def writable_problem(self, directory: str, workspace: str) -> str | None:  # noqa: ARG002
        """Why files could not be moved between a folder and the workspace, as far as can be told beforehand."""
        return None

    def same_device(self, first: str, second: str) -> bool:  # noqa: ARG002
        """Whether files can be moved between two folders without copying."""
        return True

    def change_mark(self, directory: str) -> object:  # noqa: ARG002
        """Something that changes when names in a folder come or go, where that can be told cheaply."""
        return None

    def url(self, path: str) -> str:
        """A path as people know it: with the protocol, where that is part of the name."""
        return path

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
        written = next((info[name] for name in _TIME_FIELDS if info.get(name)), None)
        modified = written.timestamp() if isinstance(written, dt.datetime) else written
        return FileEntry(
            path,
            int(info["size"]),
            f"{info['size']}:{version}",
            float(modified) if isinstance(modified, int | float) else None,
        )


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


def http_status(error: BaseException) -> int | None:
    """The status with which a service answered a request, as far as the error of a filesystem tells."""
    for known in (error, error.__cause__):
        answer = getattr(known, "response", None)  # botocore; other libraries may keep something else there
        if isinstance(answer, Mapping):
            status: int | None = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
            return status
        for name in ("code", "status_code", "status"):
            if isinstance(found := getattr(known, name, None), int):
                return found
    return None


def refuse_empty(path: str, content: bytes) -> None:
    """A file that is made exclusively has content."""
    if not content:
        raise ValueError(f"no content for {path!r}: a file that is made exclusively must not be empty")

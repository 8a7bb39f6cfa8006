"""All file operations of Parketto, over any fsspec filesystem; local disks add durability and real locks.

Nothing else in the package writes, moves or removes a file. `MUTATIONS` names the calls that change
something, so that tests can interrupt each of them.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import glob
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from parketto.storage.listing_cache import disable_listing_cache
from parketto.storage.locks import LeaseLock, Lock
from parketto.storage.walk import Enter, keeps

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
    "make_dir_like",
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

# Fields of a listing that change when a file is rewritten: the first one that the filesystem offers is used.
_VERSION_FIELDS = ("ETag", "etag", "md5Hash", "md5", "version_id", "LastModified", "last_modified", "mtime")
_TIME_FIELDS = ("LastModified", "last_modified", "mtime", "updated", "created")


HTTP_PRECONDITION_FAILED = 412


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file in a listing. The fingerprint changes when the file is replaced or rewritten."""

    path: str
    size_bytes: int
    fingerprint: str
    #: The time of the last write in seconds since the epoch, by the storage's clock, where known.
    modified: float | None = field(default=None, compare=False)


class Store:
    """Files on any fsspec filesystem, with minimal assumptions: moves are copies, locks are leases."""

    #: Whether `move` is one atomic step that keeps the file's identity.
    atomic_move = False
    #: How many small reads to run concurrently.
    parallel_reads = 32
    #: Whether reads often hit the page cache, so that they take CPU time rather than waiting time.
    often_cached = False

    #: Whether copies are server requests that can run concurrently.
    parallel_copies = False
    #: Files up to this size are read whole along with their footer: another request would cost more.
    whole_file_bytes = 1024 * 1024
    #: Up to this many files are looked up one by one; for more, their folder is listed.
    stat_one_by_one = 16

    #: Whether folders exist. Otherwise they are name prefixes, and a folder exists if a listing shows files.
    has_folders = True
    #: Whether other processes see the same files.
    shared = True
    #: Whether files are on a local disk: `birth` identifies folders, and a listing costs no request.
    is_local_disk = False
    #: Whether a lock is guaranteed to be free once its holder is dead, and held as long as the holder lives.
    has_locks = False

    def __init__(self, fs: AbstractFileSystem) -> None:
        self._fs: Any = fs
        disable_listing_cache(fs)

    @property
    def fs(self) -> AbstractFileSystem:
        """The filesystem."""
        return self._fs

    def __reduce__(self) -> tuple[Any, ...]:
        # Unpickling opens the same kind of store over the same filesystem.
        from parketto.storage.opening import store_for

        return store_for, (self.fs,)

    def same_files(self, other: Store) -> bool:
        """Whether a path names the same file in the other store."""
        return bool(self.fs == other.fs)

    def list_files(self, root: str, enter: Enter | None = None) -> Iterator[FileEntry]:
        """Every file below the root, in one recursive listing.

        Args:
            root: The folder.
            enter: Which folders to list, by their paths below the root; None lists all.
        """
        for path, info in self.fs.find(root, detail=True).items():
            if enter is None or keeps(path[len(root) :].lstrip("/"), enter):
                yield self._entry(path, info)

    def list_files_after(self, root: str, name: str) -> Iterator[FileEntry]:
        """The files below the root whose relative paths sort after a name; on S3 others cost no request."""
        return (entry for entry in self.list_files(root) if entry.path > f"{root}/{name}")

    def list_dirs(self, path: str) -> list[str]:
        """The names of the folders directly inside a folder; empty if it does not exist."""
        try:
            found = self.fs.ls(path, detail=True)
        except FileNotFoundError:
            return []
        return sorted(posixpath.basename(info["name"]) for info in found if info["type"] == "directory")

    def list_names(self, path: str) -> list[str]:
        """All names directly inside a folder; empty if it does not exist."""
        try:
            return [posixpath.basename(name.rstrip("/")) for name in self.fs.ls(path, detail=False)]
        except FileNotFoundError:
            return []

    def stat(self, path: str) -> FileEntry | None:
        """The current entry of a file, or None."""
        try:
            info = self.fs.info(path)
        except FileNotFoundError:
            return None
        return self._entry(path, info) if info["type"] == "file" else None

    def stat_moved(self, path: str, origin: str) -> FileEntry | None:
        """The entry of a moved file, with the fingerprint that it had at its origin, or None."""
        raise NotImplementedError

    def stat_many(self, paths: Sequence[str]) -> dict[str, FileEntry]:
        """The entries of the files that exist. Many files cost one listing, not a request each."""
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
        """A byte range of a file.

        Raises:
            FileNotFoundError: It is gone or, where that check is free, no longer has the given fingerprint.
        """
        return bytes(self.fs.cat_file(path, start=start, end=end))

    def read_end(self, path: str, length: int) -> tuple[FileEntry, bytes]:
        """The current entry of a file, and its last bytes (all of them if it is shorter); one request on S3.

        Raises:
            FileNotFoundError: The file does not exist.
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
            entry: The entry from a listing, which can save a request.
            tail: The end of the file, if already read, which can save another request.
            block_bytes: The minimum request size on remote storage, for sequential reads of the whole file.
        """
        return self.fs.open(path, "rb")

    def open_output(self, path: str) -> IO[bytes]:
        """A binary file opened for writing, truncated."""
        return self.fs.open(path, "wb")  # type: ignore[no-any-return]

    def open_written(self, path: str) -> IO[bytes]:
        """A binary file that another program wrote to its `local_path`, opened for reading and writing."""
        raise NotImplementedError(f"{path!r} is not on the local disk, so no program can have written it")

    def write(self, path: str, content: bytes) -> None:
        """Replace a small file. Atomic where the filesystem writes objects as a whole."""
        self.fs.pipe_file(path, content)

    def create(self, path: str, content: bytes) -> None:
        """Create a small file with content, or raise FileExistsError if it exists.

        A reader sees the whole content or no file. Exactly one of several concurrent callers succeeds, if
        `creates_exclusively` is true for the folder; elsewhere the last one may win. A retry after a lost response
        can report its own success as FileExistsError: compare the contents before you conclude that another
        writer was first. After any other OSError the file may or may not exist.

        Raises:
            ValueError: The content is empty; not every filesystem can create empty files conditionally.
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
        """Whether `create` in a folder lets exactly one of several callers succeed; may probe once per bucket."""
        return False  # fsspec checks first and writes then, which is not atomic

    def copy(
        self,
        source: str,
        destination: str,
        size_bytes: int | None = None,  # noqa: ARG002
        fingerprint: str = "",
    ) -> None:
        """Copy one file, replacing the destination. A known size can save a request.

        Raises:
            FileNotFoundError: The source is gone, or no longer has the given fingerprint. S3 checks that in the
                same request; elsewhere it is checked before the copy.
        """
        if fingerprint:
            self._check_fingerprint(source, fingerprint)
        self.fs.cp_file(source, destination)

    def _check_fingerprint(self, path: str, fingerprint: str) -> None:
        entry = self.stat(path)
        if entry is None or entry.fingerprint != fingerprint:
            raise FileNotFoundError(f"{self.url(path)} is gone, or was replaced by another file")

    def move(self, source: str, destination: str) -> None:
        """Move one file."""
        self.copy(source, destination)
        self.remove(source)

    def move_to_free_name(self, source: str, destination: str) -> None:
        """Move a file or a folder in one step, or raise FileExistsError if the name is taken."""
        raise NotImplementedError

    def swap_problem(self, directory: str, folders: Iterable[str]) -> str | None:
        """Why a directory, with the folders in it, cannot be swapped for another one, as far as is known."""
        raise NotImplementedError

    def make_dir_like(self, like: str, path: str) -> None:
        """Create an empty folder with the owner and the permissions of another one."""
        raise NotImplementedError

    def make_inheriting_dir(self, like: str, path: str) -> None:
        """Create an empty folder whose subfolders get the group and permissions that they would get in `like`."""
        raise NotImplementedError

    def link(self, path: str, other: str) -> None:
        """Create a hard link to a file."""
        raise NotImplementedError

    def swap(self, directory: str, other: str) -> None:
        """Swap two folders in one step."""
        raise NotImplementedError

    def tree(self, directory: str, limit: int | None = None) -> dict[str, dict[str, str]]:
        """The folders of a tree by relative path ("" is the top), each with its files and their identities.

        A link counts as a file. Raises OSError if there are more than `limit` files and folders.
        """
        raise NotImplementedError

    def identity(self, path: str) -> str | None:
        """The identity of a file (or link) among files, or of a folder among folders; None if it is missing."""
        raise NotImplementedError

    def remove(self, path: str) -> None:
        """Remove one file, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm_file(path)

    def remove_many(self, paths: Iterable[str]) -> None:
        """Remove the files that exist, in as few requests as the filesystem allows."""
        for path in paths:
            self.remove(path)

    def abort_uploads(self, folder: str, older_than: float, spare: Iterable[str] = ()) -> int:  # noqa: ARG002
        """Abort unfinished uploads; returns their number.

        Only object stores keep such uploads, and charge for them.

        Args:
            folder: Where to look.
            older_than: The latest start, in seconds since the epoch, by the storage's clock
                (`FileEntry.modified`).
            spare: Folders whose uploads are kept.
        """
        return 0

    def abort_copies(self, destinations: Mapping[str, int]) -> None:
        """Abort unfinished copies, where a copy is more than one request.

        Args:
            destinations: The paths that were copied to, and their sizes in bytes.
        """

    def remove_tree(self, path: str) -> None:
        """Remove a folder and everything in it, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            if not glob.has_magic(path):
                self.fs.rm(path, recursive=True)
                return
            # fsspec would treat the name as a glob pattern, and find nothing.
            for name, info in sorted(self.fs.find(path, withdirs=True, detail=True).items(), reverse=True):
                if info["type"] == "directory":
                    self.remove_empty_dir(name)
                else:
                    self.fs.rm_file(name)
            self.remove_empty_dir(path)

    def remove_empty_dir(self, path: str) -> None:
        """Remove a folder if it is empty."""
        with contextlib.suppress(OSError):
            self.fs.rmdir(path)

    def remove_empty_dirs(self, paths: Iterable[str]) -> None:
        """Remove the folders that are empty, or contain only others of them that are removed."""
        raise NotImplementedError

    def make_dirs(self, path: str) -> None:
        """Create a folder and its parents, where folders exist. Never creates a bucket."""
        self.fs.makedirs(path, exist_ok=True)

    def make_private_dirs(self, path: str, like: str) -> None:  # noqa: ARG002
        """Create a folder that is accessible at most to those who can access `like`."""
        self.make_dirs(path)

    def sync(self, paths: Iterable[str]) -> None:
        """Make files or folders survive a power failure, where the store controls that."""

    def try_lock(self, path: str) -> Lock | None:
        """The lock of that name, or None while it is held elsewhere."""
        return LeaseLock.attempt(self, path)

    def birth(self, path: str) -> str | None:
        """An identity that no other folder ever gets, and that survives moves; None if there is none."""
        raise NotImplementedError

    def is_own(self, path: str) -> bool:  # noqa: ARG002
        """Whether this user owns a file, as far as the filesystem has owners."""
        return True

    def has_links(self, root: str, directory: str) -> bool:
        """Whether the path from a folder to one below it contains a symbolic link."""
        raise NotImplementedError

    def distrust(self, paths: Sequence[str], like: str) -> str | None:  # noqa: ARG002
        """Why another user may have written to some folders, given who may write to `like`; None if trusted."""
        return None

    def writable_problem(self, directory: str, workspace: str) -> str | None:  # noqa: ARG002
        """Why files cannot be moved between a folder and the workspace, as far as is known in advance."""
        return None

    def same_device(self, first: str, second: str) -> bool:
        """Whether files can be moved between two folders without copying."""
        raise NotImplementedError

    def change_mark(self, directory: str) -> object:
        """A value that changes when a folder gains or loses names; None if it does not exist."""
        raise NotImplementedError

    def url(self, path: str) -> str:
        """A path for display: with the protocol, where that is part of the name."""
        return path

    def normalize(self, path: str) -> str:
        """A folder's path or URL in this store's canonical form."""
        return str(self.fs._strip_protocol(path)).rstrip("/") or "/"

    def inherit_access(self, paths: Iterable[str], originals: Sequence[str]) -> None:
        """Give new files the owner and at most the permissions of the originals."""

    def local_path(self, path: str) -> str | None:  # noqa: ARG002
        """The path for programs that need a local file, or None."""
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


def http_status(error: BaseException) -> int | None:
    """The HTTP status of a failed request, if the filesystem's error contains it."""
    for known in (error, error.__cause__):
        answer = getattr(known, "response", None)  # botocore; other libraries may store something else there
        if isinstance(answer, Mapping):
            status: int | None = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
            return status
        for name in ("code", "status_code", "status"):
            if isinstance(found := getattr(known, name, None), int):
                return found
    return None


def refuse_empty(path: str, content: bytes) -> None:
    """Raise ValueError if a file is to be created exclusively without content."""
    if not content:
        raise ValueError(f"no content for {path!r}: a file that is created exclusively must not be empty")

"""discover: one listing and one footer read per file make a Snapshot, the only view the later steps have."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TypeVar

from parketto.errors import BucketNotFound, DatasetNotFound, NotADataset, quoted
from parketto.storage.footers import FileInfo, FooterReader, StatsColumns
from parketto.storage.hive import PartitionFilter, directory_matcher, is_data_path, partition_values
from parketto.storage.store import FileEntry, Store
from parketto.storage.table_formats import MARKER_FOLDERS, not_plain, refuse_table_formats

_LISTING_ATTEMPTS = 5
_FIRST_READ = 5
_MOSTLY_WORK = 0.6


Result = TypeVar("Result")


@dataclass(frozen=True)
class Snapshot:
    """The files of a dataset at one moment, in the order of their paths."""

    root: str
    files: tuple[FileInfo, ...]

    @cached_property
    def total_bytes(self) -> int:
        """The size of all files."""
        return sum(file.size_bytes for file in self.files)

    @cached_property
    def total_rows(self) -> int:
        """The rows of all files."""
        return sum(file.num_rows for file in self.files)


def relative(path: str, root: str) -> str:
    """A path below the dataset's root, without the root."""
    return path[len(root) :].lstrip("/")


def is_inside(path: str, folder: str) -> bool:
    """Whether a path is a folder or below it.

    >>> is_inside("/data/events/day=1", "/data/events"), is_inside("/data/events2", "/data/events")
    (True, False)
    """
    return f"{path.rstrip('/')}/".startswith(f"{folder.rstrip('/')}/")


def select_data_files(
    store: Store, root: str, found: Iterable[FileEntry], partition_filter: PartitionFilter = None
) -> list[FileEntry]:
    """Of listed files, the data files that match the filter; none is an error that says why there is none."""
    matches = directory_matcher(partition_filter)
    entries = list(found)
    paths = [relative(entry.path, root) for entry in entries]
    refuse_table_formats(paths, root)
    data = [entry for entry, path in zip(entries, paths, strict=True) if is_data_path(path)]
    if not data:
        _refuse_absent(store, root, bool(entries))
        raise DatasetNotFound(f"no dataset at {store.url(root)!r}: no parquet files were found under it")
    by_directory: dict[str, bool] = {}
    matching = []
    for entry in data:
        directory = _directory(entry, root)
        if directory not in by_directory:
            by_directory[directory] = matches(directory)
        if by_directory[directory]:
            matching.append(entry)
    if not matching:
        known = sorted({column for directory in by_directory for column, _ in partition_values(directory)})
        raise DatasetNotFound(
            f"no matching parquet files under {root!r}: partition_filter={partition_filter!r} excludes all "
            f"{len(data)} files; the dataset's partition columns: {quoted(known)}"
        )
    return sorted(matching, key=lambda entry: entry.path)


def refuse_file(store: Store, root: str) -> None:
    """A dataset is a directory: say so when the path is a file.

    Without folders a name can be both. There the listing tells (`select_data_files`), and this asks nothing.
    """
    if store.has_folders:
        _refuse_file(store, root)


def refuse_missing(store: Store, root: str) -> None:
    """There must be a directory to work on. Without folders the listing tells, and this asks nothing."""
    if store.has_folders:
        _refuse_absent(store, root, exists=False)


def refuse_foreign(store: Store, root: str, *, listed: bool = True) -> None:
    """What may be written to: no file, and no table format.

    Without folders a listing tells: if the caller makes one anyway (`listed`), this asks nothing.
    """
    if not store.has_folders and listed:
        return
    _refuse_file(store, root)
    for folder, kind in MARKER_FOLDERS.items():
        if store.is_dir(f"{root}/{folder}"):
            raise not_plain(root, kind, folder)


def _refuse_file(store: Store, root: str) -> None:
    if store.stat(root) is not None:
        raise NotADataset(f"{store.url(root)!r} is a file; expected the directory of a dataset")


def _refuse_absent(store: Store, root: str, exists: bool) -> None:
    """Where a listing shows no data: it may be a file, or not be there."""
    if not exists or store.has_folders:
        _refuse_file(store, root)
        if not (store.has_folders and store.is_dir(root)):
            raise DatasetNotFound(f"no dataset at {store.url(root)!r}: it does not exist")


def read_snapshot(
    store: Store,
    root: str,
    entries: Iterable[FileEntry],
    stats_columns: StatsColumns = (),
    *,
    keep_bytes: bool = True,
) -> Snapshot:
    """Read the footers of listed files, concurrently; of small remote ones also the rows (`FileInfo.tail`)."""
    reader = FooterReader(store, stats_columns, keep_bytes=keep_bytes)

    def read(entry: FileEntry) -> FileInfo:
        return reader.read(entry, partition_values(_directory(entry, root)))

    waiting = iter(entries)
    files: list[FileInfo] = []
    if store.often_cached:
        # Threads pay where reading means to wait; else they only take turns. The first files show which it is.
        shares = []
        for entry in islice(waiting, _FIRST_READ):
            started, worked = time.perf_counter(), time.thread_time()
            files.append(read(entry))
            shares.append((time.thread_time() - worked) / (time.perf_counter() - started))
        if shares and statistics.median(shares) > _MOSTLY_WORK:
            files += [read(entry) for entry in waiting]
    with ThreadPoolExecutor(store.parallel_reads, thread_name_prefix="parketto-footer") as pool:
        files += pool.map(read, waiting)
    return Snapshot(root, tuple(files))


def read_files(store: Store, paths: Sequence[str], stats_columns: StatsColumns = ()) -> list[FileInfo]:
    """Read the footers of files whose names are known, without a listing: on S3 one request each.

    Raises:
        FileNotFoundError: One of them is not there.
    """
    reader = FooterReader(store, stats_columns)
    if len(paths) <= 1 or store.often_cached:
        return [reader.read_path(path) for path in paths]
    with ThreadPoolExecutor(store.parallel_reads, thread_name_prefix="parketto-footer") as pool:
        return list(pool.map(reader.read_path, paths))


def discover(
    store: Store,
    root: str,
    list_files: Callable[[], Sequence[FileEntry]],
    stats_columns: StatsColumns = (),
) -> Snapshot:
    """List the data files and read their footers."""
    return while_files_vanish(root, lambda: read_snapshot(store, root, list_files(), stats_columns))


def while_files_vanish(root: str, read: Callable[[], Result]) -> Result:
    """Read from a listing; a file that vanishes was retired by somebody's commit: then all is read anew."""
    for attempt in range(1, _LISTING_ATTEMPTS + 1):
        try:
            return read()
        except (DatasetNotFound, BucketNotFound):
            raise
        except FileNotFoundError as error:
            if attempt == _LISTING_ATTEMPTS:
                raise DatasetNotFound(
                    f"files of {root!r} keep vanishing while it is read, the last one: {error}. "
                    "Other processes are rewriting it; run the operation again"
                ) from error
    raise AssertionError("unreachable")


def _directory(entry: FileEntry, root: str) -> str:
    return relative(entry.path, root).rpartition("/")[0]

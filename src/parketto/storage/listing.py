"""Which files below a path are data files of a dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from parketto.errors import BucketNotFound, DatasetNotFound, NotADataset, quoted
from parketto.storage.hive import PartitionFilter, directory_matcher, is_data_path, partition_values
from parketto.storage.store import FileEntry, Store
from parketto.storage.table_formats import MARKER_FOLDERS, not_plain, refuse_table_formats

_LISTING_ATTEMPTS = 5
Result = TypeVar("Result")


def relative(path: str, root: str) -> str:
    """A path below the dataset's root, without the root."""
    return path[len(root) :].lstrip("/")


def relative_paths(paths: Iterable[str], root: str) -> list[str]:
    """Paths below the dataset's root, without the root, sorted.

    >>> relative_paths(["/data/b.parquet", "/data/a.parquet"], "/data")
    ['a.parquet', 'b.parquet']
    """
    return sorted(relative(path, root) for path in paths)


def is_inside(path: str, folder: str) -> bool:
    """Whether a path is a folder or below it.

    >>> is_inside("/data/events/day=1", "/data/events"), is_inside("/data/events2", "/data/events")
    (True, False)
    """
    return f"{path.rstrip('/')}/".startswith(f"{folder.rstrip('/')}/")


def select_data_files(
    store: Store, root: str, found: Iterable[FileEntry], partition_filter: PartitionFilter = None
) -> list[FileEntry]:
    """The listed data files that match the filter, sorted by path; if there are none, the error says why."""
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
        directory = directory_of(entry, root)
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
    """Raise NotADataset if the path is a file.

    Without folders a name can be both. There the listing decides (`select_data_files`), and this makes no request.
    """
    if store.has_folders:
        _refuse_file(store, root)


def refuse_missing(store: Store, root: str) -> None:
    """Raise unless the path is a directory. Without folders the listing decides, and this makes no request."""
    if store.has_folders:
        _refuse_absent(store, root, exists=False)


def refuse_foreign(store: Store, root: str, *, listed: bool = True) -> None:
    """Raise if the path must not be written to: it is a file or a table format.

    Without folders a listing decides: if the caller makes one anyway (`listed`), this makes no request.
    """
    if not store.has_folders and listed:
        return
    _refuse_file(store, root)
    for folder, kind in MARKER_FOLDERS.items():
        if store.is_dir(f"{root}/{folder}"):
            raise not_plain(root, kind, folder)


def retry_on_vanished_files(root: str, read: Callable[[], Result]) -> Result:
    """The result of `read`, which is retried while files vanish because other commits remove them."""
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


def _refuse_file(store: Store, root: str) -> None:
    if store.stat(root) is not None:
        raise NotADataset(f"{store.url(root)!r} is a file; expected the directory of a dataset")


def _refuse_absent(store: Store, root: str, exists: bool) -> None:
    """Explain a listing without data: the path is a file, or does not exist."""
    if not exists or store.has_folders:
        _refuse_file(store, root)
        if not (store.has_folders and store.is_dir(root)):
            raise DatasetNotFound(f"no dataset at {store.url(root)!r}: it does not exist")


def directory_of(entry: FileEntry, root: str) -> str:
    """The directory of a file, relative to the dataset's root."""
    return relative(entry.path, root).rpartition("/")[0]

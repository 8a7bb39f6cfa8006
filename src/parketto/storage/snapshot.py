"""discover: one listing and one footer read per file make a Snapshot, the only view the later steps have."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from parketto.errors import DatasetNotFound, NotADataset, quoted
from parketto.storage.footers import FileInfo, read_footer
from parketto.storage.hive import PartitionFilter, directory_matcher, is_data_path, partition_values
from parketto.storage.store import FileEntry, Store

_FOOTER_THREADS = 16
_LISTING_ATTEMPTS = 5


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


def list_data_files(store: Store, root: str, partition_filter: PartitionFilter = None) -> list[FileEntry]:
    """The data files below a root that match the filter; none is an error that says why there is none."""
    matches = directory_matcher(partition_filter)
    refuse_file(store, root)
    data = [entry for entry in store.list_files(root) if is_data_path(relative(entry.path, root))]
    if not data:
        reason = "no parquet files were found under it" if store.is_dir(root) else "it does not exist"
        raise DatasetNotFound(f"no dataset at {root!r}: {reason}")
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
    """A dataset is a directory: say so when the path is a file."""
    if store.stat(root) is not None:
        raise NotADataset(f"{root!r} is a file; expected the directory of a dataset")


def read_snapshot(
    store: Store,
    root: str,
    entries: Iterable[FileEntry],
    stats_columns: Collection[str] | None = (),
) -> Snapshot:
    """Read the footers of listed files, concurrently."""

    def read(entry: FileEntry) -> FileInfo:
        return read_footer(store, entry, partition_values(_directory(entry, root)), stats_columns)

    with ThreadPoolExecutor(_FOOTER_THREADS, thread_name_prefix="parketto-footer") as pool:
        files = list(pool.map(read, entries))
    return Snapshot(root, tuple(_share_schemas(files)))


def discover(
    store: Store,
    root: str,
    partition_filter: PartitionFilter = None,
    stats_columns: Collection[str] | None = (),
    list_files: Callable[[], Sequence[FileEntry]] | None = None,
) -> Snapshot:
    """List the data files and read their footers.

    A file that vanishes in between was retired by somebody's commit: then the listing is taken anew.
    `list_files` replaces the listing, for callers that take it under a lock.
    """
    listing = list_files or (lambda: list_data_files(store, root, partition_filter))
    for attempt in range(1, _LISTING_ATTEMPTS + 1):
        try:
            return read_snapshot(store, root, listing(), stats_columns)
        except DatasetNotFound:
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


def _share_schemas(files: list[FileInfo]) -> Iterable[FileInfo]:
    # Thousands of files with one schema should hold one schema, and comparing it should be comparing `is`.
    schemas: dict[bytes, pa.Schema] = {}
    metadata: dict[tuple[tuple[bytes, bytes], ...], dict[bytes, bytes]] = {}
    for file in files:
        pairs = dict(file.metadata or {})
        assert file.schema is not None, "a footer always has a schema"
        yield dataclasses.replace(
            file,
            # Serialised, because equality of Arrow schemas overlooks metadata.
            schema=schemas.setdefault(file.schema.serialize().to_pybytes(), file.schema),
            metadata=metadata.setdefault(tuple(pairs.items()), pairs),
        )

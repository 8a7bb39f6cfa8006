"""Snapshots: one listing and one footer read per file, the only view of a dataset that later steps have."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import TypeVar

import pyarrow as pa

from parketto.display import counted, readable_bytes
from parketto.errors import UnreadableFile
from parketto.parquet.bounded_columns import StatsColumns
from parketto.parquet.dataset_schema import unified
from parketto.parquet.file_info import FileInfo, FooterReader
from parketto.storage.hive import partition_values
from parketto.storage.listing import directory_of, retry_on_vanished_files
from parketto.storage.store import FileEntry, Store

_PROBE_FILES = 5  # read in this thread, to measure their share of CPU time
_MAX_CPU_SHARE = 0.6  # above this, threads only wait for the interpreter lock
_BATCH_FILES = 2048  # footers in memory at once, where they are read one after another

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class RuledOut:
    """Files that are listed, but not read.

    Attributes:
        files: Their number.
        rows: The number of their rows.
        listed: The paths of all listed files.
        folders: For each folder, a file with the bounds of partition columns over all of its files.
    """

    files: int = 0
    rows: int = 0
    listed: Sequence[str] = ()
    folders: Sequence[FileInfo] = ()


@dataclass(frozen=True)
class Snapshot:
    """The files of a dataset at one moment, ordered by path."""

    root: str
    files: tuple[FileInfo, ...]
    #: The columns that differ between the files, if these are presented in one schema.
    reconciled_columns: tuple[str, ...] = ()
    #: Whether these are all files. Else a condition has ruled out folders, which were not listed.
    complete: bool = True
    #: The files of these folders whose footers were not read, because the footer index has ruled them out.
    ruled_out: RuledOut | None = None

    def __repr__(self) -> str:
        files, rows = counted(len(self.files), "file"), counted(self.total_rows, "row")
        return f"<Snapshot of {self.root!r}: {files}, {rows}, {readable_bytes(self.total_bytes)}>"

    def unified(self, sample: Sequence[FileInfo] = ()) -> Snapshot:
        """The same files, presented in the schema of the dataset.

        Args:
            sample: Further files of the dataset, if these are not all.
        """
        found = unified([*(file.stored for file in sample), *self.files])
        return replace(self, files=found.files[len(sample) :], reconciled_columns=found.reconciled)

    def with_path_types(self, types: Mapping[str, pa.DataType]) -> Snapshot:
        """The same files, with the types of partition columns that the paths of all files imply."""
        files = tuple(replace(file, path_types=types) for file in self.files)
        return replace(self, files=files)

    @cached_property
    def total_bytes(self) -> int:
        """The total size of the files."""
        return sum(file.size_bytes for file in self.files)

    @cached_property
    def total_rows(self) -> int:
        """The total number of rows."""
        return sum(file.num_rows for file in self.files)


def read_snapshot(
    store: Store,
    root: str,
    entries: Iterable[FileEntry],
    stats_columns: StatsColumns = (),
    *,
    keep_bytes: bool = True,
) -> Snapshot:
    """Read the footers of listed files concurrently, and small remote files whole (`FileInfo.tail`)."""
    reader = FooterReader(store, stats_columns, keep_bytes=keep_bytes)

    def read(entry: FileEntry) -> FileInfo:
        return reader.read(entry, partition_values(directory_of(entry, root)))

    return Snapshot(root, tuple(_concurrently(store, read, entries)))


def read_footers(
    store: Store, root: str, entries: Sequence[FileEntry], stats_columns: StatsColumns = ()
) -> Iterator[FileInfo | UnreadableFile]:
    """The footers of listed files one after another, in bounded memory; an unreadable one gives its error.

    Files of one batch share the objects that describe equal schemas. Those of another batch have their own.
    """
    for start in range(0, len(entries), _BATCH_FILES):
        reader = FooterReader(store, stats_columns, keep_bytes=False)

        def read(entry: FileEntry, reader: FooterReader = reader) -> FileInfo | UnreadableFile:
            try:
                return reader.read(entry, partition_values(directory_of(entry, root)))
            except UnreadableFile as error:
                return error

        yield from _concurrently(store, read, entries[start : start + _BATCH_FILES])


def _concurrently(store: Store, read: Callable[[FileEntry], Result], entries: Iterable[FileEntry]) -> list[Result]:
    """What is read from files, in their order: in threads where reads wait for I/O."""
    from statistics import median  # here, because its import is slow

    remaining = iter(entries)
    found: list[Result] = []
    if store.often_cached:
        # Threads help only where reads wait for I/O. The first files show whether they do.
        shares = []
        for entry in islice(remaining, _PROBE_FILES):
            started, cpu_started = time.perf_counter(), time.thread_time()
            found.append(read(entry))
            shares.append((time.thread_time() - cpu_started) / (time.perf_counter() - started))
        if shares and median(shares) > _MAX_CPU_SHARE:
            found += [read(entry) for entry in remaining]
    with ThreadPoolExecutor(store.parallel_reads, thread_name_prefix="parketto-footer") as pool:
        found += pool.map(read, remaining)
    return found


def read_files(store: Store, paths: Sequence[str], stats_columns: StatsColumns = ()) -> list[FileInfo]:
    """Read the footers of files by path, without a listing: on S3 one request each.

    Raises:
        FileNotFoundError: One of the files does not exist.
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
    return retry_on_vanished_files(root, lambda: read_snapshot(store, root, list_files(), stats_columns))

"""What a Parquet footer says, read once per file and kept as plain data."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import posixpath
import struct
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from parketto.errors import UnreadableFile
from parketto.storage.clustering import Clustering, recorded
from parketto.storage.hive import PartitionValues
from parketto.storage.local import LocalStore
from parketto.storage.store import FileEntry, Store

# Most footers fit into this many bytes: then one ranged read is all that a remote file costs.
_TAIL_BYTES = 64 * 1024
_LAYOUTS_COMPARED = 16
_TEMPORAL = frozenset({"DATE", "TIME", "TIMESTAMP"})
_TEXT = frozenset({"STRING", "ENUM", "JSON"})
#: The older form of LZ4, which Spark writes when asked for "lz4". Arrow reads it, but never writes it.
HADOOP_LZ4 = "lz4_hadoop"
# Of the codecs that Arrow reads, that one alone has no name in PyArrow.
_CODEC_NAMES = {"uncompressed": "none", "unknown": HADOOP_LZ4}


class ColumnStats(NamedTuple):
    """Bounds of a column in a row group or a file. None means that the writer did not say.

    Dates and times are the integers that the file holds (days, or units of the column's type): Python's own
    types can hold neither nanoseconds nor every year.
    """

    min: Any
    max: Any
    null_count: int | None


@dataclass(frozen=True, slots=True)
class RowGroupInfo:
    """A row group: its rows, its bytes before compression, the order it declares, its column bounds, its codec."""

    num_rows: int
    total_byte_size: int
    sorted_by: tuple[str, ...] = ()
    columns: Mapping[str, ColumnStats] = field(default_factory=dict)
    codec: str | None = None


class PhysicalTraits(NamedTuple):
    """How values are laid out where Arrow's types do not tell, so that a rewrite keeps it.

    `leaves` describes every leaf column in Parquet's own terms; a rewritten file must have the same.
    """

    int96_timestamps: bool = False
    integer_decimals: bool = False
    utc_times: bool = False
    leaves: tuple[str, ...] = ()

    @property
    def has_dates(self) -> bool:
        """Whether there are dates or timestamps, in whatever form."""
        return any(leaf.startswith(("Date ", "Timestamp ")) or " INT96 " in leaf for leaf in self.leaves)


STANDARD_LAYOUT = PhysicalTraits()


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A data file: what a listing and a footer tell about it.

    Only the first three fields are needed for planning by size and rows:

    >>> FileInfo("events/day=1/a.parquet", size_bytes=1000, num_rows=10).directory
    'events/day=1'
    """

    path: str
    size_bytes: int
    num_rows: int
    directory: str = ""
    partition: PartitionValues = ()
    fingerprint: str = ""
    schema: pa.Schema | None = None
    metadata: Mapping[bytes, bytes] | None = None
    codec: str | None = None
    traits: PhysicalTraits = STANDARD_LAYOUT
    row_groups: tuple[RowGroupInfo, ...] = ()
    created_by: str = ""

    def __post_init__(self) -> None:
        if not self.directory:
            object.__setattr__(self, "directory", posixpath.dirname(self.path))

    @property
    def entry(self) -> FileEntry:
        """The file as a listing shows it."""
        return FileEntry(self.path, self.size_bytes, self.fingerprint)

    @property
    def codecs(self) -> frozenset[str | None]:
        """The codecs of all row groups: a file of copied ones may have several."""
        return frozenset((self.codec, *(group.codec for group in self.row_groups)))

    @property
    def clustering(self) -> Clustering | None:
        """How the file was laid out. Its record alone does not tell: programs copy metadata along with rows."""
        found = recorded(self.metadata)
        if found is None:
            return None
        width = len(found.columns)
        declared = sum(group.sorted_by[:width] == found.columns for group in self.row_groups)
        return found if 2 * declared >= len(self.row_groups) else None

    def column_stats(self, column: str) -> ColumnStats:
        """The bounds of a column over the whole file; None where any row group does not say."""
        found, bounded = [], []
        for group in self.row_groups:
            if group.num_rows:
                found.append(group.columns.get(column, _UNKNOWN))
                # A row group of NULLs has no bounds, and does not widen those of its file.
                if found[-1].null_count != group.num_rows:
                    bounded.append(found[-1])
        known = bool(bounded) and all(stats.min is not None for stats in bounded)
        counts = [stats.null_count for stats in found]
        return ColumnStats(
            min(stats.min for stats in bounded) if known else None,
            max(stats.max for stats in bounded) if known else None,
            None if None in counts else sum(count or 0 for count in counts),
        )


_UNKNOWN = ColumnStats(None, None, None)


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Turn what Arrow says about unreadable bytes into an error that names the file."""
    try:
        yield
    except (FileNotFoundError, PermissionError):
        raise
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError, UnicodeEncodeError) as error:
        raise UnreadableFile(path, error) from error


@dataclass(frozen=True)
class MentionedColumns:
    """Those columns that a text names: a condition in whatever language, before anybody has understood it.

    It may be more than the condition needs. If a name is written in a way that hides it, its bounds are not known.

    >>> "price" in MentionedColumns("Price > 3"), "size" in MentionedColumns("Price > 3")
    (True, False)
    """

    text: str

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.casefold() in self.text.casefold()


@dataclass(frozen=True)
class _EitherColumns:
    one: Container[str]
    other: Container[str]

    def __contains__(self, name: object) -> bool:
        return name in self.one or name in self.other


#: The columns whose bounds are kept; None keeps all.
StatsColumns: TypeAlias = Container[str] | None


class FooterReader:
    """Reads the footers of a dataset's files, from several threads.

    Thousands of files mostly share one schema: what follows from it is worked out once, and they hold the same
    objects.

    Args:
        store: Where the files are, if they are to be opened here.
        stats_columns: The columns whose bounds are kept; None keeps all.
    """

    def __init__(self, store: Store | None, stats_columns: StatsColumns = ()) -> None:
        self._store, self._stats_columns = store, stats_columns
        self._layouts: list[_Layout] = []
        self._schemas: dict[tuple[int, tuple[tuple[bytes, bytes], ...]], tuple[pa.Schema, dict[bytes, bytes]]] = {}

    def read(self, entry: FileEntry, partition: PartitionValues = ()) -> FileInfo:
        """Read one footer."""
        assert self._store is not None, "files are opened in a store"
        with naming(entry.path), _footer_source(self._store, entry) as source:
            return self.describe(entry, source, partition)

    def describe(self, entry: FileEntry, source: Any, partition: PartitionValues = ()) -> FileInfo:
        """What the footer of an open file says."""
        footer = pq.read_metadata(source)
        _refuse_encrypted(entry, footer, source)
        layout = self._layout(footer)
        schema, metadata = self._schema(layout, footer, source)
        row_groups = _row_groups(footer, layout)
        return FileInfo(
            path=entry.path,
            size_bytes=entry.size_bytes,
            num_rows=footer.num_rows,
            partition=partition,
            fingerprint=entry.fingerprint,
            schema=schema,
            metadata=metadata,
            codec=row_groups[0].codec if row_groups else None,
            traits=layout.traits,
            row_groups=row_groups,
            created_by=footer.created_by or "",
        )

    def _layout(self, footer: pq.FileMetaData) -> _Layout:
        schema, wanted = footer.schema, self._stats_columns
        # How rows are laid out is of interest together with where it got them: by the bounds of these columns.
        if wanted is not None and (clustering := recorded(footer.metadata)) is not None:
            wanted = _EitherColumns(wanted, clustering.columns)
        # The newest first, and not too many: looking for one must stay cheaper than working it out.
        for known in self._layouts[: -_LAYOUTS_COMPARED - 1 : -1]:
            if known.schema.equals(schema) and known.stats_columns == wanted:
                return known
        layout = _Layout.of(schema, wanted)
        self._layouts.append(layout)
        return layout

    def _schema(
        self, layout: _Layout, footer: pq.FileMetaData, source: Any
    ) -> tuple[pa.Schema, dict[bytes, bytes]]:
        metadata = footer.metadata or {}
        key = (id(layout), tuple(metadata.items()))
        if key not in self._schemas:
            source.seek(0)
            # Not the footer's own idea of it: only the reader's restores UUID, JSON and other extension types.
            self._schemas[key] = (pq.ParquetFile(source, metadata=footer).schema_arrow, metadata)
        return self._schemas[key]


def describe(file: pa.Buffer) -> FileInfo:
    """What the footer of a file in memory says, the bounds of all columns included."""
    return FooterReader(None, stats_columns=None).describe(FileEntry("", file.size, ""), pa.BufferReader(file))


@dataclass(frozen=True, slots=True)
class _Layout:
    """What follows from a file's Parquet schema alone."""

    schema: pq.ParquetSchema
    traits: PhysicalTraits
    #: Positions of top-level columns among the leaves; and those whose bounds are wanted.
    names: Mapping[int, str]
    wanted: Mapping[str, int]
    stats_columns: StatsColumns

    @classmethod
    def of(cls, schema: pq.ParquetSchema, stats_columns: StatsColumns) -> _Layout:
        columns = [schema.column(index) for index in range(len(schema))]
        names = {index: column.name for index, column in enumerate(columns) if column.path == column.name}
        wanted = {name: at for at, name in names.items() if stats_columns is None or name in stats_columns}
        return cls(schema, _traits(columns), names, wanted, stats_columns)


def _footer_source(store: Store, entry: FileEntry) -> Any:
    return store.open_input(entry.path) if isinstance(store, LocalStore) else _TailFile(store, entry)


def _refuse_encrypted(entry: FileEntry, footer: pq.FileMetaData, source: Any) -> None:
    """A readable footer may lie over encrypted columns, and asking Arrow about one of those ends the process.

    Such a footer is signed: it is longer than what it says.
    """
    source.seek(entry.size_bytes - 8)
    if struct.unpack("<I", source.read(4))[0] != footer.serialized_size:
        raise UnreadableFile(entry.path, "its columns are encrypted")


def _codec(group: pq.RowGroupMetaData) -> str | None:
    if group.num_columns == 0:
        return None
    # Almost always all columns have the same: a few of them tell.
    last = group.num_columns - 1
    codecs = [group.column(index).compression for index in {0, last}]
    if len(set(codecs)) > 1:
        codecs.append(group.column(last // 2).compression)
    codec = str(max(codecs, key=codecs.count)).lower()
    return _CODEC_NAMES.get(codec, codec)


def _traits(columns: Sequence[pq.ColumnSchema]) -> PhysicalTraits:
    return PhysicalTraits(
        int96_timestamps=any(column.physical_type == "INT96" for column in columns),
        integer_decimals=any(
            column.physical_type in ("INT32", "INT64") and column.logical_type.type == "DECIMAL"
            for column in columns
        ),
        utc_times=any(
            column.logical_type.type == "TIME" and json.loads(column.logical_type.to_json())["isAdjustedToUTC"]
            for column in columns
        ),
        leaves=tuple(_leaf(column) for column in columns),
    )


def _leaf(column: pq.ColumnSchema) -> str:
    """A leaf column in words: what it holds, and how deep. Names inside of nested types are not part of it."""
    kind = _logical_type(column.logical_type.to_json())
    # A decimal is the same decimal however wide its bytes are.
    physical = "" if column.logical_type.type == "DECIMAL" else f" {column.physical_type}"
    return f"{kind}{physical} {column.max_definition_level}/{column.max_repetition_level}"


@functools.lru_cache(maxsize=1024)
def _logical_type(text: str) -> str:
    parts = json.loads(text)
    for noise in ("is_from_converted_type", "force_set_converted_type"):
        parts.pop(noise, None)
    if parts.get("Type") == "Int" and parts.get("isSigned") and parts.get("bitWidth") in (32, 64):
        return "None"  # as good as none: the physical type says the same
    return " ".join(str(value) for value in parts.values())


def _row_groups(footer: pq.FileMetaData, layout: _Layout) -> tuple[RowGroupInfo, ...]:
    groups = []
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        groups.append(
            RowGroupInfo(
                num_rows=group.num_rows,
                total_byte_size=group.total_byte_size,
                sorted_by=_declared_order(group, layout.names),
                columns={name: _column_stats(group.column(index)) for name, index in layout.wanted.items()},
                codec=_codec(group),
            )
        )
    return tuple(groups)


def _declared_order(group: pq.RowGroupMetaData, names: Mapping[int, str]) -> tuple[str, ...]:
    declared = []
    for column in group.sorting_columns:
        if column.descending or column.nulls_first or column.column_index not in names:
            break
        declared.append(names[column.column_index])
    return tuple(declared)


def _column_stats(column: pq.ColumnChunkMetaData) -> ColumnStats:
    stats = column.statistics
    if stats is None:
        return _UNKNOWN
    low, high = _bounds(stats) if stats.has_min_max else (None, None)
    if low != low or high != high:  # some writers take NaN for a bound
        low = high = None
    return ColumnStats(low, high, stats.null_count if stats.has_null_count else None)


def _bounds(stats: pq.Statistics) -> tuple[Any, Any]:
    kind = stats.logical_type.type
    if kind in _TEMPORAL:
        return stats.min_raw, stats.max_raw
    if kind in _TEXT:
        try:
            return bytes(stats.min_raw).decode(), bytes(stats.max_raw).decode()
        except UnicodeDecodeError:  # a writer may have cut a bound in the middle of a character
            return None, None
    if kind == "FLOAT16":
        return struct.unpack("<e", stats.min_raw)[0], struct.unpack("<e", stats.max_raw)[0]
    return stats.min, stats.max


class _TailFile(io.RawIOBase):
    """A remote file of which only the end is fetched, once; anything before it is read when asked for."""

    def __init__(self, store: Store, entry: FileEntry) -> None:
        self._store, self._path, self._size = store, entry.path, entry.size_bytes
        self._start = max(0, self._size - _TAIL_BYTES)
        self._tail = store.read_range(self._path, self._start, self._size)
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1) -> bytes:
        end = self._size if size < 0 else min(self._size, self._position + size)
        start, self._position = self._position, end
        if start >= self._start:
            return self._tail[start - self._start : end - self._start]
        return self._store.read_range(self._path, start, end)

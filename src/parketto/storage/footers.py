"""What a Parquet footer says, read once per file and kept as plain data."""

from __future__ import annotations

import functools
import json
import posixpath
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from parketto.errors import FooterError, UnreadableFile
from parketto.rowgroups.annotations import Annotation, read_annotations
from parketto.rowgroups.footer import MAGIC
from parketto.storage.alike import Frame, UnreadRowGroups, head_of
from parketto.storage.clustering import Clustering, recorded
from parketto.storage.hive import PartitionValues
from parketto.storage.int96 import int96_leaves, int96_type, is_micros, with_instants
from parketto.storage.row_groups import UNKNOWN_STATS, ColumnStats, RowGroupInfo, read_row_groups
from parketto.storage.store import FileEntry, Store
from parketto.storage.unreadable import naming

# Most footers fit into this many bytes: then one ranged read is all that a file costs. Where another one costs
# little, less will do.
_TAIL_BYTES = 64 * 1024
_TAIL_BYTES_AT_HAND = 16 * 1024
_LAYOUTS_COMPARED = 16
# To find out in what others may be like a footer takes several times as long as to read it. So it is done with a
# few of them, once there are many: after so many that had to be read as a whole.
_FRAMED_READS = frozenset({8, 32, 128, 512})
_LONGEST_FRAMED = 32 * 1024
# Of the ends of remote files, or all of them if they are small, so much is kept for whoever reads them next.
_MOST_KEPT = 64 * 1024 * 1024
# Of row groups that stay bytes so much is kept; what comes after is read at once, and takes less memory then.
_MOST_UNREAD = 32 * 1024 * 1024


class PhysicalTraits(NamedTuple):
    """How values are laid out where Arrow's types do not tell, so that a rewrite keeps it.

    `leaves` describes every leaf column in Parquet's own terms; a rewritten file must have the same.
    """

    #: The leaves that are INT96 timestamps: the name of the column, and the number of the leaf inside of it.
    int96: tuple[tuple[str, int], ...] = ()
    integer_decimals: bool = False
    utc_times: bool = False
    leaves: tuple[str, ...] = ()
    #: What says that columns are variants or geometries, which Arrow cannot say.
    annotations: tuple[Annotation, ...] = ()

    @property
    def int96_timestamps(self) -> bool:
        """Whether any timestamp is INT96."""
        return bool(self.int96)

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
    row_groups: Sequence[RowGroupInfo] = ()
    created_by: str = ""
    #: The end of the file, or all of it, if reading it again would take another request. Stays in this process.
    tail: bytes = field(default=b"", repr=False, compare=False)

    def __getstate__(self) -> list[Any]:
        return [b"" if each.name == "tail" else getattr(self, each.name) for each in fields(self)]

    def __setstate__(self, state: list[Any]) -> None:
        for each, value in zip(fields(self), state, strict=True):
            object.__setattr__(self, each.name, value)

    def __post_init__(self) -> None:
        if not self.directory:
            object.__setattr__(self, "directory", posixpath.dirname(self.path))

    @property
    def entry(self) -> FileEntry:
        """The file as a listing shows it."""
        return FileEntry(self.path, self.size_bytes, self.fingerprint)

    @property
    def int96_unit(self) -> str:
        """The unit in which its INT96 timestamps are read."""
        return "us" if is_micros(self.schema, self.traits.int96) else "ns"

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
                found.append(group.columns.get(column, UNKNOWN_STATS))
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
        keep_bytes: Whether somebody in this process may read the rows of remote files next.
    """

    def __init__(self, store: Store | None, stats_columns: StatsColumns = (), *, keep_bytes: bool = True) -> None:
        self._store, self._stats_columns = store, stats_columns
        self._may_keep = keep_bytes and store is not None and store.whole_file_bytes > 0
        self._layouts: list[_Layout] = []
        self._frames: list[tuple[Frame, FileInfo]] = []
        self._whole_reads = self._unread_bytes = self._kept_bytes = 0
        self._schemas: dict[tuple[int, tuple[tuple[bytes, bytes], ...]], tuple[pa.Schema, dict[bytes, bytes]]] = {}

    def read(self, entry: FileEntry, partition: PartitionValues = ()) -> FileInfo:
        """Read one footer."""
        assert self._store is not None, "files are opened in a store"
        with naming(entry.path):
            whole = self._keeps() and entry.size_bytes <= self._store.whole_file_bytes
            return self._kept(entry, read_tail(self._store, entry, whole=whole), partition)

    def read_path(self, path: str, partition: PartitionValues = ()) -> FileInfo:
        """Read one footer of a file that no listing has shown."""
        assert self._store is not None, "files are opened in a store"
        with naming(path):
            entry, end = self._store.read_end(path, _TAIL_BYTES)
            return self._kept(entry, _whole_footer(self._store, entry, end), partition)

    def _keeps(self) -> bool:
        return self._may_keep and self._kept_bytes < _MOST_KEPT

    def _kept(self, entry: FileEntry, tail: bytes, partition: PartitionValues) -> FileInfo:
        """What a footer says, with the bytes that were read, if they may be of use."""
        file = self._alike(entry, tail, partition) or self.describe(entry, pa.py_buffer(tail), partition)
        if not self._keeps():
            return file
        self._kept_bytes += len(tail)
        return replace(file, tail=tail)

    def describe(self, entry: FileEntry, tail: pa.Buffer, partition: PartitionValues = ()) -> FileInfo:
        """What a footer says; it stands at the end of the bytes."""
        source = pa.BufferReader(tail)
        footer = pq.read_metadata(source)
        # A readable footer may lie over encrypted columns, and asking Arrow about one of those ends the process.
        # Such a footer is signed: it is longer than what it says.
        if footer_length(tail) != footer.serialized_size:
            raise UnreadableFile(entry.path, "its columns are encrypted")
        raw = _footer(tail)
        layout = self._layout(footer, raw)
        schema, metadata = self._schema(layout, footer, source)
        row_groups = read_row_groups(footer, layout.names, layout.wanted)
        file = FileInfo(
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
        self._whole_reads += 1
        if self._whole_reads in _FRAMED_READS and not layout.wanted and len(raw) <= _LONGEST_FRAMED:
            frame = Frame.of(raw, footer, layout.names, file.codec)
            self._frames += [] if frame is None else [(frame, file)]
        return file

    def _layout(self, footer: pq.FileMetaData, raw: bytes) -> _Layout:
        wanted = self._stats_columns
        # How rows are laid out is of interest together with where it got them: by the bounds of these columns.
        if wanted is not None and (clustering := recorded(footer.metadata)) is not None:
            wanted = _EitherColumns(wanted, clustering.columns)
        # The newest first, and not too many: looking for one must stay cheaper than working it out.
        for known in self._layouts[: -_LAYOUTS_COMPARED - 1 : -1]:
            if raw.startswith(known.head) and known.stats_columns == wanted:
                return known
        layout = _Layout.of(head_of(raw), footer.schema, wanted)
        self._layouts.append(layout)
        return layout

    def _alike(self, entry: FileEntry, tail: bytes, partition: PartitionValues) -> FileInfo | None:
        """What a footer says that differs from a known one in its row groups only; None for others."""
        if not self._frames or self._unread_bytes > _MOST_UNREAD:
            return None
        footer = _footer(tail)
        for frame, known in self._frames:
            # With another codec it may be one of several; then a look at other columns tells what it counts for.
            if (parts := frame.parts(footer)) is not None and parts.codec == known.codec:
                self._unread_bytes += len(parts.middle)
                return FileInfo(
                    path=entry.path,
                    size_bytes=entry.size_bytes,
                    num_rows=parts.num_rows,
                    partition=partition,
                    fingerprint=entry.fingerprint,
                    schema=known.schema,
                    metadata=known.metadata,
                    codec=parts.codec,
                    traits=known.traits,
                    row_groups=UnreadRowGroups(entry.path, frame, parts),
                    created_by=known.created_by,
                )
        return None

    def _schema(
        self, layout: _Layout, footer: pq.FileMetaData, source: pa.BufferReader
    ) -> tuple[pa.Schema, dict[bytes, bytes]]:
        metadata = footer.metadata or {}
        key = (id(layout), tuple(metadata.items()))
        if key not in self._schemas:
            source.seek(0)
            # Not the footer's own idea of it: only the reader's restores UUID, JSON and other extension types.
            schema = pq.ParquetFile(source, metadata=footer).schema_arrow
            if int96 := layout.traits.int96:
                schema = with_instants(schema, int96, int96_type(metadata, int96))
            self._schemas[key] = (schema, metadata)
        return self._schemas[key]


def describe(file: pa.Buffer) -> FileInfo:
    """What the footer of a file in memory says, the bounds of all columns included."""
    return FooterReader(None, stats_columns=None).describe(FileEntry("", file.size, ""), file)


@dataclass(frozen=True, slots=True)
class _Layout:
    """What follows from a file's Parquet schema alone."""

    #: Footers with that schema begin so. To Arrow schemas are equal even if nested columns have other names.
    head: bytes
    traits: PhysicalTraits
    #: Positions of top-level columns among the leaves; and those whose bounds are wanted.
    names: Mapping[int, str]
    wanted: Mapping[str, int]
    stats_columns: StatsColumns

    @classmethod
    def of(cls, head: bytes, schema: pq.ParquetSchema, stats_columns: StatsColumns) -> _Layout:
        columns = [schema.column(index) for index in range(len(schema))]
        names = {index: column.name for index, column in enumerate(columns) if column.path == column.name}
        wanted = {name: at for at, name in names.items() if stats_columns is None or name in stats_columns}
        return cls(head, _traits(columns, schema, head), names, wanted, stats_columns)


def read_tail(store: Store, entry: FileEntry, *, whole: bool = False) -> bytes:
    """The end of a file, with the whole footer if there is one; or all of it."""
    size = entry.size_bytes
    wanted = size if whole else _TAIL_BYTES_AT_HAND if store.often_cached else _TAIL_BYTES
    tail = store.read_range(entry.path, max(0, size - wanted), size, entry.fingerprint)
    return _whole_footer(store, entry, tail)


def _whole_footer(store: Store, entry: FileEntry, tail: bytes) -> bytes:
    """The end of a file, or more of it, if the footer is longer."""
    size, needed = entry.size_bytes, footer_length(tail) + 8
    if needed > size and tail.endswith(MAGIC):
        raise pa.ArrowInvalid(f"its footer should have {needed} bytes, and the file has {size}")
    if len(tail) < needed <= size:
        return store.read_range(entry.path, size - needed, size, entry.fingerprint)
    return tail


def footer_length(tail: bytes | pa.Buffer) -> int:
    """The length of the footer in bytes, from the end of a file."""
    return int.from_bytes(tail[-8:-4], "little")


def _footer(tail: bytes | pa.Buffer) -> bytes:
    """The footer out of the end of a file; nothing if there is none."""
    return bytes(tail[-footer_length(tail) - 8 : -8]) if bytes(tail[-4:]) == MAGIC else b""


def _traits(columns: Sequence[pq.ColumnSchema], schema: pq.ParquetSchema, head: bytes) -> PhysicalTraits:
    return PhysicalTraits(
        int96=int96_leaves([column.physical_type for column in columns], schema),
        integer_decimals=any(
            column.physical_type in ("INT32", "INT64") and column.logical_type.type == "DECIMAL"
            for column in columns
        ),
        utc_times=any(
            column.logical_type.type == "TIME" and json.loads(column.logical_type.to_json())["isAdjustedToUTC"]
            for column in columns
        ),
        leaves=tuple(_leaf(column) for column in columns),
        annotations=_annotations(head),
    )


def _annotations(head: bytes) -> tuple[Annotation, ...]:
    try:
        return read_annotations(head)
    except (FooterError, IndexError):  # whatever Arrow makes of it, nothing that is kept is in it
        return ()


def _leaf(column: pq.ColumnSchema) -> str:
    """A leaf column in words: what it holds, and how deep. Names inside of nested types are not part of it."""
    kind = _logical_type(column.logical_type.to_json())
    # A decimal is the same decimal however wide its bytes are, and nothing the same nothing.
    physical = "" if column.logical_type.type == "DECIMAL" or kind == "Null" else f" {column.physical_type}"
    return f"{kind}{physical} {column.max_definition_level}/{column.max_repetition_level}"


@functools.lru_cache(maxsize=1024)
def _logical_type(text: str) -> str:
    parts = json.loads(text)
    for noise in ("is_from_converted_type", "force_set_converted_type"):
        parts.pop(noise, None)
    if parts.get("Type") == "Int" and parts.get("isSigned") and parts.get("bitWidth") in (32, 64):
        return "None"  # as good as none: the physical type says the same
    return " ".join(str(value) for value in parts.values())

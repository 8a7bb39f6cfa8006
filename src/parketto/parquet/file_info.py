"""Parquet footers as plain data, read once per file."""

from __future__ import annotations

import functools
import json
import posixpath
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from parketto.display import counted, readable_bytes, table
from parketto.errors import FooterError, UnreadableFile
from parketto.parquet.annotations import Annotation, read_annotations
from parketto.parquet.bounded_columns import StatsColumns, columns_with_bounds, with_clustering_columns
from parketto.parquet.clustering_metadata import Clustering, read_clustering
from parketto.parquet.footer import MAGIC, FileKeys
from parketto.parquet.int96 import int96_leaves, int96_type, is_micros, with_instants
from parketto.parquet.promotion import means_the_same
from parketto.parquet.row_group_info import NO_COLUMNS, UNKNOWN_STATS, ColumnStats, RowGroupInfo, read_row_groups
from parketto.parquet.thrift import LIST, find_field, skip
from parketto.parquet.unreadable import naming_file
from parketto.storage.hive import PartitionValues
from parketto.storage.store import FileEntry, Store

# Most footers fit into this many bytes, so that a file costs one ranged read. Less will do if a second is cheap.
_TAIL_BYTES = 64 * 1024
_CACHED_TAIL_BYTES = 16 * 1024
_LAYOUTS_COMPARED = 16  # recent layouts that a footer is compared with
# Bytes of remote files, their ends or small ones as a whole, kept for later reads.
_MAX_KEPT_BYTES = 64 * 1024 * 1024


class PhysicalTraits(NamedTuple):
    """The physical layout that Arrow's types do not express, so that a rewrite keeps it.

    `leaves` describes every leaf column in Parquet's own terms; a rewritten file must have the same.
    """

    #: The leaves that are INT96 timestamps: the name of the column, and the number of the leaf inside it.
    int96: tuple[tuple[str, int], ...] = ()
    integer_decimals: bool = False
    utc_times: bool = False
    leaves: tuple[str, ...] = ()
    #: Logical types that Arrow cannot express: variant, geometry and geography.
    annotations: tuple[Annotation, ...] = ()

    @property
    def int96_timestamps(self) -> bool:
        """Whether any timestamp is INT96."""
        return bool(self.int96)

    @property
    def has_dates(self) -> bool:
        """Whether there are dates or timestamps of any physical type."""
        return any(leaf.startswith(("Date ", "Timestamp ")) or " INT96 " in leaf for leaf in self.leaves)


STANDARD_LAYOUT = PhysicalTraits()


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A data file, as described by its listing and its footer.

    Planning by size and rows needs only the first three fields:

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
    #: The file as its own footer describes it, if it is presented in another schema: that of its dataset.
    own: FileInfo | None = field(default=None, repr=False)
    #: The types of the dataset's partition columns, judged by all paths, if not all of its files are read.
    path_types: Mapping[str, pa.DataType] | None = field(default=None, repr=False)
    #: The end of the file, or all of it, if reading it again would cost another request. Never pickled.
    tail: bytes = field(default=b"", repr=False, compare=False)

    def __repr__(self) -> str:
        rows, groups = counted(self.num_rows, "row"), counted(len(self.row_groups), "row group")
        return f"<FileInfo {self.path!r}: {rows}, {readable_bytes(self.size_bytes)}, {groups}>"

    def _repr_html_(self) -> str:
        columns = {} if self.schema is None else {each.name: str(each.type) for each in self.schema}
        shown = {
            "rows": self.num_rows,
            "size_bytes": self.size_bytes,
            "partition": dict(self.partition),
            "row_groups": len(self.row_groups),
            "codec": self.codec,
            "columns": columns,
            "created_by": self.created_by,
        }
        return table(self.path, shown.items())

    def __getstate__(self) -> list[Any]:
        return [b"" if each.name == "tail" else getattr(self, each.name) for each in fields(self)]

    def __setstate__(self, state: list[Any]) -> None:
        for each, value in zip(fields(self), state, strict=True):
            object.__setattr__(self, each.name, value)

    def __post_init__(self) -> None:
        if not self.directory:
            # Interned: files of a folder share it, which counts where there are a million files.
            object.__setattr__(self, "directory", sys.intern(posixpath.dirname(self.path)))

    @property
    def entry(self) -> FileEntry:
        """The file as a listing entry."""
        return FileEntry(self.path, self.size_bytes, self.fingerprint)

    @property
    def stored(self) -> FileInfo:
        """The file as its own footer describes it."""
        return self if self.own is None else self.own

    @property
    def has_stored_types(self) -> bool:
        """Whether its bytes can be read in the schema in which it is presented: Parquet's own types are equal."""
        own = self.stored
        return own is self or (
            own.schema is not None
            and self.schema is not None
            and own.schema.names == self.schema.names
            and own.traits.leaves == self.traits.leaves
            and own.traits.annotations == self.traits.annotations
            and all(map(means_the_same, own.schema.types, self.schema.types))
        )

    @property
    def int96_unit(self) -> str:
        """The unit in which its INT96 timestamps are read."""
        return "us" if is_micros(self.schema, self.traits.int96) else "ns"

    @property
    def codecs(self) -> frozenset[str | None]:
        """The codecs of all row groups: copied ones may differ."""
        return frozenset((self.codec, *(group.codec for group in self.row_groups)))

    @property
    def clustering(self) -> Clustering | None:
        """The clustering of the file. Its record alone is no proof: programs copy metadata along with rows."""
        found = read_clustering(self.metadata)
        if found is None:
            return None
        width = len(found.columns)
        declared = sum(group.sorted_by[:width] == found.columns for group in self.row_groups)
        return found if 2 * declared >= len(self.row_groups) else None

    def column_stats(self, column: str) -> ColumnStats:
        """The bounds of a column over the whole file; None where a row group has none."""
        found, bounded = [], []
        for group in self.row_groups:
            if group.num_rows:
                found.append(group.columns.get(column, UNKNOWN_STATS))
                # A row group of NULLs has no bounds, and does not affect those of its file.
                if found[-1].null_count != group.num_rows:
                    bounded.append(found[-1])
        known = bool(bounded) and all(stats.min is not None for stats in bounded)
        counts = [stats.null_count for stats in found]
        return ColumnStats(
            min(stats.min for stats in bounded) if known else None,
            max(stats.max for stats in bounded) if known else None,
            None if None in counts else sum(count or 0 for count in counts),
        )


def with_bounds_of(file: FileInfo, columns: StatsColumns) -> FileInfo:
    """A file with the bounds of fewer columns: those that are kept of its footer."""
    wanted = with_clustering_columns(columns, file.metadata)
    if wanted is None:
        return file
    groups = tuple(
        replace(group, columns={n: found for n, found in group.columns.items() if n in wanted} or NO_COLUMNS)
        for group in file.row_groups
    )
    return replace(file, row_groups=groups)


class FooterReader:
    """Reads the footers of a dataset's files, from several threads.

    Thousands of files mostly share one schema: what is derived from it is computed once and shared.

    Args:
        store: The store of the files; None if only `describe` is called.
        stats_columns: The columns whose bounds are kept; None keeps all.
        keep_bytes: Whether rows of remote files may be read next in this process.
    """

    def __init__(self, store: Store | None, stats_columns: StatsColumns = (), *, keep_bytes: bool = True) -> None:
        self._store, self._stats_columns = store, stats_columns
        self._may_keep = keep_bytes and store is not None and store.whole_file_bytes > 0
        self._layouts: list[_Layout] = []
        self._kept_bytes = 0
        self._schemas: dict[tuple[int, tuple[tuple[bytes, bytes], ...]], tuple[pa.Schema, dict[bytes, bytes]]] = {}

    def read(self, entry: FileEntry, partition: PartitionValues = ()) -> FileInfo:
        """Read the footer of a listed file."""
        assert self._store is not None, "reading files needs a store"
        with naming_file(entry.path):
            whole = self._can_keep_more() and entry.size_bytes <= self._store.whole_file_bytes
            return self._described(entry, read_tail(self._store, entry, whole=whole), partition)

    def read_path(self, path: str, partition: PartitionValues = ()) -> FileInfo:
        """Read the footer of a file that was not listed."""
        assert self._store is not None, "reading files needs a store"
        with naming_file(path):
            entry, end = self._store.read_end(path, _TAIL_BYTES)
            return self._described(entry, _whole_footer(self._store, entry, end), partition)

    def _can_keep_more(self) -> bool:
        return self._may_keep and self._kept_bytes < _MAX_KEPT_BYTES

    def _described(self, entry: FileEntry, tail: bytes, partition: PartitionValues) -> FileInfo:
        """The file of a footer, with the bytes that were read if they may be needed again."""
        file = self.describe(entry, pa.py_buffer(tail), partition)
        if not self._can_keep_more():
            return file
        self._kept_bytes += len(tail)
        return replace(file, tail=tail)

    def describe(self, entry: FileEntry, tail: pa.Buffer, partition: PartitionValues = ()) -> FileInfo:
        """The file of a footer at the end of these bytes."""
        source = pa.BufferReader(tail)
        footer = pq.read_metadata(source)
        # A plaintext footer may describe encrypted columns, and accessing one of those crashes the process. Such a
        # footer is signed, and so longer than its metadata.
        if footer_length(tail) != footer.serialized_size:
            raise UnreadableFile(entry.path, "its columns are encrypted")
        raw = _footer(tail)
        layout = self._layout(footer, raw)
        schema, metadata = self._schema(layout, footer, source)
        row_groups = read_row_groups(footer, layout.names, layout.wanted)
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

    def _layout(self, footer: pq.FileMetaData, raw: bytes) -> _Layout:
        wanted = with_clustering_columns(self._stats_columns, footer.metadata)
        # Newest first, and only some: the search must stay cheaper than computing a layout.
        for known in self._layouts[: -_LAYOUTS_COMPARED - 1 : -1]:
            if raw.startswith(known.head) and known.stats_columns == wanted:
                return known
        layout = _Layout.of(_head(raw), footer.schema, wanted)
        self._layouts.append(layout)
        return layout

    def _schema(
        self, layout: _Layout, footer: pq.FileMetaData, source: pa.BufferReader
    ) -> tuple[pa.Schema, dict[bytes, bytes]]:
        metadata = footer.metadata or {}
        key = (id(layout), tuple(metadata.items()))
        if key not in self._schemas:
            source.seek(0)
            # Not from the footer's schema: only the reader restores UUID, JSON and other extension types.
            schema = pq.ParquetFile(source, metadata=footer).schema_arrow
            if int96 := layout.traits.int96:
                schema = with_instants(schema, int96, int96_type(metadata, int96))
            self._schemas[key] = (schema, metadata)
        return self._schemas[key]


def describe(file: pa.Buffer) -> FileInfo:
    """A file in memory, as described by its footer, with the bounds of all columns."""
    return FooterReader(None, stats_columns=None).describe(FileEntry("", file.size, ""), file)


@dataclass(frozen=True, slots=True)
class _Layout:
    """What is derived from a file's Parquet schema alone."""

    #: Footers with this schema begin with it. Arrow's own comparison ignores the names of nested columns.
    head: bytes
    traits: PhysicalTraits
    #: Top-level columns by leaf position, and the leaf positions of those whose bounds are kept.
    names: Mapping[int, str]
    wanted: Mapping[str, int]
    stats_columns: StatsColumns

    @classmethod
    def of(cls, head: bytes, schema: pq.ParquetSchema, stats_columns: StatsColumns) -> _Layout:
        columns = [schema.column(index) for index in range(len(schema))]
        names = {index: column.name for index, column in enumerate(columns) if column.path == column.name}
        kept = frozenset(columns_with_bounds(list(names.values()), stats_columns))
        wanted = {name: at for at, name in names.items() if name in kept}
        return cls(head, _traits(columns, schema, head), names, wanted, stats_columns)


def read_tail(store: Store, entry: FileEntry, *, whole: bool = False) -> bytes:
    """The end of a file, with the whole footer if there is one; or the whole file."""
    size = entry.size_bytes
    wanted = size if whole else _CACHED_TAIL_BYTES if store.often_cached else _TAIL_BYTES
    tail = store.read_range(entry.path, max(0, size - wanted), size, entry.fingerprint)
    return _whole_footer(store, entry, tail)


def _whole_footer(store: Store, entry: FileEntry, tail: bytes) -> bytes:
    """The end of a file, extended if the footer is longer."""
    size, needed = entry.size_bytes, footer_length(tail) + 8
    if needed > size and tail.endswith(MAGIC):
        raise pa.ArrowInvalid(f"its footer needs {needed} bytes, but the file has only {size}")
    if len(tail) < needed <= size:
        return store.read_range(entry.path, size - needed, size, entry.fingerprint)
    return tail


def footer_length(tail: bytes | pa.Buffer) -> int:
    """The length of the footer in bytes, from the end of a file."""
    return int.from_bytes(tail[-8:-4], "little")


def _footer(tail: bytes | pa.Buffer) -> bytes:
    """The footer from the end of a file; empty if there is none."""
    return bytes(tail[-footer_length(tail) - 8 : -8]) if bytes(tail[-4:]) == MAGIC else b""


def _head(footer: bytes) -> bytes:
    """A footer up to the end of its schema.

    No schema is a prefix of another one: footers that begin with the same head have the same schema.
    """
    try:
        return footer[: skip(footer, find_field(footer, 0, FileKeys.SCHEMA), LIST)]
    except (FooterError, IndexError):  # not parsable: no other footer matches it
        return footer


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
    except (FooterError, IndexError):  # such a schema has no annotations to keep
        return ()


def _leaf(column: pq.ColumnSchema) -> str:
    """A leaf column as text: its type and levels, without the names inside nested types."""
    kind = _logical_type(column.logical_type.to_json())
    # The physical type does not matter for decimals and nulls.
    physical = "" if column.logical_type.type == "DECIMAL" or kind == "Null" else f" {column.physical_type}"
    return f"{kind}{physical} {column.max_definition_level}/{column.max_repetition_level}"


@functools.lru_cache(maxsize=1024)
def _logical_type(text: str) -> str:
    parts = json.loads(text)
    for noise in ("is_from_converted_type", "force_set_converted_type"):
        parts.pop(noise, None)
    if parts.get("Type") == "Int" and parts.get("isSigned") and parts.get("bitWidth") in (32, 64):
        return "None"  # redundant: the physical type implies it
    return " ".join(str(value) for value in parts.values())

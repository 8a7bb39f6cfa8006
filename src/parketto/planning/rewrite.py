"""Plans that rewrite groups of files: compaction, and clustering (optimize)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, repeat
from typing import Literal

import pyarrow as pa

from parketto.arguments import DEFAULT_CODEC, CompactionScope, Thresholds, check_columns_exist, check_names
from parketto.display import counted, readable_bytes, table
from parketto.errors import InvalidArgument
from parketto.parquet.clustering_metadata import RECORD, Clustering, without_record
from parketto.parquet.compatible import FILE_SPECIFIC_KEYS, reading_rules
from parketto.parquet.dataset_schema import schema_key
from parketto.parquet.file_info import FileInfo, PhysicalTraits
from parketto.parquet.geo_area import GEO_KEY, merged_geo
from parketto.parquet.row_group_info import writable_codec
from parketto.planning.boxes import along_curve
from parketto.planning.copy_policy import Copies, Rewrite, copies
from parketto.planning.packing import pack
from parketto.results import ColumnReads
from parketto.sorting.order import check_orderable
from parketto.sorting.ranks import Weighted

Operation = Literal["compact", "optimize"]


@dataclass(frozen=True)
class FileGroup:
    """Files of one directory and one schema that become `outputs` new files in that directory.

    It iterates over its files. `max_rows` limits the rows of an output; with `even` all outputs get the same
    number of rows, give or take one. `roll_bytes` ends an output at the row group that is nearest to it.
    """

    files: tuple[FileInfo, ...]
    outputs: int = 1
    max_rows: int | None = None
    roll_bytes: int | None = None
    compression: str | None = None
    even: bool = False
    #: The target number of rows per row group, if any.
    row_group_rows: int | None = None
    #: For each clustering column, what is known of its values in files that stay.
    surroundings: tuple[Weighted | None, ...] = ()
    #: The clustering record of the new files; None keeps that of the files.
    record: bytes | None = None
    #: How rows get into the new files: as copied row groups, or re-encoded.
    rewrite: Rewrite = "encode"
    #: Whether row groups of another codec than `compression` are re-encoded; else copied ones keep theirs.
    recompress: bool = True
    #: The paths of files whose row groups are decoded before they are copied, to find damage.
    verify: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        files = f"{counted(len(self), 'file')} -> {self.outputs:,}"
        where = f" in {self.directory!r}" if self.files else ""
        return f"<FileGroup: {files}{where}, {counted(self.num_rows, 'row')}, {readable_bytes(self.size_bytes)}>"

    def __iter__(self) -> Iterator[FileInfo]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)

    def row_limits(self) -> Iterator[int] | None:
        """The row limit of each output in turn; None if rows are not limited."""
        if self.max_rows is None:
            return None
        if not self.even:
            return repeat(self.max_rows)
        rows, longer = divmod(self.num_rows, self.outputs)
        return chain(repeat(rows + 1, longer), repeat(max(1, rows)))

    @property
    def paths(self) -> list[str]:
        """The files' paths."""
        return [file.path for file in self.files]

    @property
    def directory(self) -> str:
        """The directory of the files, and of the new ones."""
        return self.files[0].directory

    @property
    def num_rows(self) -> int:
        """The total number of rows, in the files and in the new ones."""
        return sum(file.num_rows for file in self.files)

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def traits(self) -> PhysicalTraits:
        """The physical layout that the new files keep."""
        return self.files[0].traits

    @property
    def schema(self) -> pa.Schema:
        """The exact schema of the new files: that of the first file."""
        assert self.files[0].schema is not None, "files to rewrite come from a snapshot"
        return self.files[0].schema

    @property
    def metadata(self) -> Mapping[bytes, bytes]:
        """Key-value metadata of the new files: all keys of all files; on conflict, the first file's value.

        The bounding box of geometries covers all files.
        """
        merged = dict(self.files[0].metadata or {})
        for file in self.files:
            for key, value in (file.metadata or {}).items():
                # Metadata on how to read a file belongs to that file: take the first file's, or none.
                if key not in FILE_SPECIFIC_KEYS:
                    merged.setdefault(key, value)
        if GEO_KEY in merged:
            merged[GEO_KEY] = merged_geo([(file.metadata or {})[GEO_KEY] for file in self.files])
        if self.record is not None:
            return {**merged, RECORD: self.record}
        return merged if self.keeps_row_groups else without_record(merged)

    @property
    def keeps_row_groups(self) -> bool:
        """Whether rows stay in their row groups, because these are clustered."""
        return self.record is None and self.files[0].clustering is not None

    @cached_property
    def copies(self) -> Copies:
        """For each file, which of its row groups are copied as bytes. Groups that are split are encoded."""
        rewrite = "encode" if self.outputs > 1 else self.rewrite
        return copies(self.files, rewrite, self.required_codec, keeps_row_groups=self.keeps_row_groups)

    @property
    def encodes_all(self) -> bool:
        """Whether all rows are encoded, into row groups of any size: no row group is copied or kept."""
        return not self.keeps_row_groups and not any(map(any, self.copies))

    @property
    def required_codec(self) -> str | None:
        """The codec that copied row groups must have; None leaves each its own."""
        return self.compression if self.recompress else None

    @property
    def kept_order(self) -> tuple[str, ...]:
        """The columns that every row group is sorted by, if row groups are kept and all of them are sorted."""
        clustering = self.files[0].clustering if self.keeps_row_groups else None
        if clustering is None:
            return ()
        columns, width = clustering.columns, len(clustering.columns)
        every = all(part.sorted_by[:width] == columns for file in self.files for part in file.row_groups)
        return columns if every else ()

    @property
    def codec(self) -> str:
        """The codec of the new files: the requested one, else that of most bytes."""
        if self.compression is not None:
            return self.compression
        return prevailing_codec(self.files) or DEFAULT_CODEC


@dataclass(frozen=True)
class RewritePlan:
    """What will be rewritten and what stays. Groups are independent of each other."""

    operation: Operation
    groups: tuple[FileGroup, ...]
    untouched: tuple[FileInfo, ...]
    clustering: Clustering | None = None
    compression: str | None = None
    #: For each clustering column, what queries read of the files before, and approximately after.
    reads: Mapping[str, tuple[ColumnReads, ColumnReads]] = field(default_factory=dict)
    #: Why nothing is rewritten where something could be.
    unchanged_because: str | None = None
    #: The columns that rewritten files get in another type, or at all, because files of the dataset differ.
    reconciled_columns: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<RewritePlan: {self.summary()}>"

    def _repr_html_(self) -> str:
        groups = [
            {
                "directory": group.directory,
                "files": len(group),
                "new_files": group.outputs,
                "rows": group.num_rows,
                "bytes": group.size_bytes,
            }
            for group in self.groups
        ]
        return table(self.summary(), [("groups", groups)] if groups else [])

    def summary(self) -> str:
        """One line."""
        if not self.groups:
            return f"{self.operation}: nothing to rewrite in {counted(len(self.untouched), 'file')}"
        files, outputs = sum(map(len, self.groups)), sum(group.outputs for group in self.groups)
        size = readable_bytes(sum(group.size_bytes for group in self.groups))
        return (
            f"{self.operation}: {counted(files, 'file')} -> {outputs:,} in {counted(len(self.groups), 'group')}, "
            f"{size} to rewrite, {len(self.untouched):,} untouched"
        )

    @property
    def order_by(self) -> tuple[str, ...]:
        """The clustering columns."""
        return () if self.clustering is None else self.clustering.columns

    @property
    def files(self) -> list[FileInfo]:
        """All files that were considered."""
        return [*(file for group in self.groups for file in group), *self.untouched]


def plan_compaction(
    files: Sequence[FileInfo],
    thresholds: Thresholds,
    compression: str | None = None,
    scope: CompactionScope | None = None,
    rewrite: Rewrite = "auto",
    *,
    recompress: bool = True,
) -> RewritePlan:
    """Plan to merge small files and to split those with too many rows."""
    groups: list[FileGroup] = []
    for found in cells(in_scope(files, scope or CompactionScope())):
        cell = along_curve(found)
        for chosen in pack(cell, thresholds):
            outputs = chosen.outputs
            groups.append(
                FileGroup(
                    files=tuple(cell[index] for index in chosen.items),
                    outputs=outputs,
                    max_rows=-(-chosen.num_rows // outputs) if outputs > 1 else None,
                    even=True,
                    compression=compression,
                    rewrite=rewrite,
                    recompress=recompress,
                )
            )
    plan = rewrite_plan("compact", files, groups, None, compression)
    return plan if groups else replace(plan, unchanged_because="no file to split, and no two small files to merge")


def in_scope(files: Sequence[FileInfo], scope: CompactionScope) -> list[FileInfo]:
    """The files that are small enough, in partitions that have enough of them.

    >>> files = [FileInfo(f"day={n % 3}/{n}.parquet", size_bytes=n, num_rows=1) for n in range(7)]
    >>> [file.path for file in in_scope(files, CompactionScope(min_file_count=2, max_file_bytes=5))]
    ['day=0/0.parquet', 'day=1/1.parquet', 'day=0/3.parquet', 'day=1/4.parquet']
    """
    small = [file for file in files if scope.admits(file.size_bytes)]
    counts = Counter(file.directory for file in small)
    return [file for file in small if counts[file.directory] >= scope.min_file_count]


def check_orderable_files(files: Iterable[FileInfo], columns: tuple[str, ...]) -> None:
    """Raise unless every file has the clustering columns, in sortable types."""
    seen: dict[int, pa.Schema] = {}
    for file in files:
        if file.schema is not None and id(file.schema) not in seen:
            seen[id(file.schema)] = file.schema
            partition_columns = [column for column, _ in file.partition]
            check_columns_exist(columns, file.schema, "columns", partition_columns)
            check_orderable(columns, file.schema)


def check_partition_columns(
    columns: str | Sequence[str] | None, schema: pa.Schema, argument: str = "partition_by"
) -> tuple[str, ...]:
    """The validated partition columns: they exist, and their values can name a folder."""
    if columns is None:
        return ()
    names = (columns,) if isinstance(columns, str) else check_names(argument, columns)
    check_columns_exist(names, schema, f"{argument} columns")
    check_orderable(names, schema)
    if len(names) == len(schema.names):
        raise InvalidArgument(f"{argument} names every column: at least one must remain in the files")
    return names


def cells(files: Iterable[FileInfo], *, by_layout: bool = True) -> list[list[FileInfo]]:
    """Groups of files that may be merged: one directory, one schema, one physical layout.

    Of their metadata only the rules for reading a file count (the calendar of old dates, the encoding of
    geometries): they would be wrong for the rows of other files. Clustered files are not merged with unclustered
    ones, nor with those of another clustering.
    """
    keys = CellKeys(by_layout=by_layout)
    grouped: dict[tuple[object, ...], list[FileInfo]] = defaultdict(list)
    for file in files:
        grouped[keys(file)].append(file)
    return list(grouped.values())


class CellKeys:
    """The keys of the cells of files, see `cells`. Thousands of files mostly share one schema: it is read once."""

    def __init__(self, *, by_layout: bool = True) -> None:
        self._by_layout = by_layout
        self._schemas: dict[int, str] = {}

    def __call__(self, file: FileInfo) -> tuple[object, ...]:
        """The key of a file's cell."""
        schema = file.schema
        if id(schema) not in self._schemas:
            self._schemas[id(schema)] = "" if schema is None else schema_key(schema)
        layout = file.clustering if self._by_layout else None
        return file.directory, self._schemas[id(schema)], file.traits, layout, _rules(file)


def _rules(file: FileInfo) -> tuple[tuple[bytes, object], ...]:
    return tuple(sorted(reading_rules(file.metadata or {}, temporal=file.traits.has_dates).items()))


def prevailing_codec(files: Iterable[FileInfo]) -> str | None:
    """The codec of most bytes of the files, in a form that can be written."""
    sizes: Counter[str] = Counter()
    for file in files:
        if file.codec is not None:
            sizes[writable_codec(file.codec) or ""] += max(1, file.size_bytes)
    return sizes.most_common(1)[0][0] if sizes else None


def rewrite_plan(
    operation: Operation,
    files: Sequence[FileInfo],
    groups: Sequence[FileGroup],
    clustering: Clustering | None,
    compression: str | None,
) -> RewritePlan:
    """A plan that rewrites groups of files; all other files stay."""
    rewritten = {file.path for group in groups for file in group}
    assert len(rewritten) == sum(map(len, groups)), "a file in two groups would duplicate its rows"
    untouched = tuple(file for file in files if file.path not in rewritten)
    return RewritePlan(operation, tuple(groups), untouched, clustering, compression)

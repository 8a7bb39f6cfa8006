"""Plans that rewrite groups of files: compaction, and compaction with an order (optimise)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, repeat
from typing import Literal

import pyarrow as pa

from parketto.errors import InvalidArgument
from parketto.layout.order import check_orderable
from parketto.layout.ranks import Weighted
from parketto.plan.boxes import along_curve
from parketto.plan.copying import Copies, Rewrite, copies
from parketto.plan.limits import DEFAULT_CODEC, CompactionScope, Thresholds, check_columns_exist, check_names
from parketto.plan.packing import pack
from parketto.plan.skipping import ColumnReads
from parketto.rowgroups import OWN_NOTES, reading_rules
from parketto.rowgroups.area import AREA, united_area
from parketto.storage.clustering import RECORD, Clustering, without_record
from parketto.storage.footers import FileInfo, PhysicalTraits
from parketto.storage.row_groups import HADOOP_LZ4

Operation = Literal["compact", "optimize"]


@dataclass(frozen=True)
class FileGroup:
    """Files of one directory and one schema that become `outputs` new files in that directory.

    It iterates over its files. `max_rows` is the most that an output may have; with `even` all outputs get the
    same number of rows, give or take one. `roll_bytes` ends an output at the row group that is nearest to it.
    """

    files: tuple[FileInfo, ...]
    outputs: int = 1
    max_rows: int | None = None
    roll_bytes: int | None = None
    compression: str | None = None
    even: bool = False
    #: How many rows a row group should have, if that matters.
    row_group_rows: int | None = None
    #: For each clustering column what is known of its values in files that stay as they are.
    surroundings: tuple[Weighted | None, ...] = ()
    #: What the new files say about how they are laid out; None keeps what the files say.
    record: bytes | None = None
    #: How rows come into the new files: as copies of row groups, or encoded anew.
    rewrite: Rewrite = "encode"
    #: The paths of files whose row groups are decoded before they are copied, to find damage.
    verify: frozenset[str] = frozenset()

    def __iter__(self) -> Iterator[FileInfo]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)

    def row_limits(self) -> Iterator[int] | None:
        """After how many rows each output ends, one after the other; None if rows do not matter."""
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
        """Where the files are, and where the new ones go."""
        return self.files[0].directory

    @property
    def num_rows(self) -> int:
        """The rows of all files, and of the new ones together."""
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
        """Key-value metadata of the new files: all keys of all files; where they differ, the first file's.

        The area of their geometries is that of all files.
        """
        merged = dict(self.files[0].metadata or {})
        for file in self.files:
            for key, value in (file.metadata or {}).items():
                # What says how to read a file belongs to it: the first file's, or none.
                if key not in OWN_NOTES:
                    merged.setdefault(key, value)
        if AREA in merged:
            merged[AREA] = united_area([(file.metadata or {})[AREA] for file in self.files])
        if self.record is not None:
            return {**merged, RECORD: self.record}
        return merged if self.keeps_row_groups else without_record(merged)

    @property
    def keeps_row_groups(self) -> bool:
        """Whether rows are to stay in the row groups they are in, because these were cut with care."""
        return self.record is None and self.files[0].clustering is not None

    @cached_property
    def copies(self) -> Copies:
        """For each file which of its row groups are copied as bytes. What is split is encoded."""
        rewrite = "encode" if self.outputs > 1 else self.rewrite
        return copies(self.files, rewrite, self.compression, keeps_row_groups=self.keeps_row_groups)

    @property
    def kept_order(self) -> tuple[str, ...]:
        """The columns by which the rows of each row group are sorted, if row groups stay and all of them are."""
        clustering = self.files[0].clustering if self.keeps_row_groups else None
        if clustering is None:
            return ()
        columns, width = clustering.columns, len(clustering.columns)
        every = all(part.sorted_by[:width] == columns for file in self.files for part in file.row_groups)
        return columns if every else ()

    @property
    def codec(self) -> str:
        """The codec of the new files: the one asked for, else the one that most of the bytes have."""
        if self.compression is not None:
            return self.compression
        return prevailing_codec(self.files) or DEFAULT_CODEC


@dataclass(frozen=True)
class RewritePlan:
    """What will be rewritten and what stays. The groups are independent of each other."""

    operation: Operation
    groups: tuple[FileGroup, ...]
    untouched: tuple[FileInfo, ...]
    clustering: Clustering | None = None
    compression: str | None = None
    #: For each clustering column what queries read of the files, and about what they would read after it.
    reads: Mapping[str, tuple[ColumnReads, ColumnReads]] = field(default_factory=dict)
    #: Why nothing is rewritten where something could be.
    unchanged_because: str | None = None

    @property
    def order_by(self) -> tuple[str, ...]:
        """The columns that rows are laid out by."""
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
) -> RewritePlan:
    """Plan to put small files together and to split those with too many rows."""
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
                )
            )
    return rewrite_plan("compact", files, groups, None, compression)


def in_scope(files: Sequence[FileInfo], scope: CompactionScope) -> list[FileInfo]:
    """The files that are small enough, of the partitions that have enough of them.

    >>> files = [FileInfo(f"day={n % 3}/{n}.parquet", size_bytes=n, num_rows=1) for n in range(7)]
    >>> [file.path for file in in_scope(files, CompactionScope(min_file_count=2, max_file_bytes=5))]
    ['day=0/0.parquet', 'day=1/1.parquet', 'day=0/3.parquet', 'day=1/4.parquet']
    """
    small = [file for file in files if scope.admits(file.size_bytes)]
    counts = Counter(file.directory for file in small)
    return [file for file in small if counts[file.directory] >= scope.min_file_count]


def check_orderable_files(files: Iterable[FileInfo], columns: tuple[str, ...]) -> None:
    """Every file has the clustering columns, in types that can be ordered."""
    seen: dict[int, pa.Schema] = {}
    for file in files:
        if file.schema is not None and id(file.schema) not in seen:
            seen[id(file.schema)] = file.schema
            partition_columns = [column for column, _ in file.partition]
            check_columns_exist(columns, file.schema, "zorder_columns", partition_columns)
            check_orderable(columns, file.schema)


def check_partition_columns(
    columns: str | Sequence[str] | None, schema: pa.Schema, argument: str = "partition_by"
) -> tuple[str, ...]:
    """The columns that new files are partitioned by: they exist, and their values can name a folder."""
    if columns is None:
        return ()
    names = (columns,) if isinstance(columns, str) else check_names(argument, columns)
    check_columns_exist(names, schema, f"{argument} columns")
    check_orderable(names, schema)
    if len(names) == len(schema.names):
        raise InvalidArgument(f"{argument} names every column: nothing would be left to query")
    return names


def cells(files: Iterable[FileInfo], *, by_layout: bool = True) -> list[list[FileInfo]]:
    """Files that may be put together: one directory, one schema, one physical layout.

    Of their metadata only what says how to read a file counts (the calendar of old dates, the encoding of
    geometries): it would be wrong for the rows of other files. Files that were laid out with care are not put
    together with others, nor with those of another layout.
    """
    grouped: dict[tuple[object, ...], list[FileInfo]] = defaultdict(list)
    keys: dict[int, str] = {}
    for file in files:
        schema = file.schema
        if id(schema) not in keys:
            keys[id(schema)] = "" if schema is None else _schema_key(schema)
        layout = file.clustering if by_layout else None
        grouped[file.directory, keys[id(schema)], file.traits, layout, _rules(file)].append(file)
    return list(grouped.values())


def _rules(file: FileInfo) -> tuple[tuple[bytes, object], ...]:
    return tuple(sorted(reading_rules(file.metadata or {}, temporal=file.traits.has_dates).items()))


def prevailing_codec(files: Iterable[FileInfo]) -> str | None:
    """The codec that most bytes of the files are compressed with, in a form that can be written."""
    sizes: Counter[str] = Counter()
    for file in files:
        if file.codec is not None:
            sizes["lz4" if file.codec == HADOOP_LZ4 else file.codec] += max(1, file.size_bytes)
    return sizes.most_common(1)[0][0] if sizes else None


def _schema_key(schema: pa.Schema) -> str:
    # With the metadata of fields (a unit, an id), which belongs to the type; without that of the whole file.
    return str(schema.to_string(truncate_metadata=False, show_field_metadata=True, show_schema_metadata=False))


def rewrite_plan(
    operation: Operation,
    files: Sequence[FileInfo],
    groups: Sequence[FileGroup],
    clustering: Clustering | None,
    compression: str | None,
) -> RewritePlan:
    """A plan for groups of files; the others stay."""
    rewritten = {file.path for group in groups for file in group}
    assert len(rewritten) == sum(map(len, groups)), "a file whose rows go into two groups would be there twice"
    untouched = tuple(file for file in files if file.path not in rewritten)
    return RewritePlan(operation, tuple(groups), untouched, clustering, compression)

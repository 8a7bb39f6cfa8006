"""Plans that rewrite groups of files: compaction, and compaction with an order (optimise)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, repeat
from typing import Literal

import pyarrow as pa

from parketto.errors import InvalidArgument
from parketto.layout.order import check_orderable
from parketto.plan.limits import DEFAULT_CODEC, CompactionScope, Thresholds, check_columns_exist, check_names
from parketto.plan.packing import pack
from parketto.storage.footers import FileInfo, PhysicalTraits, RowGroupInfo

_ARROW_SCHEMA = b"ARROW:schema"

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
        """Key-value metadata of the new files: all keys of all files; where they differ, the first file's."""
        merged = dict(self.files[0].metadata or {})
        for file in self.files:
            for key, value in (file.metadata or {}).items():
                # Arrow's entry describes the types and belongs to the schema: the first file's, or none.
                if key != _ARROW_SCHEMA:
                    merged.setdefault(key, value)
        return merged

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
    order_by: tuple[str, ...] = ()
    compression: str | None = None

    @property
    def files(self) -> list[FileInfo]:
        """All files that were considered."""
        return [*(file for group in self.groups for file in group), *self.untouched]


def plan_compaction(
    files: Sequence[FileInfo],
    thresholds: Thresholds,
    compression: str | None = None,
    scope: CompactionScope | None = None,
) -> RewritePlan:
    """Plan to put small files together and to split those with too many rows."""
    groups: list[FileGroup] = []
    for cell in cells(in_scope(files, scope or CompactionScope())):
        for chosen in pack(cell, thresholds):
            outputs = chosen.outputs
            groups.append(
                FileGroup(
                    files=tuple(cell[index] for index in chosen.items),
                    outputs=outputs,
                    max_rows=-(-chosen.num_rows // outputs) if outputs > 1 else None,
                    even=True,
                    compression=compression,
                )
            )
    return _plan("compact", files, groups, (), compression)


def in_scope(files: Sequence[FileInfo], scope: CompactionScope) -> list[FileInfo]:
    """The files that are small enough, of the partitions that have enough of them.

    >>> files = [FileInfo(f"day={n % 3}/{n}.parquet", size_bytes=n, num_rows=1) for n in range(7)]
    >>> [file.path for file in in_scope(files, CompactionScope(min_file_count=2, max_file_bytes=5))]
    ['day=0/0.parquet', 'day=1/1.parquet', 'day=0/3.parquet', 'day=1/4.parquet']
    """
    small = [file for file in files if scope.admits(file.size_bytes)]
    counts = Counter(file.directory for file in small)
    return [file for file in small if counts[file.directory] >= scope.min_file_count]


def plan_optimization(
    files: Sequence[FileInfo],
    columns: tuple[str, ...],
    thresholds: Thresholds,
    compression: str | None = None,
) -> RewritePlan:
    """Plan to order all rows of each cell; cells that are in order already are left alone."""
    groups: list[FileGroup] = []
    for cell in cells(files):
        if in_order(cell, columns, thresholds):
            continue
        rows = sum(file.num_rows for file in cell)
        by_rows = None if thresholds.target_rows is None else max(1, -(-rows // thresholds.target_rows))
        groups.append(
            FileGroup(
                files=tuple(cell),
                outputs=thresholds.files_needed(sum(file.size_bytes for file in cell), rows),
                max_rows=None if by_rows is None else max(1, -(-rows // by_rows)),
                roll_bytes=thresholds.target_bytes,
                compression=compression,
            )
        )
    return _plan("optimize", files, groups, columns, compression)


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


def cells(files: Iterable[FileInfo]) -> list[list[FileInfo]]:
    """Files that may be put together: one directory, one schema (metadata of files aside), one physical layout."""
    grouped: dict[tuple[object, ...], list[FileInfo]] = defaultdict(list)
    keys: dict[int, str] = {}
    for file in files:
        schema = file.schema
        if id(schema) not in keys:
            keys[id(schema)] = "" if schema is None else _schema_key(schema)
        grouped[file.directory, keys[id(schema)], file.traits].append(file)
    return list(grouped.values())


def in_order(files: Sequence[FileInfo], columns: tuple[str, ...], thresholds: Thresholds) -> bool:
    """Whether ordering these files again would gain nothing, as far as their footers tell.

    Each row group declares the order, no two row groups overlap in the first column, and the files are neither
    too small nor too long. Where footers have no bounds nobody can skip by them, so there is nothing to gain.
    """
    if thresholds.target_rows is not None and any(f.num_rows > thresholds.target_rows for f in files):
        return False
    groups = [group for file in files for group in file.row_groups if group.num_rows]
    if any(group.sorted_by[: len(columns)] != columns for group in groups):
        return False
    return not _too_small(files, columns[0], thresholds) and not _overlapping(groups, columns[0])


def _too_small(files: Sequence[FileInfo], column: str, thresholds: Thresholds) -> bool:
    """Whether neighbours would fit into one file; the last piece of a cut, after a larger one, may."""
    bounds = [(file.column_stats(column), file) for file in files]
    known = [(stats.min, stats.max, file.path, file) for stats, file in bounds if stats.min is not None]
    ordered = [item[-1] for item in sorted(known, key=lambda item: item[:3])]
    ordered += [file for stats, file in bounds if stats.min is None]
    weights = [thresholds.weight(file.size_bytes, file.num_rows) for file in ordered]
    fitting = [max(pair) for pair in pairwise(weights) if sum(pair) <= thresholds.capacity]
    return len(fitting) > 1 or any(2 * larger <= thresholds.capacity for larger in fitting)


def prevailing_codec(files: Iterable[FileInfo]) -> str | None:
    """The codec that most bytes of the files are compressed with."""
    sizes: Counter[str] = Counter()
    for file in files:
        if file.codec is not None:
            sizes[file.codec] += max(1, file.size_bytes)
    return sizes.most_common(1)[0][0] if sizes else None


def _overlapping(groups: Sequence[RowGroupInfo], column: str) -> bool:
    bounds = []
    for group in groups:
        stats = group.columns.get(column)
        if stats is not None and stats.null_count == group.num_rows:
            continue  # only NULLs: they come last, wherever that is
        if stats is None or stats.min is None:
            return False
        bounds.append((stats.min, stats.max))
    bounds.sort()
    return any(low < high for (_, high), (low, _) in pairwise(bounds))


def _schema_key(schema: pa.Schema) -> str:
    # With the metadata of fields (a unit, an id), which belongs to the type; without that of the whole file.
    return str(schema.to_string(truncate_metadata=False, show_field_metadata=True, show_schema_metadata=False))


def _plan(
    operation: Operation,
    files: Sequence[FileInfo],
    groups: list[FileGroup],
    order_by: tuple[str, ...],
    compression: str | None,
) -> RewritePlan:
    rewritten = {file.path for group in groups for file in group}
    untouched = tuple(file for file in files if file.path not in rewritten)
    return RewritePlan(operation, tuple(groups), untouched, order_by, compression)

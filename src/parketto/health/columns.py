"""What queries on single columns read: the overlap of row groups, estimated from bounds in footers."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from parketto.errors import ColumnNotFound, IncompatibleTypes, InvalidArgument
from parketto.health.results import ColumnHealth
from parketto.health.schemas import dataset_types
from parketto.health.tally import Tally
from parketto.parquet.clustering_metadata import Clustering, read_clustering
from parketto.parquet.dataset_schema import presented_stats
from parketto.parquet.file_info import FileInfo
from parketto.parquet.partition_spec import path_types
from parketto.parquet.row_group_info import UNKNOWN_STATS, ColumnStats, RowGroupInfo
from parketto.planning.clustering import expected_range
from parketto.planning.skipping import column_reads
from parketto.sorting.order import is_orderable

_MAX_COLUMNS = 16  # whose bounds are compared, if the caller names none


def default_columns(file: FileInfo) -> tuple[str, ...]:
    """The columns to examine: those of the clustering and the path, then others of a type that has an order."""
    assert file.schema is not None, "a footer has a schema"
    recorded = read_clustering(file.metadata)
    first = [*(recorded.columns if recorded else ()), *(name for name, _ in file.partition)]
    others = [item.name for item in file.schema if is_orderable(item.type) and not pa.types.is_null(item.type)]
    return tuple(dict.fromkeys([*first, *others]))[:_MAX_COLUMNS]


@dataclass(frozen=True)
class Bounds:
    """The row groups of a sample of files, with bounds in the types of the dataset.

    Attributes:
        stored: For each row group, its file, and the row group as its footer describes it.
        groups: The row groups with rows.
        types: The type of each examined column.
        partition_columns: The columns in the paths.
    """

    stored: Sequence[tuple[FileInfo, RowGroupInfo]]
    groups: Sequence[RowGroupInfo]
    types: Mapping[str, pa.DataType]
    partition_columns: Collection[str]

    @classmethod
    def of(cls, tally: Tally, columns: Sequence[str], *, given: bool) -> Bounds:
        """The bounds of columns; of those that a caller has `given`, each must exist."""
        sample = tally.sample.files
        in_paths = path_types(file.partition for file in sample)
        types: dict[str, pa.DataType | None] = {**in_paths, **dataset_types(tally.layouts.values())}
        if given:
            _check(columns, types)
        used = {
            name: kind
            for name in columns
            if (kind := types.get(name)) is not None and is_orderable(kind) and not pa.types.is_null(kind)
        }
        found = [
            ((file, stored), group)
            for file in sample
            for stored, group in zip(file.row_groups, _presented(file, used), strict=True)
            if group.num_rows
        ]
        return cls([stored for stored, _ in found], [group for _, group in found], used, tuple(in_paths))

    def columns(self, tally: Tally) -> list[ColumnHealth]:
        """What queries on each column read."""
        clustered = {name for each in tally.clusterings for name in each["columns"]}
        if_sorted = _range_if_sorted(tally.sorted_row_groups())
        found = []
        for name, kind in self.types.items():
            reads = column_reads(self.groups, name)
            is_partition = name in self.partition_columns
            bounded = sum(_is_bounded(group, name) for group in self.groups)
            found.append(
                ColumnHealth(
                    column=name,
                    type=str(kind),
                    partition=is_partition,
                    clustered=name in clustered,
                    bounded=bounded / len(self.groups) if self.groups else 0.0,
                    point=reads["point"],
                    range=reads["range"],
                    depth=_whole_depth(reads["depth"], tally),
                    range_if_sorted=reads["range"] if is_partition else min(reads["range"], if_sorted),
                )
            )
        return found


def _whole_depth(depth: int, tally: Tally) -> int:
    """The depth of all row groups, by that of the sample: of those that overlap a row group, it has a share."""
    return min(tally.row_groups, round(1 + (depth - 1) / tally.sample.share)) if depth else 0


def _check(columns: Sequence[str], types: Mapping[str, pa.DataType | None]) -> None:
    if missing := [name for name in columns if name not in types]:
        raise ColumnNotFound(missing, types)
    for name in columns:
        kind = types[name]
        if kind is not None and not is_orderable(kind):
            raise InvalidArgument(f"column {name!r} has no order: its type is {kind}")


def _presented(file: FileInfo, types: Mapping[str, pa.DataType]) -> Iterable[RowGroupInfo]:
    """The row groups of a file, with bounds in the given types."""
    columns: list[dict[str, ColumnStats]] = [{} for _ in file.row_groups]
    for name, kind in types.items():
        for found, each in zip(columns, _stats(file, name, kind), strict=False):
            found[name] = each
    return [
        RowGroupInfo(group.num_rows, group.total_byte_size, columns=found)
        for group, found in zip(file.row_groups, columns, strict=True)
    ]


def _stats(file: FileInfo, name: str, kind: pa.DataType) -> Sequence[ColumnStats]:
    """The bounds of a column in each row group; none if they are unknown."""
    assert file.schema is not None, "a footer has a schema"
    text = dict(file.partition).get(name)
    if name not in file.schema.names and text is not None and kind in _PATH_TYPES:
        with contextlib.suppress(ValueError):
            value = _PATH_TYPES[kind](text)
            return [ColumnStats(value, value, 0)] * len(file.row_groups)
    try:
        return presented_stats(file, pa.field(name, kind)) or ()
    except IncompatibleTypes:  # a value in the path that does not fit the type: such a file is always read
        return ()


# Values of paths as bounds, as in footers. Arrow's conversion of Python objects imports pandas, for a second.
_PATH_TYPES: dict[pa.DataType, Callable[[str], Any]] = {
    pa.int64(): int,
    pa.date32(): lambda text: (dt.date.fromisoformat(text) - dt.date(1970, 1, 1)).days,
    pa.string(): str,
}


def _is_bounded(group: RowGroupInfo, name: str) -> bool:
    stats = group.columns.get(name, UNKNOWN_STATS)
    return stats.min is not None or stats.null_count == group.num_rows


def _range_if_sorted(row_groups: Iterable[int]) -> float:
    """What a range of 1 % reads if each partition, with so many row groups, is sorted by the column."""
    counts = list(row_groups)
    by_one = Clustering(("column",))
    return sum(count * expected_range(by_one, count) for count in counts) / max(1, sum(counts))

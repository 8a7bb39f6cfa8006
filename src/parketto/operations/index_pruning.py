"""Which files a condition rules out by the footer index, so that their footers are not read.

Files are judged in blocks. The files of a block have one layout and bounds that lie together, and the block has
the bounds of all of them. So the same rules as for footers apply (`expressions/pruning.py`), and a file that is
ruled out never becomes an object.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from parketto.commit.footer_index import FooterIndex
from parketto.commit.index_rows import (
    MAX_COLUMNS,
    column_of,
    concatenated,
    entry_keys,
    index_rows,
    keys_of,
    lasting,
)
from parketto.expressions.conditions import Predicate
from parketto.expressions.pruning import may_match
from parketto.operations.folder_types import partitions_without_rows
from parketto.operations.indexed_files import Read, indexed_files
from parketto.operations.path_pruning import RowCondition
from parketto.parquet.bounded_columns import MentionedColumns, StatsColumns, WithLeadingColumns
from parketto.parquet.dataset_schema import unified
from parketto.parquet.file_info import FileInfo, with_bounds_of
from parketto.parquet.partition_spec import PartitionSpec, partition_spec_of
from parketto.parquet.row_group_info import UNKNOWN_STATS, ColumnStats, RowGroupInfo
from parketto.parquet.snapshot import RuledOut, Snapshot
from parketto.runtime.arrays import numbers
from parketto.storage.hive import PartitionValues, partition_values
from parketto.storage.listing import directory_of
from parketto.storage.store import FileEntry

_BLOCK = 64  # files that are judged together first
_FEW = 1000  # files up to which each is judged on its own, even if most of the blocks may match
Numbers = npt.NDArray[np.int64]
_BATCH = 2048  # footers in memory at once
_KEPT = 4096  # files up to which all footers are kept, because many may be needed again


@dataclass(frozen=True)
class IndexSearch:
    """Finds the files that may have matching rows, by the index and the footers that it lacks.

    Attributes:
        index: The index.
        root: The dataset.
        read: Reads footers, with the bounds of some columns.
        learn: Receives the rows that the index lacks; None if they are not kept.
        begun: A time before the files were listed, in seconds since the epoch.
        in_tasks: The number of files from which on tasks read footers; 0 if they never do.
    """

    index: FooterIndex
    root: str
    read: Read
    learn: Callable[[pa.Table], None] | None
    begun: float = 0.0
    in_tasks: int = 0

    def files(
        self, entries: Sequence[FileEntry], columns: StatsColumns = (), judged: Container[str] = ()
    ) -> IndexedFiles:
        """Listed files with their rows of the index; those that it lacks are made from footers.

        Args:
            entries: The files.
            columns: The columns whose bounds are kept in footers; None keeps all.
            judged: The columns whose bounds are kept in rows.
        """
        rows = self.index.load(judged)
        known = pc.is_in(keys_of(entry_keys(entries, self.root)), keys_of(rows))
        unknown = [entry for entry, found in zip(entries, known.to_pylist(), strict=True) if not found]
        all_bounds = self.learn is None or columns is None
        wanted = columns if all_bounds else WithLeadingColumns(columns or (), MAX_COLUMNS)
        kept: dict[str, FileInfo] = {}
        tables = []
        for found in self._batches(unknown, wanted):
            tables.append(index_rows(found, self.root, judged))
            kept |= {file.path: file for file in found} if len(unknown) <= _KEPT else {}
        fresh = concatenated(tables) if tables else rows.slice(0, 0)
        if self.learn is not None:
            self.learn(lasting(fresh, unknown, self.begun))
        return IndexedFiles.of(self.root, entries, concatenated([fresh, rows]), kept)

    def described(self, entries: Sequence[FileEntry], columns: StatsColumns, *, learns: bool) -> Snapshot:
        """All files, by the index as far as it knows them.

        Args:
            entries: The files.
            columns: The columns whose bounds are kept; None keeps all.
            learns: Whether rows are made of the footers that the index lacks. They need the bounds of the first
                columns, too.
        """
        rows = indexed_files(self.index, entries, self.root, columns, self.read)
        found = {path: file for path, file in rows.items() if file is not None}
        # A second row of a file would hold no more than its first.
        lacking = [entry for entry in entries if entry.path not in rows]
        if self.learn is not None and learns and lacking:
            tables = []
            more = columns if columns is None else WithLeadingColumns(columns, MAX_COLUMNS)
            for files in self._batches(lacking, more):
                tables.append(index_rows(files, self.root))
                few = len(lacking) <= _BATCH  # each batch may keep some bytes of files
                slim = (with_bounds_of(file if few else replace(file, tail=b""), columns) for file in files)
                found |= {file.path: file for file in slim}
            self.learn(lasting(concatenated(tables), lacking, self.begun))
        unknown = [entry for entry in entries if entry.path not in found]
        if unknown:
            found |= {file.path: file for file in self.read(unknown, columns)}
        return Snapshot(self.root, tuple(found[entry.path] for entry in entries))

    def matching(
        self,
        entries: Sequence[FileEntry],
        columns: StatsColumns,
        rows: RowCondition,
        types_without: Callable[[Set[PartitionValues]], Mapping[str, pa.DataType]],
        sample: Sequence[FileInfo] = (),
    ) -> Snapshot:
        """The footers of all files that may match, and of one file of each layout.

        Args:
            entries: The files.
            columns: The columns whose bounds are kept.
            rows: Which rows are looked for.
            types_without: The types of partition columns, judged without some partitions.
            sample: Further files of the dataset, which show its schema.
        """
        files = self.files(entries, columns, MentionedColumns(str(rows.where)))
        types = types_without(partitions_without_rows(files.partitions()))
        like = files.representatives()
        footers = dict(files.kept)
        self._read(files.select(like), columns, footers)
        shown = [*(footers[entry.path] for entry in files.select(like)), *(file.stored for file in sample)]
        known = [replace(file, path_types=types) for file in shown]
        presented = unified(known).files
        spec = partition_spec_of(presented)
        assert presented[0].schema is not None, "a footer always has a schema"
        schema = spec.row_schema(presented[0].schema)
        condition = rows.predicate(schema)
        if rows.changed(schema) & set(spec.partition_by):
            numbers = np.arange(len(entries))  # rows that move to other folders need to know these
        else:
            numbers = np.union1d(like, files.possible(condition, known, spec))
        chosen = files.select(numbers)
        self._read(chosen, columns, footers)
        others = RuledOut(
            files=len(entries) - len(chosen),
            rows=int(files.counts.sum()) - int(files.counts[numbers].sum()),
            listed=[entry.path for entry in entries],
            folders=files.by_folder([name for name in condition.columns if name in spec.partition_by], known[0]),
        )
        found = Snapshot(self.root, tuple(footers[entry.path] for entry in chosen), ruled_out=others)
        return found.with_path_types(types)

    def _batches(self, entries: Sequence[FileEntry], columns: StatsColumns) -> Iterator[list[FileInfo]]:
        """The footers of files, some at a time: the bounds of many columns take much memory."""
        size = max(_BATCH, self.in_tasks) if len(entries) >= self.in_tasks else _BATCH
        for start in range(0, len(entries), size):
            yield list(self.read(entries[start : start + size], columns))

    def _read(self, entries: Sequence[FileEntry], columns: StatsColumns, footers: dict[str, FileInfo]) -> None:
        missing = [entry for entry in entries if entry.path not in footers]
        footers |= {file.path: file for file in self.read(missing, columns)}


@dataclass(frozen=True)
class IndexedFiles:
    """Listed files in path order, each with its row of the index.

    Attributes:
        root: The dataset.
        entries: The files.
        rows: Their rows, in the same order.
        kept: Footers that were read because the index lacks their rows, by path.
    """

    root: str
    entries: Sequence[FileEntry]
    rows: pa.Table
    kept: Mapping[str, FileInfo]

    @classmethod
    def of(
        cls, root: str, entries: Sequence[FileEntry], rows: pa.Table, kept: Mapping[str, FileInfo]
    ) -> IndexedFiles:
        """The files; each must have a row."""
        at = pc.index_in(keys_of(entry_keys(entries, root)), keys_of(rows))
        return cls(root, entries, rows.take(at).combine_chunks(), kept)

    @cached_property
    def counts(self) -> Numbers:
        """The number of rows of each file."""
        return numbers(self.rows["rows"])

    def select(self, numbers: Numbers) -> list[FileEntry]:
        """Some of the files."""
        return [self.entries[at] for at in numbers]

    def partitions(self) -> Iterator[tuple[PartitionValues, int]]:
        """The partition of each file, and its number of rows."""
        folders = [directory_of(entry, self.root) for entry in self.entries]
        values = {folder: partition_values(folder) for folder in set(folders)}
        return ((values[folder], count) for folder, count in zip(folders, self.counts.tolist(), strict=True))

    def representatives(self) -> Numbers:
        """The first file of each layout and form of partitioning, one with rows and one without."""
        directories = [directory_of(entry, self.root) for entry in self.entries]
        columns = {each: tuple(name for name, _ in partition_values(each)) for each in set(directories)}
        names = {value: number for number, value in enumerate(sorted(set(columns.values())))}
        key = pa.table(
            {
                "layout": self.rows["layout"],
                "columns": pa.array([names[columns[each]] for each in directories], pa.int64()),
                "filled": pc.greater(self.rows["rows"], 0),
                "at": pa.array(range(len(self.entries)), pa.int64()),
            }
        )
        first = key.group_by(["layout", "columns", "filled"], use_threads=False).aggregate([("at", "min")])
        return np.sort(first["at_min"].to_numpy())

    def by_folder(self, columns: Sequence[str], like: FileInfo) -> list[FileInfo]:
        """For each folder, a file with the bounds of some columns over all of its files."""
        bounds = {name: _Bounds(self.rows, name) for name in columns}
        if not any(each.is_known for each in bounds.values()):
            return []
        numbers: dict[str, list[int]] = {}
        for at, entry in enumerate(self.entries):
            numbers.setdefault(directory_of(entry, self.root), []).append(at)
        return [
            replace(
                like,
                path=self.entries[members[0]].path,
                partition=partition_values(folder),
                num_rows=(rows := int(self.counts[members].sum())),
                row_groups=(
                    RowGroupInfo(rows, 1, columns={name: each.known(members) for name, each in bounds.items()}),
                ),
            )
            for folder, members in numbers.items()
        ]

    def possible(self, condition: Predicate, known: Sequence[FileInfo], spec: PartitionSpec) -> Numbers:
        """The files that may have matching rows.

        Args:
            condition: The condition.
            known: At least one file of each layout, as its footer describes it.
            spec: How the dataset is partitioned.
        """
        judge = _Judge(self, condition, known, spec)
        left = np.flatnonzero(self.counts > 0)
        for column in condition.columns:
            left = judge.left(left, column, _BLOCK)
        if len(left) <= max(_FEW, len(self.entries) // 2):
            left = judge.left(left, None, 1)
        return np.sort(left)


class _Judge:
    """Judges blocks of files."""

    def __init__(
        self, files: IndexedFiles, condition: Predicate, known: Sequence[FileInfo], spec: PartitionSpec
    ) -> None:
        self._files, self._condition, self._types = files, condition, spec.path_only
        self._known = list(known)
        self._like = _by_layout(known, files)
        self._bounds = {name: _Bounds(files.rows, name) for name in condition.columns}
        self._counts = files.counts
        _, layouts = np.unique(
            files.rows["layout"].to_numpy(zero_copy_only=False).astype(str), return_inverse=True
        )
        groups = layouts.astype(np.int64)
        if len(self._like) > 1 or any(name in spec.path_only for name in condition.columns):
            folders = [directory_of(entry, files.root) for entry in files.entries]
            _, places = np.unique(np.array(folders), return_inverse=True)
            groups = groups * (int(places.max(initial=0)) + 1) + places
        self._groups = groups

    def left(self, numbers: Numbers, column: str | None, size: int) -> Numbers:
        """The files of blocks that may match. A block has files of one group, in the order of a column."""
        if not len(numbers):
            return numbers
        order = np.arange(len(numbers)) if column is None else self._bounds[column].order(numbers)
        numbers = numbers[order]
        numbers = numbers[np.argsort(self._groups[numbers], kind="stable")]
        changes = np.flatnonzero(np.diff(self._groups[numbers])) + 1
        blocks = [
            part[start : start + size]
            for part in np.split(numbers, changes)
            for start in range(0, len(part), size)
        ]
        shown = unified([*self._known, *map(self._block, blocks)]).files[len(self._known) :]
        kept = may_match(self._condition, shown, self._types)
        empty: Numbers = np.empty(0, np.int64)
        return np.concatenate([empty, *(block for block, may in zip(blocks, kept, strict=True) if may)])

    def _block(self, numbers: Numbers) -> FileInfo:
        """A file that stands for all files of a block."""
        first = int(numbers[0])
        entry = self._files.entries[first]
        rows = int(self._counts[numbers].sum())
        columns = {name: bounds.of(numbers, self._counts) for name, bounds in self._bounds.items()}
        directory = directory_of(entry, self._files.root)
        return replace(
            self._like[self._files.rows["layout"][first].as_py()],
            path=entry.path,
            directory=f"{self._files.root}/{directory}".rstrip("/"),
            partition=partition_values(directory),
            num_rows=rows,
            row_groups=(RowGroupInfo(rows, 1, columns={n: each for n, each in columns.items() if each}),),
            path_types=None,
        )


def _by_layout(known: Sequence[FileInfo], files: IndexedFiles) -> dict[str, FileInfo]:
    """A file of each layout."""
    named = {file.path: file for file in known}
    layouts = files.rows["layout"].to_pylist()
    found: dict[str, FileInfo] = {}
    for entry, layout in zip(files.entries, layouts, strict=True):
        if layout not in found and entry.path in named:
            found[layout] = named[entry.path]
    return found


class _Bounds:
    """The bounds of one column."""

    def __init__(self, rows: pa.Table, name: str) -> None:
        fields = [each for each in rows.schema.names if column_of(each) == name]
        self._ends = [(rows[each], rows[f"max{each[3:]}"]) for each in fields if each.startswith("min:")]
        self._nulls = rows[f"nulls::{name}"] if f"nulls::{name}" in fields else None

    @property
    def is_known(self) -> bool:
        """Whether anything is known of any file."""
        columns = [low for low, _ in self._ends] + ([] if self._nulls is None else [self._nulls])
        return any(each.null_count < len(each) for each in columns)

    def known(self, numbers: Sequence[int]) -> ColumnStats:
        """What is known of those of these files of which anything is."""
        at = pa.array(numbers)
        nulls = None if self._nulls is None else pc.sum(self._nulls.take(at)).as_py()
        ends = [(low.take(at), high.take(at)) for low, high in self._ends]
        bounded = [(low, high) for low, high in ends if low.null_count < len(low)]
        if len(bounded) != 1:
            return ColumnStats(None, None, nulls)
        low, high = bounded[0]
        return ColumnStats(pc.min(low).as_py(), pc.max(high).as_py(), nulls)

    def order(self, numbers: Numbers) -> Numbers:
        """An order of files in which their bounds lie together."""
        if not self._ends:
            return np.arange(len(numbers))
        low = max((low for low, _ in self._ends), key=lambda each: len(each) - each.null_count)
        order: Numbers = pc.sort_indices(low.take(pa.array(numbers))).to_numpy().astype(np.int64)
        return order

    def of(self, numbers: Numbers, counts: Any) -> ColumnStats | None:
        """The bounds of all these files; None if nothing is known."""
        if self._nulls is None:
            return None
        at = pa.array(numbers)
        nulls = self._nulls.take(at)
        total = None if nulls.null_count else pc.sum(nulls).as_py()
        empty = pc.sum(pc.fill_null(pc.equal(nulls, pa.array(counts[numbers])), False)).as_py()
        ends = [(low.take(at), high.take(at)) for low, high in self._ends]
        bounded = [(low, high) for low, high in ends if low.null_count < len(low)]
        if len(bounded) != 1 or len(bounded[0][0]) - bounded[0][0].null_count < len(numbers) - empty:
            return ColumnStats(None, None, total) if total is not None else UNKNOWN_STATS
        low, high = bounded[0]
        return ColumnStats(pc.min(low).as_py(), pc.max(high).as_py(), total)

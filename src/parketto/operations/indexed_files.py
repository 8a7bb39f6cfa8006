"""Files as the footer index describes them: the same objects as from their footers, which are not read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from parketto.commit.footer_index import FooterIndex
from parketto.commit.index_rows import MAX_COLUMNS, column_of, entry_keys, form_of, keys_of
from parketto.parquet.bounded_columns import StatsColumns, columns_with_bounds, with_clustering_columns
from parketto.parquet.file_info import FileInfo
from parketto.parquet.row_group_info import NO_COLUMNS, ColumnStats, RowGroupInfo
from parketto.storage.hive import PartitionValues, partition_values
from parketto.storage.listing import directory_of
from parketto.storage.store import FileEntry

# If the files of one form are fewer on average, their footers are read: one of each form is needed anyway.
_MIN_FILES_PER_FORM = 4
# Fields that files are found by, and not made of: as Python values they would take 320 bytes for each file.
_IDENTITY = frozenset({"path", "fingerprint", "size", "layout"})

Read: TypeAlias = Callable[[Sequence[FileEntry], StatsColumns], Iterable[FileInfo]]
Values: TypeAlias = dict[str, list[Any]]
Ends: TypeAlias = tuple[Sequence[Any], Sequence[Any]]


@dataclass(frozen=True)
class _Form:
    """What files of one form have in common.

    Attributes:
        like: One of them, with the bounds of all columns.
        names: The columns whose bounds are kept.
    """

    like: FileInfo
    names: Sequence[str]

    @classmethod
    def of(cls, like: FileInfo, columns: StatsColumns) -> _Form:
        """The form of a file."""
        leaves = list(like.row_groups[0].columns) if like.row_groups else []
        return cls(like, columns_with_bounds(leaves, with_clustering_columns(columns, like.metadata)))

    @property
    def is_held(self) -> bool:
        """Whether rows of the index may hold the bounds of all its columns."""
        assert self.like.schema is not None, "a footer always has a schema"
        return set(self.names) <= set(self.like.schema.names[:MAX_COLUMNS])


def indexed_files(
    index: FooterIndex, entries: Sequence[FileEntry], root: str, columns: StatsColumns, read: Read
) -> dict[str, FileInfo | None]:
    """The files that have rows, by path; None if a footer says more than its row could.

    Args:
        index: The index.
        entries: The listed files.
        root: The dataset.
        columns: The columns whose bounds are kept; None keeps all.
        read: Reads footers: those of one file of each form.
    """
    rows = index.load(columns, row_groups=True)
    at = pc.index_in(keys_of(entry_keys(entries, root)), keys_of(rows)) if rows.num_rows else None
    if at is None or at.null_count == len(entries):
        return {}
    found = rows.take(pc.drop_null(at)).combine_chunks()
    listed = [entry for entry, number in zip(entries, at.to_pylist(), strict=True) if number is not None]
    first: dict[str, FileEntry] = {}
    names = found["form"].to_pylist()
    for entry, name in zip(listed, names, strict=True):
        if name is not None:
            first.setdefault(name, entry)
    unmade = dict.fromkeys(entry.path for entry in listed)
    if len(listed) < _MIN_FILES_PER_FORM * len(first):
        return unmade
    shown = dict(zip(first, read(list(first.values()), None), strict=True))
    forms = {name: _Form.of(file, columns) for name, file in shown.items() if form_of(file) == name}
    # Another version of Arrow may serialize schemas in another way: new rows are better than these.
    stale = first.keys() - forms.keys()
    held = {name: form for name, form in forms.items() if form.is_held}
    if {name for form in held.values() for name in form.names} - _fields(found).keys():
        # Clustering columns, which the metadata of the forms show.
        wanted = frozenset(name for form in held.values() for name in form.names)
        rows = index.load(wanted, row_groups=True)
        at = pc.index_in(keys_of(entry_keys(listed, root)), keys_of(rows))
        if at.null_count:
            return unmade  # segments were folded meanwhile
        found = rows.take(at).combine_chunks()
    made = _Rows(found, root, held)
    return {
        entry.path: made.file(number, entry)
        for number, (entry, name) in enumerate(zip(listed, names, strict=True))
        if name not in stale
    }


def _fields(rows: pa.Table) -> dict[str, list[str]]:
    """The fields with the bounds of each column."""
    found: dict[str, list[str]] = {}
    for key in rows.schema.names:
        if (column := column_of(key)) is not None:
            found.setdefault(column, []).append(key)
    return found


class _Rows:
    """Rows of the index as Python values, from which files are made."""

    def __init__(self, rows: pa.Table, root: str, forms: Mapping[str, _Form]) -> None:
        self._root, self._forms = root, forms
        used = [name for name in rows.schema.names if name not in _IDENTITY]
        self._values: Values = {name: rows[name].to_pylist() for name in used}
        self._bounds = {name: _Bounds.of(self._values, name, keys) for name, keys in _fields(rows).items()}
        self._partitions: dict[str, PartitionValues] = {}

    def file(self, number: int, entry: FileEntry) -> FileInfo | None:
        """The file of a row; None if its form is unknown, or the row does not hold the bounds that are kept."""
        values = self._values
        form = self._forms.get(values["form"][number])
        if form is None or not set(values["inexact"][number]).isdisjoint(form.names):
            return None
        directory = directory_of(entry, self._root)
        if directory not in self._partitions:
            self._partitions[directory] = partition_values(directory)
        return replace(
            form.like,
            path=entry.path,
            size_bytes=entry.size_bytes,
            num_rows=values["rows"][number],
            directory="",
            partition=self._partitions[directory],
            fingerprint=entry.fingerprint,
            row_groups=tuple(self._row_groups(number, form)),
            tail=b"",
        )

    def _row_groups(self, number: int, form: _Form) -> Iterator[RowGroupInfo]:
        counts, sizes = self._values["group_rows"][number], self._values["group_bytes"][number]
        bounds = [(name, self._bounds[name].of_groups(number, len(counts))) for name in form.names]
        like = form.like.row_groups
        for at, (count, size) in enumerate(zip(counts, sizes, strict=True)):
            one = like[at if len(like) == len(counts) else 0]  # if the numbers differ, all groups are alike
            columns = {name: stats[at] for name, stats in bounds} or NO_COLUMNS
            yield RowGroupInfo(count, size, one.sorted_by, columns, one.codec)


@dataclass(frozen=True)
class _Bounds:
    """The bounds of one column, by the number of the row."""

    nulls: Sequence[Any]
    ends: Sequence[Ends]
    group_nulls: Sequence[Any] | None
    group_ends: Sequence[Ends]

    @classmethod
    def of(cls, values: Values, name: str, keys: Sequence[str]) -> _Bounds:
        """The bounds of a column, in some fields."""

        def ends(mark: str) -> list[Ends]:
            return [(values[key], values[f"max{key[3:]}"]) for key in keys if key.startswith(f"min{mark}:")]

        return cls(values[f"nulls::{name}"], ends(""), values.get(f"nulls@::{name}"), ends("@"))

    def of_groups(self, number: int, count: int) -> list[ColumnStats]:
        """The bounds in each row group of a file."""
        nulls = None if self.group_nulls is None else self.group_nulls[number]
        if nulls is None:  # one row group, with the bounds of the file
            low, high = _of_row(self.ends, number, None)
            return [ColumnStats(low, high, self.nulls[number])]
        lows, highs = _of_row(self.group_ends, number, [None] * count)
        return [ColumnStats(*each) for each in zip(lows, highs, nulls, strict=True)]


def _of_row(ends: Sequence[Ends], number: int, nothing: Any) -> tuple[Any, Any]:
    """The bounds of one row: of the only kind that has any."""
    return next(((low[number], high[number]) for low, high in ends if low[number] is not None), (nothing, nothing))

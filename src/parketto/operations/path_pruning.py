"""Which folders a condition on partition columns rules out, before any of their files is listed.

The values of folders are trusted, as in all readers of partitioned datasets. The condition is parsed in the schema
of two files, the first and the last one. The listed files must confirm that schema; else all files are listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from parketto.errors import ParkettoError
from parketto.expressions.conditions import Predicate, targets
from parketto.expressions.dispatch import assignments, predicate
from parketto.expressions.pruning import may_match, partition_value
from parketto.expressions.time_zones import Clock
from parketto.expressions.values import ARROW_ERRORS, family, plain_type
from parketto.parquet.bounded_columns import MentionedColumns
from parketto.parquet.file_info import FileInfo
from parketto.parquet.partition_spec import partition_spec_of, path_types
from parketto.parquet.snapshot import Snapshot, read_snapshot
from parketto.storage.hive import (
    PartitionFilter,
    PartitionValues,
    directory_matcher,
    folder_matcher,
    is_data_path,
    partition_values,
)
from parketto.storage.store import FileEntry, Store

# Types whose texts in paths have one meaning. A folder of a day may hold the timestamps of that day.
_TRUSTED = ("int", "date", "text", "bool")


@dataclass(frozen=True)
class RowCondition:
    """Which rows an operation is about, and their new values if it changes them."""

    where: Any
    clock: Clock
    changes: Mapping[str, Any] | None = None

    def predicate(self, schema: pa.Schema) -> Predicate:
        """The condition on rows of a schema."""
        return predicate(self.where, schema, self.clock)

    def changed(self, schema: pa.Schema) -> Set[str]:
        """The columns that get new values, by their exact names."""
        return targets(self.changes, schema).keys() if self.changes else frozenset()

    def check(self, schema: pa.Schema) -> None:
        """Raise what the operation raises for rows of a schema."""
        self.predicate(schema)
        if self.changes:
            assignments(self.changes, schema, self.clock)


@dataclass(frozen=True)
class _View:
    """The condition in the schema of the sample, and the types of the columns by which folders are judged."""

    sample: Sequence[FileInfo]
    condition: Predicate
    types: Mapping[str, pa.DataType]
    #: Columns that files contain, too.
    stored: frozenset[str]


class PathPruning:
    """Decides by a condition which folders are listed.

    Args:
        store: Where the dataset is.
        root: Its path.
        rows: The condition.
        partition_filter: The partitions that the operation is limited to.
    """

    def __init__(self, store: Store, root: str, rows: RowCondition, partition_filter: PartitionFilter) -> None:
        self._store, self._root, self._rows, self._filter = store, root, rows, partition_filter
        self._mentioned = MentionedColumns(str(rows.where))
        self._top: dict[str, bool] = {}
        #: Whether any folder was ruled out.
        self.ruled_out = False

    def enter(self, folder: str) -> bool:
        """Whether files below a folder may contain matching rows."""
        if not any(column in self._mentioned for column, _ in partition_values(folder)) or self._view is None:
            return True
        possible = self._top[folder] if folder in self._top else self._judged(self._view, [folder])[folder]
        self.ruled_out |= not possible
        return possible

    @property
    def sample(self) -> Sequence[FileInfo]:
        """Files that show the schema, if no other file may contain matching rows."""
        return () if self._view is None else self._view.sample

    def accepts(self, found: Snapshot) -> bool:
        """Whether the listed files confirm what the sample implied; else all folders must be listed."""
        view, files = self._view, found.files
        if view is None:
            return True
        folders = () if found.ruled_out is None else found.ruled_out.folders
        try:
            spec = partition_spec_of(files)
            assert files[0].schema is not None, "files to judge come from a snapshot"
            schema = spec.row_schema(files[0].schema)
            self._rows.check(schema)
        except ParkettoError:
            return False
        return all(
            plain_type(schema.field(name).type) == plain_type(kind)
            and not any(_is_misplaced(file, name, kind) for file in (*files, *folders))
            for name, kind in view.types.items()
        )

    @cached_property
    def _view(self) -> _View | None:
        """None if the condition cannot be parsed in the schema of the sample, or uses no trusted column."""
        entries = {entry.path: entry for last in (False, True) if (entry := self._end(last=last)) is not None}
        if not entries:
            return None
        folders = [folder for path in entries for folder in self._levels(path)]
        levels = {folder: self._partitions(folder) for folder in dict.fromkeys(folders)}
        names = {name for each in levels.values() for pairs in each.values() for name, _ in pairs[-1:]}
        found = read_snapshot(self._store, self._root, list(entries.values()), names, keep_bytes=False)
        try:
            types = path_types(pairs[-1:] for each in levels.values() for pairs in each.values())
            files = found.with_path_types(types).unified().files
            spec = partition_spec_of(files)
            assert files[0].schema is not None, "a footer always has a schema"
            schema = spec.row_schema(files[0].schema)
            condition = self._rows.predicate(schema)
            moves = bool(self._rows.changed(schema) & set(spec.partition_by))
        except ParkettoError:
            return None  # the operation reports it, once it has seen all files
        judged = {
            name: schema.field(name).type
            for name in condition.columns
            if name in spec.partition_by
            and family(plain_type(schema.field(name).type)) in _TRUSTED
            and not any(_is_misplaced(file, name, schema.field(name).type) for file in files)
        }
        if not judged or moves:
            return None  # rows that move to other folders need to know these
        view = _View(files, condition, judged, frozenset(judged) - frozenset(spec.path_only))
        self._top = self._judged(view, list(levels.get("", ())))
        return view

    def _judged(self, view: _View, folders: Sequence[str]) -> dict[str, bool]:
        shown = [
            FileInfo(folder, size_bytes=1, num_rows=1, partition=tuple(_certain(partition_values(folder), view)))
            for folder in folders
        ]
        return dict(zip(folders, may_match(view.condition, shown, view.types), strict=True))

    def _levels(self, path: str) -> list[str]:
        """The folders above the one that a file is in, from the dataset's own ("") on."""
        segments = path[len(self._root) :].strip("/").split("/")[:-1]
        return ["/".join(segments[:count]) for count in range(len(segments))]

    def _partitions(self, folder: str) -> dict[str, PartitionValues]:
        """The partition folders directly inside a folder, with their values."""
        names = self._store.list_dirs(f"{self._root}/{folder}".rstrip("/"))
        paths = [f"{folder}/{name}".lstrip("/") for name in names if "=" in name]
        return {path: partition_values(path) for path in paths}

    def _end(self, *, last: bool) -> FileEntry | None:
        """The first or the last data file that the filter selects; files in folders come before others."""
        may, matches = folder_matcher(self._filter), directory_matcher(self._filter)

        def search(folder: str) -> Iterator[str]:
            path = f"{self._root}/{folder}".rstrip("/")
            folders = self._store.list_dirs(path)
            for name in sorted(filter(None, folders), reverse=last):  # object stores have folders without a name
                below = f"{folder}/{name}".lstrip("/")
                if is_data_path(f"{below}/a.parquet") and may(below):
                    yield from search(below)
            if matches(folder):
                names = set(self._store.list_names(path)).difference(folders)
                files = [f"{folder}/{name}".lstrip("/") for name in sorted(names, reverse=last)]
                yield from filter(is_data_path, files)

        paths = (f"{self._root}/{each}" for each in search(""))
        return next((entry for path in paths if (entry := self._store.stat(path)) is not None), None)


def _certain(pairs: PartitionValues, view: _View) -> Iterator[tuple[str, str | None]]:
    """The values of a folder that have one meaning: files may contain "" where the path says NULL."""
    for name, text in pairs:
        if text is not None or name not in view.stored or family(plain_type(view.types[name])) != "text":
            yield name, text


def _is_misplaced(file: FileInfo, column: str, kind: pa.DataType) -> bool:
    """Whether the bounds of a stored partition column contradict the folder of its file."""
    folder, stats = dict(file.partition), file.column_stats(column)
    if column not in folder or not file.num_rows:
        return False
    if (text := folder[column]) is None:
        return stats.min is not None and (stats.min, stats.max) != ("", "")  # NULL and "" have the same folder
    if stats.null_count:
        return True
    if stats.min is None:
        return False
    try:
        value = partition_value(text, plain_type(kind))
        expected = value.cast(pa.int32()).as_py() if pat.is_date32(value.type) else value.as_py()
    except (ParkettoError, *ARROW_ERRORS):
        return True
    return bool(stats.min != expected or stats.max != expected)

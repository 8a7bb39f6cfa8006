"""Merge semantics: the strategies, what is refused, and which source row replaces which target row.

The rules, the same for every engine:

* A source key that is in the target is *updated*: afterwards it occurs exactly once, with the source's values,
  NULLs included. Further target rows with that key are removed and counted as *deleted*.
* It keeps its position (the first row with that key, in path order) unless its partition changed: then it moves.
* A source key that is not in the target is *inserted*.
* `total == previous + inserted - deleted`, always.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NotRequired, TypedDict, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from parketto.arguments import check_names
from parketto.errors import ColumnNotFound, IncompatibleTypes, InvalidArgument, quoted
from parketto.parquet.file_info import FileInfo
from parketto.parquet.partition_spec import PartitionSpec
from parketto.parquet.spark_schema import SPARK_SCHEMA_KEY, unnamed_types
from parketto.parquet.variant_types import UNSHREDDED, is_variant
from parketto.sorting.order import check_orderable

Strategy = Literal["upsert", "insert", "update", "full_merge", "deduplicate"]
STRATEGIES: tuple[str, ...] = get_args(Strategy)
Indices = npt.NDArray[np.int64]


class MergeStats(TypedDict):
    """What a merge did, in rows."""

    inserted: int
    updated: int
    deleted: int
    #: The rows of the dataset afterwards: those before, plus inserted, minus deleted.
    total: int
    #: With `backup=`: where the replaced files are, for `restore`; None if none were replaced.
    backup_path: NotRequired[str | None]


@dataclass(frozen=True)
class MergeRules:
    """A strategy with its keys, checked."""

    strategy: str
    keys: tuple[str, ...]
    order_by: tuple[str, ...] = ()
    #: The columns that an update may change; None: all.
    update_columns: tuple[str, ...] | None = None
    #: Whether the source may lack columns: these keep their values, and are NULL in new rows.
    partial: bool = False

    @classmethod
    def of(
        cls,
        strategy: str,
        key_columns: str | Sequence[str],
        dedup_order_by: str | Sequence[str] | None = None,
        update_columns: str | Sequence[str] | None = None,
        *,
        partial: bool = False,
    ) -> MergeRules:
        """Check what can be checked without any data.

        >>> MergeRules.of("replace", ["id"])
        Traceback (most recent call last):
            ...
        parketto.errors.InvalidArgument: unknown strategy 'replace'; valid strategies: 'upsert', 'insert', \
'update', 'full_merge', 'deduplicate'
        """
        if strategy not in STRATEGIES:
            raise InvalidArgument(f"unknown strategy {strategy!r}; valid strategies: {quoted(STRATEGIES)}")
        keys = check_names("key_columns", _listed(key_columns))
        order_by: tuple[str, ...] = ()
        if dedup_order_by is not None:
            if strategy != "deduplicate":
                raise InvalidArgument(f"dedup_order_by applies to the strategy 'deduplicate', not to {strategy!r}")
            order_by = check_names("dedup_order_by", _listed(dedup_order_by))
        if update_columns is None:
            return cls(strategy, keys, order_by, partial=partial)
        columns = check_names("update_columns", _listed(update_columns))
        if strategy == "insert":
            raise InvalidArgument(
                "update_columns makes no sense with the strategy 'insert', which updates nothing"
            )
        if both := [name for name in columns if name in keys]:
            raise InvalidArgument(f"{quoted(both)} cannot be updated: rows are found by their keys")
        return cls(strategy, keys, order_by, columns, partial)

    @property
    def inserts(self) -> bool:
        """Whether keys that are not in the target are added."""
        return self.strategy != "update"

    @property
    def updates(self) -> bool:
        """Whether keys that are in the target get the source's values."""
        return self.strategy != "insert"

    @property
    def removes_missing(self) -> bool:
        """Whether target rows are deleted whose key is not in the source."""
        return self.strategy == "full_merge"

    @property
    def deduplicates(self) -> bool:
        """Whether the source may have duplicate keys."""
        return self.strategy == "deduplicate"


def _listed(names: str | Sequence[str]) -> Sequence[str]:
    return [names] if isinstance(names, str) else names


def check_source(rules: MergeRules, source: pa.Schema) -> None:
    """Check that the source has the columns that the rules name, in comparable types."""
    for argument, columns in (("key_columns", rules.keys), ("dedup_order_by", rules.order_by)):
        if missing := [name for name in columns if name not in source.names]:
            raise ColumnNotFound(missing, source.names, f"{argument} of the source")
        check_orderable(columns, source)
    if missing := [name for name in rules.update_columns or () if name not in source.names]:
        raise ColumnNotFound(missing, source.names, "update_columns of the source")


def check_schemas(rules: MergeRules, source: pa.Schema, target: pa.Schema, spec: PartitionSpec) -> None:
    """Check that source and target have the same columns and types, in any order.

    Strings of any width are one type. So are a dictionary and its values, a type and its Parquet storage type, and
    timestamps or times of any unit, as long as values fit. Partition columns that are stored only in the path are
    untyped text.
    """
    check_source(rules, source)
    if missing := [name for name in rules.keys if name not in target.names]:
        raise ColumnNotFound(missing, target.names, "key_columns of the target")
    only_source = [name for name in source.names if name not in target.names]
    only_target = [name for name in target.names if name not in source.names]
    if rules.partial and not only_source:
        only_target = [name for name in spec.partition_by if name not in source.names]
        if only_target:
            raise ColumnNotFound(only_target, source.names, "partition columns of the dataset in the source")
    if only_source or only_target:
        raise InvalidArgument(
            f"schema mismatch: only the source has {quoted(only_source)}, only the target has "
            f"{quoted(only_target)}. Both need the same columns, in any order"
        )
    recorded, wanted = unnamed_types(source.metadata), unnamed_types(target.metadata)
    # Without Spark's own schema, the source does not declare what its numbers mean: they match the target's.
    undeclared = SPARK_SCHEMA_KEY not in (source.metadata or {})
    wrong = [
        f"{name!r} is {recorded.get(name, source.field(name).type)} in the source and "
        f"{wanted.get(name, target.field(name).type)} in the target"
        for name in target.names
        if name in source.names
        and not (
            path_text_type(source.field(name).type)
            if name in spec.path_only
            else same_kind(source.field(name).type, target.field(name).type)
            and (undeclared or pat.is_null(source.field(name).type) or recorded.get(name) == wanted.get(name))
        )
    ]
    if wrong:
        raise IncompatibleTypes(f"incompatible types: {'; '.join(wrong)}. Cast the source's columns first")


def same_kind(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether values of one type are also values of the other.

    >>> same_kind(pa.large_string(), pa.dictionary(pa.int8(), pa.string())), same_kind(pa.int32(), pa.int64())
    (True, False)
    """
    return bool(pat.is_null(source) or _kind(source) == _kind(target))


def path_text_type(kind: pa.DataType) -> bool:
    """Whether the values of a type are the same text in a path, whatever type a reader parses it as."""
    kind = _kind(kind)
    return bool(pat.is_integer(kind) or pat.is_large_string(kind) or pat.is_date32(kind) or pat.is_boolean(kind))


def _kind(kind: pa.DataType) -> pa.DataType:
    if pat.is_dictionary(kind):
        return _kind(kind.value_type)
    if pat.is_string(kind) or pat.is_string_view(kind):
        return pa.large_string()
    if pat.is_binary(kind) or pat.is_binary_view(kind):
        return pa.large_binary()
    # An instant is the same in every time zone, and in every unit that holds it. Casting fails for values that
    # the target's unit does not hold.
    if pat.is_timestamp(kind):
        return pa.timestamp("ns", None if kind.tz is None else "UTC")
    if pat.is_time(kind):
        return pa.time64("ns")
    # Parquet has one date type.
    if pat.is_date64(kind):
        return pa.date32()
    if pat.is_decimal(kind) and kind.bit_width < 128:
        return pa.decimal128(kind.precision, kind.scale)
    if is_variant(kind):
        return UNSHREDDED
    # Casting also fails for NULLs in nested fields that are declared not null.
    if pat.is_struct(kind):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        return pa.struct([pa.field(item.name, _kind(item.type)) for item in fields])
    if pat.is_map(kind):
        return pa.map_(_kind(kind.key_type), _kind(kind.item_type))
    if pat.is_fixed_size_list(kind):
        return pa.list_(_kind(kind.value_type), kind.list_size)
    if pat.is_list(kind) or pat.is_large_list(kind):
        return pa.large_list(_kind(kind.value_type))
    return kind


@dataclass(frozen=True)
class Change:
    """What an update does to an existing row."""

    #: The columns that get the source's values; None: all of them.
    updated: frozenset[str] | None = None
    #: Whether a row's partition can change: never; if source and target folders differ; or depending on the row.
    moves: Literal["never", "compare", "always"] = "never"

    @classmethod
    def of(cls, rules: MergeRules, source: pa.Schema, target: pa.Schema, spec: PartitionSpec) -> Change:
        """What the rules mean for a source and a target."""
        given = source.names if rules.update_columns is None else rules.update_columns
        updated = frozenset(name for name in given if name not in rules.keys)
        everything = all(name in updated or name in rules.keys for name in target.names)
        is_updated = [name in updated for name in spec.partition_by if name not in rules.keys]
        moves: Literal["never", "compare", "always"] = "never"
        if any(is_updated):
            moves = "compare" if all(is_updated) else "always"
        elif everything and spec.partition_by:
            moves = "compare"  # all are keys: folders are equal, however they are spelled
        return cls(None if everything else updated, moves)


def unfilled(rules: MergeRules, source: pa.Schema, target: pa.Schema) -> InvalidArgument | None:
    """The error for new rows without values for non-nullable columns; None if there are no such columns."""
    missing = [item.name for item in target if item.name not in source.names and not item.nullable]
    if not rules.partial or not missing:
        return None
    return InvalidArgument(
        f"the source has new rows without {quoted(missing)}, declared not null in the target; nothing was changed"
    )


def null_keys(column: str, where: str) -> InvalidArgument:
    """The error for NULLs in a key column."""
    return InvalidArgument(
        f"NULL values in key column {column!r} of the {where}: a key must not be NULL. Filter these rows out or "
        "fill the column first; nothing was changed"
    )


def duplicate_keys(
    strategy: str, keys: Sequence[str], example: Mapping[str, object], count: int, *, complete: bool = True
) -> InvalidArgument:
    """The error for duplicate keys in the source; without `complete` there may be more of them."""
    least = "" if complete else "at least "
    return InvalidArgument(
        f"the source has {least}{count} key(s) of {quoted(keys)} more than once, such as {dict(example)}: "
        f"{strategy!r} cannot decide which row wins. Use strategy='deduplicate', or make the keys unique first; "
        "nothing was changed"
    )


@dataclass(frozen=True)
class FileMatches:
    """The source rows (by number) that have their key in a file, and the number of matched rows in the file.

    `same_folder` is true for source rows that belong to the directory of the file.
    """

    file: FileInfo
    sources: Indices
    same_folder: npt.NDArray[np.bool_]
    num_rows: int


@dataclass(frozen=True)
class FileRewrite:
    """A file to rewrite; the source rows that update it in place, and those that move rows out of it."""

    file: FileInfo
    in_place: Indices
    moves_out: Indices


@dataclass(frozen=True)
class MergeDecision:
    """What happens to every file and every source row."""

    #: Files that are rewritten.
    rewrites: tuple[FileRewrite, ...]
    #: Files that are deleted, because none of their rows remain.
    removals: tuple[FileInfo, ...]
    #: Source rows that are written to new files.
    additions: Indices
    inserted: int
    updated: int
    deleted: int


def decide(
    rules: MergeRules,
    change: Change,
    files: Sequence[FileInfo],
    matches: Sequence[FileMatches],
    source_rows: int,
) -> MergeDecision:
    """Decide what happens to each row. `files` are all files of the target, `matches` are in path order."""
    is_matched = _mask(source_rows, [found.sources for found in matches])
    missing = np.flatnonzero(~is_matched)
    if not rules.updates:
        return MergeDecision((), (), missing, len(missing), 0, 0)
    in_place = _firsts([found.sources[found.same_folder] for found in matches], source_rows)
    is_moved = is_matched & ~_mask(source_rows, in_place)
    moved, none = np.flatnonzero(is_moved), np.empty(0, np.int64)
    moves_out = [none for _ in matches]
    if change.updated is not None and len(moved):
        # Columns that are not updated move along, so the row moves out of the first file that has it.
        moves_out = _firsts([found.sources[is_moved[found.sources]] for found in matches], source_rows)
        moved = none
    updated = int(is_matched.sum())
    touched = [each for each in zip(matches, in_place, moves_out, strict=True) if each[0].num_rows]
    duplicates = sum(found.num_rows for found, _, _ in touched) - updated
    gone = 0
    removals = [
        found.file for found, updates, moves in touched if not len(moves) and _emptied(rules, found, updates)
    ]
    if rules.removes_missing:
        gone = sum(file.num_rows for file in files) - sum(found.num_rows for found, _, _ in touched)
        hit = {found.file.path for found, _, _ in touched}
        removals += [file for file in files if file.path not in hit and file.num_rows]
    removed = {file.path for file in removals}
    inserted = missing if rules.inserts else missing[:0]
    return MergeDecision(
        rewrites=tuple(
            FileRewrite(found.file, updates, moves)
            for found, updates, moves in touched
            if found.file.path not in removed
        ),
        removals=tuple(removals),
        additions=np.concatenate([inserted, moved]),
        inserted=len(inserted),
        updated=updated,
        deleted=duplicates + gone,
    )


def _emptied(rules: MergeRules, found: FileMatches, in_place: Indices) -> bool:
    """Whether no row of the file remains."""
    return not len(in_place) and (rules.removes_missing or found.num_rows == found.file.num_rows)


def distinct_numbers(numbers: Indices) -> Indices:
    """Distinct numbers, sorted. NumPy's own `unique` takes ten times as long if there are many.

    >>> distinct_numbers(np.array([3, 1, 3])).tolist()
    [1, 3]
    """
    ordered = np.sort(numbers)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


def _mask(source_rows: int, sources: Iterable[Indices]) -> npt.NDArray[np.bool_]:
    """A mask of the source rows that occur in any of `sources`."""
    found = np.zeros(source_rows, np.bool_)
    for each in sources:
        found[each] = True
    return found


def _firsts(sources: Sequence[Indices], source_rows: int) -> list[Indices]:
    """For each file, those of its source rows that no earlier file has, sorted."""
    taken = np.zeros(source_rows, np.bool_)
    firsts = []
    for each in sources:
        firsts.append(distinct_numbers(each[~taken[each]]))
        taken[each] = True
    return firsts

"""What a merge means: the strategies, what is refused, and which target row gives way to which source row.

The rules, the same for every engine:

* A source key that is in the target is *updated*: afterwards it stands exactly once, with the source's values,
  NULLs included. Further target rows with that key are removed and counted as *deleted*.
* It keeps its place (the first row with that key, in path order) unless its partition changed: then it moves.
* A source key that is not in the target is *inserted*.
* `total == previous + inserted - deleted`, always.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from parketto.errors import ColumnNotFound, IncompatibleTypes, InvalidArgument, quoted
from parketto.layout.order import check_orderable
from parketto.plan.form import Form
from parketto.plan.limits import check_names
from parketto.rowgroups.spark_note import SPARK_NOTE, unnamed_types
from parketto.storage.footers import FileInfo
from parketto.storage.variant_types import WHOLE, is_variant

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


@dataclass(frozen=True)
class MergeRules:
    """A strategy with its keys, checked."""

    strategy: str
    keys: tuple[str, ...]
    order_by: tuple[str, ...] = ()
    #: The columns that an update may change; None: all.
    update_columns: tuple[str, ...] | None = None
    #: Whether the source may lack columns: then they stay as they are, and are NULL in rows that are new.
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
                raise InvalidArgument(f"dedup_order_by belongs to the strategy 'deduplicate', not to {strategy!r}")
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
        """Whether target rows go whose key is not in the source."""
        return self.strategy == "full_merge"

    @property
    def deduplicates(self) -> bool:
        """Whether the source may have a key more than once."""
        return self.strategy == "deduplicate"


def _listed(names: str | Sequence[str]) -> Sequence[str]:
    return [names] if isinstance(names, str) else names


def check_source(rules: MergeRules, source: pa.Schema) -> None:
    """The source has the columns that the rules name, in types that can be compared."""
    for argument, columns in (("key_columns", rules.keys), ("dedup_order_by", rules.order_by)):
        if missing := [name for name in columns if name not in source.names]:
            raise ColumnNotFound(missing, source.names, f"{argument} of the source")
        check_orderable(columns, source)
    if missing := [name for name in rules.update_columns or () if name not in source.names]:
        raise ColumnNotFound(missing, source.names, "update_columns of the source")


def check_schemas(rules: MergeRules, source: pa.Schema, target: pa.Schema, form: Form) -> None:
    """Source and target have the same columns, in any order, of the same types.

    Texts of any width are one type, and so are a dictionary and its values, a type and the one that Parquet stores
    it as, and timestamps or times of any unit, as long as values fit. Partition columns that stand only in the
    path have no type but their text.
    """
    check_source(rules, source)
    if missing := [name for name in rules.keys if name not in target.names]:
        raise ColumnNotFound(missing, target.names, "key_columns of the target")
    only_source = [name for name in source.names if name not in target.names]
    only_target = [name for name in target.names if name not in source.names]
    if rules.partial and not only_source:
        only_target = [name for name in form.partition_by if name not in source.names]
        if only_target:
            raise ColumnNotFound(only_target, source.names, "partition columns of the dataset in the source")
    if only_source or only_target:
        raise InvalidArgument(
            f"schema mismatch: only the source has {quoted(only_source)}, only the target has "
            f"{quoted(only_target)}. Both need the same columns, in any order"
        )
    noted, wanted = unnamed_types(source.metadata), unnamed_types(target.metadata)
    # A source without Spark's description does not say what its numbers mean: they are taken for the target's.
    silent = SPARK_NOTE not in (source.metadata or {})
    wrong = [
        f"{name!r} is {noted.get(name, source.field(name).type)} in the source and "
        f"{wanted.get(name, target.field(name).type)} in the target"
        for name in target.names
        if name in source.names
        and not (
            path_text_type(source.field(name).type)
            if name in form.path_only
            else same_kind(source.field(name).type, target.field(name).type)
            and (silent or pat.is_null(source.field(name).type) or noted.get(name) == wanted.get(name))
        )
    ]
    if wrong:
        raise IncompatibleTypes(f"incompatible types: {'; '.join(wrong)}. Cast the source's columns first")


def same_kind(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether values of one type are values of the other as they are.

    >>> same_kind(pa.large_string(), pa.dictionary(pa.int8(), pa.string())), same_kind(pa.int32(), pa.int64())
    (True, False)
    """
    return bool(pat.is_null(source) or _kind(source) == _kind(target))


def path_text_type(kind: pa.DataType) -> bool:
    """Whether the values of a type are the same as texts in a path, in whatever type somebody reads them back."""
    kind = _kind(kind)
    return bool(pat.is_integer(kind) or pat.is_large_string(kind) or pat.is_date32(kind) or pat.is_boolean(kind))


def _kind(kind: pa.DataType) -> pa.DataType:
    if pat.is_dictionary(kind):
        return _kind(kind.value_type)
    if pat.is_string(kind) or pat.is_string_view(kind):
        return pa.large_string()
    if pat.is_binary(kind) or pat.is_binary_view(kind):
        return pa.large_binary()
    # An instant is the same in every time zone, and in every unit that holds it. Casting finds values that the
    # target's unit does not hold.
    if pat.is_timestamp(kind):
        return pa.timestamp("ns", None if kind.tz is None else "UTC")
    if pat.is_time(kind):
        return pa.time64("ns")
    # Parquet has days only one way.
    if pat.is_date64(kind):
        return pa.date32()
    if pat.is_decimal(kind) and kind.bit_width < 128:
        return pa.decimal128(kind.precision, kind.scale)
    if is_variant(kind):
        return WHOLE
    # NULLs in nested fields that have none are found when they are cast, too.
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
    """What an update does to a row that is there."""

    #: The columns that get the source's values; None: all of them.
    updated: frozenset[str] | None = None
    #: Whether a row's partition can change: it cannot; where source and target differ; or only the row tells.
    moves: Literal["never", "compare", "always"] = "never"

    @classmethod
    def of(cls, rules: MergeRules, source: pa.Schema, target: pa.Schema, form: Form) -> Change:
        """What the rules mean for a source and a target."""
        given = source.names if rules.update_columns is None else rules.update_columns
        updated = frozenset(name for name in given if name not in rules.keys)
        everything = all(name in updated or name in rules.keys for name in target.names)
        told = [name in updated for name in form.partition_by if name not in rules.keys]
        moves: Literal["never", "compare", "always"] = "never"
        if any(told):
            moves = "compare" if all(told) else "always"
        elif everything and form.partition_by:
            moves = "compare"  # by keys alone: then folders are equal, whatever they are called
        return cls(None if everything else updated, moves)


def unfilled(rules: MergeRules, source: pa.Schema, target: pa.Schema) -> InvalidArgument | None:
    """Why rows cannot be added that lack columns, if they cannot."""
    missing = [item.name for item in target if item.name not in source.names and not item.nullable]
    if not rules.partial or not missing:
        return None
    return InvalidArgument(
        f"the source has new rows without {quoted(missing)}, declared not null in the target; nothing was changed"
    )


def null_keys(column: str, where: str) -> InvalidArgument:
    """The error about NULLs in a key column."""
    return InvalidArgument(
        f"NULL values in key column {column!r} of the {where}: a key must not be NULL. Filter these rows out or "
        "fill the column first; nothing was changed"
    )


def duplicate_keys(
    strategy: str, keys: Sequence[str], example: Mapping[str, object], count: int, *, complete: bool = True
) -> InvalidArgument:
    """The error about keys that the source has more than once; without `complete` there may be further ones."""
    least = "" if complete else "at least "
    return InvalidArgument(
        f"the source has {least}{count} key(s) of {quoted(keys)} more than once, such as {dict(example)}: "
        f"{strategy!r} cannot tell which row counts. Use strategy='deduplicate', or make the keys unique first; "
        "nothing was changed"
    )


@dataclass(frozen=True)
class FileMatches:
    """Which source rows (by number) have their key in a file, and how many of the file's rows these are.

    `at_home` says of each source row whether it belongs into the directory that the file is in.
    """

    file: FileInfo
    sources: Indices
    at_home: npt.NDArray[np.bool_]
    num_rows: int


@dataclass(frozen=True)
class FileRewrite:
    """A file that is rewritten; source rows that take their places in it, or leave with the rest of a row."""

    file: FileInfo
    homes: Indices
    leaving: Indices


@dataclass(frozen=True)
class MergeDecision:
    """What becomes of every file and every source row."""

    #: Files that are rewritten.
    rewrites: tuple[FileRewrite, ...]
    #: Files that go without a successor: all of their rows do.
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
    """Decide which source row goes where. `files` are all of the target, `matches` in the order of their paths."""
    is_matched = _mask(source_rows, [found.sources for found in matches])
    missing = np.flatnonzero(~is_matched)
    if not rules.updates:
        return MergeDecision((), (), missing, len(missing), 0, 0)
    homes = _firsts([found.sources[found.at_home] for found in matches], source_rows)
    is_moved = is_matched & ~_mask(source_rows, homes)
    moved, nobody = np.flatnonzero(is_moved), np.empty(0, np.int64)
    leaving = [nobody for _ in matches]
    if change.updated is not None and len(moved):
        # Columns that stay as they are go along, so the row leaves from where it is first found.
        leaving = _firsts([found.sources[is_moved[found.sources]] for found in matches], source_rows)
        moved = nobody
    updated = int(is_matched.sum())
    touched = [each for each in zip(matches, homes, leaving, strict=True) if each[0].num_rows]
    duplicates = sum(found.num_rows for found, _, _ in touched) - updated
    gone = 0
    removals = [found.file for found, home, left in touched if not len(left) and _emptied(rules, found, home)]
    if rules.removes_missing:
        gone = sum(file.num_rows for file in files) - sum(found.num_rows for found, _, _ in touched)
        hit = {found.file.path for found, _, _ in touched}
        removals += [file for file in files if file.path not in hit and file.num_rows]
    removed = {file.path for file in removals}
    inserted = missing if rules.inserts else missing[:0]
    return MergeDecision(
        rewrites=tuple(
            FileRewrite(found.file, home, left) for found, home, left in touched if found.file.path not in removed
        ),
        removals=tuple(removals),
        additions=np.concatenate([inserted, moved]),
        inserted=len(inserted),
        updated=updated,
        deleted=duplicates + gone,
    )


def _emptied(rules: MergeRules, found: FileMatches, home: Indices) -> bool:
    """Whether no row of the file stays."""
    return not len(home) and (rules.removes_missing or found.num_rows == found.file.num_rows)


def distinct_numbers(numbers: Indices) -> Indices:
    """The numbers that there are, in order. NumPy's own `unique` takes ten times as long if there are many.

    >>> distinct_numbers(np.array([3, 1, 3])).tolist()
    [1, 3]
    """
    ordered = np.sort(numbers)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


def _mask(source_rows: int, sources: Iterable[Indices]) -> npt.NDArray[np.bool_]:
    """Which of all source rows are among some."""
    found = np.zeros(source_rows, np.bool_)
    for each in sources:
        found[each] = True
    return found


def _firsts(sources: Sequence[Indices], source_rows: int) -> list[Indices]:
    """For each file those of its source rows that no file before it has, in order."""
    taken = np.zeros(source_rows, np.bool_)
    firsts = []
    for each in sources:
        firsts.append(distinct_numbers(each[~taken[each]]))
        taken[each] = True
    return firsts

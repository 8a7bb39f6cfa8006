"""Merge semantics: the strategies, what is refused, and which source row replaces which target row.

The rules, the same for every engine:

* A source key that is in the target is *updated*: afterwards it occurs exactly once, with the source's values,
  NULLs included. Further target rows with that key are removed and counted as *deleted*.
* It keeps its position (the first row with that key, in path order) unless its partition changed: then it moves.
* A source key that is not in the target is *inserted*.
* `total == previous + inserted - deleted`, always.

With clauses (`merge/clauses.py`), each pair of a source row and a target row is judged by itself: the target row
is deleted, updated, or stays as it is. The rules above hold for the pairs that update. A source row with a pair is
never inserted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, get_args

import pyarrow as pa
import pyarrow.types as pat

from parketto.arguments import check_names
from parketto.display import counted
from parketto.errors import ColumnNotFound, IncompatibleTypes, InvalidArgument, quoted, shortened_row
from parketto.parquet.partition_spec import PartitionSpec
from parketto.parquet.promotion import is_castable
from parketto.parquet.spark_schema import SPARK_SCHEMA_KEY, unnamed_types
from parketto.parquet.variant_types import UNSHREDDED, is_variant
from parketto.results import ExpectationStats
from parketto.sorting.order import check_orderable

Strategy = Literal["upsert", "insert", "update", "full_merge", "deduplicate"]
STRATEGIES: tuple[str, ...] = get_args(Strategy)
#: What happens to NULL keys: they are an error, or equal each other.
NullKeys = Literal["refuse", "match"]
NULL_KEYS: tuple[str, ...] = get_args(NullKeys)


class MergeStats(ExpectationStats):
    """What a merge did, in rows."""

    inserted: int
    updated: int
    deleted: int
    #: The rows of the dataset afterwards: those before, plus inserted, minus deleted.
    total: int
    #: With `backup=`: where the replaced files are, for `restore`; None if none were replaced.
    backup_path: NotRequired[str | None]
    #: With `details=True`: the files that were rewritten or removed (in a dry run: those with matching keys), and
    #: those that were written. Paths relative to the dataset, sorted.
    rewritten_files: NotRequired[list[str]]
    added_files: NotRequired[list[str]]
    #: With `details=True`: the number of new files. In a dry run an estimate: some rows may not change.
    files_written: NotRequired[int]


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
    #: SQL conditions: which matched rows are updated or deleted, and which source rows may be inserted.
    update_when: str | None = None
    delete_when: str | None = None
    insert_when: str | None = None
    #: Whether NULL keys equal each other; else they are refused.
    null_keys_match: bool = False
    #: How the source meets the dataset's schema: see `merge/append_schema.py`.
    schema: str = "strict"
    #: For a full merge: a condition on target rows; the others do not take part.
    within: Any = None

    @classmethod
    def of(
        cls,
        strategy: str,
        key_columns: str | Sequence[str],
        dedup_order_by: str | Sequence[str] | None = None,
        update_columns: str | Sequence[str] | None = None,
        *,
        partial: bool = False,
        update_when: str | None = None,
        delete_when: str | None = None,
        insert_when: str | None = None,
        null_keys: str = "refuse",
        schema: str = "strict",
        within: Any = None,
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
        if null_keys not in NULL_KEYS:
            raise InvalidArgument(f"unknown null_keys {null_keys!r}; valid choices: {quoted(NULL_KEYS)}")
        keys = check_names("key_columns", _listed(key_columns))
        order_by: tuple[str, ...] = ()
        if dedup_order_by is not None:
            if strategy != "deduplicate":
                raise InvalidArgument(f"dedup_order_by applies to the strategy 'deduplicate', not to {strategy!r}")
            order_by = check_names("dedup_order_by", _listed(dedup_order_by))
        if within is not None and strategy != "full_merge":
            raise InvalidArgument(f"within applies to the strategy 'full_merge', not to {strategy!r}")
        columns = None if update_columns is None else check_names("update_columns", _listed(update_columns))
        for argument, given in (("update_columns", update_columns), ("update_when", update_when)):
            if strategy == "insert" and given is not None:
                raise InvalidArgument(
                    f"{argument} makes no sense with the strategy 'insert', which updates nothing"
                )
        if strategy == "update" and insert_when is not None:
            raise InvalidArgument("insert_when makes no sense with the strategy 'update', which inserts nothing")
        if both := [name for name in columns or () if name in keys]:
            raise InvalidArgument(f"{quoted(both)} cannot be updated: rows are found by their keys")
        return cls(
            strategy,
            keys,
            order_by,
            columns,
            partial,
            update_when,
            delete_when,
            insert_when,
            null_keys_match=null_keys == "match",
            schema=schema,
            within=within,
        )

    @property
    def inserts(self) -> bool:
        """Whether keys that are not in the target are added."""
        return self.strategy != "update"

    @property
    def updates(self) -> bool:
        """Whether keys that are in the target get the source's values."""
        return self.strategy != "insert"

    @property
    def edits(self) -> bool:
        """Whether rows of the target are updated or deleted because a source row has their key."""
        return self.updates or self.delete_when is not None

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


def check_schemas(
    rules: MergeRules,
    source: pa.Schema,
    target: pa.Schema,
    spec: PartitionSpec,
    unwritten: Collection[str] = (),
    *,
    may_cast: bool = True,
) -> None:
    """Check that source and target have the same columns and types, in any order.

    Strings of any width are one type. So are a dictionary and its values, a type and its Parquet storage type, and
    timestamps or times of any unit, as long as values fit. Partition columns that are stored only in the path are
    untyped text. `unwritten` are columns that only the source has, for conditions. Unless the schema is strict,
    types may differ as long as values fit. Without `may_cast`, the operation has no `schema` to advise.
    """
    check_source(rules, source)
    if missing := [name for name in rules.keys if name not in target.names]:
        raise ColumnNotFound(missing, target.names, "key_columns of the target")
    only_source = [name for name in source.names if name not in target.names and name not in unwritten]
    only_target = [name for name in target.names if name not in source.names]
    if rules.partial and not only_source:
        only_target = [name for name in spec.partition_by if name not in source.names]
        if only_target:
            raise ColumnNotFound(only_target, source.names, "partition columns of the dataset in the source")
    if only_source or only_target:
        sides = (("source", only_source), ("target", only_target))
        which = ", ".join(f"only the {side} has {quoted(names)}" for side, names in sides if names)
        raise InvalidArgument(f"schema mismatch: {which}. Both need the same columns, in any order")
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
            else _fits(source.field(name).type, target.field(name).type, rules)
            and (undeclared or pat.is_null(source.field(name).type) or recorded.get(name) == wanted.get(name))
        )
    ]
    if wrong:
        hint = " or pass schema='cast' or schema='evolve'" if may_cast and rules.schema == "strict" else ""
        raise IncompatibleTypes(f"incompatible types: {'; '.join(wrong)}. Cast the source's columns first{hint}")


def _fits(source: pa.DataType, target: pa.DataType, rules: MergeRules) -> bool:
    return same_kind(source, target) or (rules.schema != "strict" and is_castable(source, target))


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
        updated = frozenset(name for name in given if name in target.names and name not in rules.keys)
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
        f"the source has {least}{counted(count, 'key')} of {quoted(keys)} more than once, such as "
        f"{shortened_row(example)}: "
        f"{strategy!r} cannot decide which row wins. Use strategy='deduplicate', or make the keys unique first; "
        "nothing was changed"
    )

"""Conditions of a merge over pairs of rows: `source.<column>` and `target.<column>`, in SQL.

Every engine evaluates them with Arrow, on the pairs that its join finds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from parketto.errors import ColumnNotFound, InvalidArgument
from parketto.expressions.conditions import Predicate, predicate
from parketto.expressions.parsing import parsed
from parketto.expressions.sql import find_column
from parketto.expressions.time_zones import Clock
from parketto.expressions.values import plain, plain_type
from parketto.merge.keys import Rows
from parketto.merge.rules import MergeRules
from parketto.parquet.decoded_types import decoded_type
from parketto.parquet.partition_spec import PartitionSpec
from parketto.runtime.arrays import Flags

SOURCE, TARGET = "source", "target"


@dataclass(frozen=True)
class Clause:
    """One condition, and the columns of each side that it uses, in their plain types."""

    condition: Predicate
    fields: Mapping[str, pa.Schema]

    @classmethod
    def of(cls, argument: str, text: str, sides: Mapping[str, pa.Schema], clock: Clock | None = None) -> Clause:
        """A condition, checked against the columns of the sides that it may use.

        >>> known = {"source": pa.schema({"at": pa.int64()}), "target": pa.schema({"at": pa.int64()})}
        >>> newer = Clause.of("update_when", "source.at > target.at", known)
        >>> newer.matches(pa.table({"at": [1, 2, None]}), pa.table({"at": [1, 1, 1]})).tolist()
        [False, True, False]
        """
        used = used_columns(argument, text, sides)
        fields = {
            side: pa.schema([pa.field(name, plain_type(sides[side].field(name).type)) for name in names])
            for side, names in used.items()
        }
        structs = pa.schema([pa.field(side, pa.struct(list(schema))) for side, schema in fields.items()])
        return cls(predicate(text, structs, clock), fields)

    def matches(self, source: Rows, target: Rows | None = None) -> Flags:
        """For each pair of rows, whether the condition is true; NULL is false."""
        given = {SOURCE: source, TARGET: target}
        columns = {}
        for side in self.condition.columns:
            rows = given[side]
            assert rows is not None, "the condition uses rows of the target"
            arrays = [_typed(rows.column(item.name), item.type) for item in self.fields[side]]
            columns[side] = pa.StructArray.from_arrays(arrays, fields=list(self.fields[side]))
        batch = pa.RecordBatch.from_pydict(columns or {"rows": pa.nulls(source.num_rows)})
        found: Flags = self.condition.matches(batch).to_numpy(zero_copy_only=False)
        return found


def _typed(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    array = plain(array)
    # Columns of the path are strings.
    return array if array.type == kind else array.cast(kind)


def used_columns(argument: str, text: object, sides: Mapping[str, pa.Schema]) -> dict[str, list[str]]:
    """The columns of each side that a condition uses."""
    from sqlglot import exp

    if not isinstance(text, str):
        raise InvalidArgument(f"{argument} must be an SQL string such as 'source.a > target.a', got {text!r}")
    allowed = " or ".join(f"{side}.<column>" for side in sides)
    found: dict[str, list[str]] = {}
    for column in parsed(text).find_all(exp.Column):
        parts = [part.name for part in column.parts]
        side = parts[0].casefold()
        if len(parts) < 2 or side not in sides:
            raise InvalidArgument(f"{argument}: {'.'.join(parts)!r} must be written as {allowed}, in {text!r}")
        try:
            name = find_column(parts[1], sides[side])
        except ColumnNotFound:
            raise ColumnNotFound([parts[1]], sides[side].names, f"{argument}: columns of the {side}") from None
        found.setdefault(side, [])
        found[side] += [name] * (name not in found[side])
    return found


@dataclass(frozen=True)
class Verdicts:
    """What happens to each target row of a pair: it is deleted, updated, or stays as it is."""

    deletes: Flags
    updates: Flags

    @property
    def edits(self) -> Flags:
        """The rows that do not stay as they are."""
        both: Flags = self.deletes | self.updates
        return both


@dataclass(frozen=True)
class Clauses:
    """The conditions of a merge, checked against the source and the target."""

    rules: MergeRules
    update: Clause | None = None
    delete: Clause | None = None
    insert: Clause | None = None
    #: Columns of the source that the target lacks: they are used, and not written.
    extra: tuple[pa.Field, ...] = ()

    @classmethod
    def of(
        cls, rules: MergeRules, source: pa.Schema, target: pa.Schema, spec: PartitionSpec, clock: Clock
    ) -> Clauses:
        """The conditions of the rules. Source columns have the types of the target, where it has them."""
        known = pa.schema(
            [
                pa.field(item.name, target.field(item.name).type if item.name in target.names else item.type)
                for item in source
            ]
        )
        both = {SOURCE: known, TARGET: target}
        clauses = {
            name: None if text is None else Clause.of(f"{name}_when", text, sides, clock)
            for name, text, sides in (
                ("update", rules.update_when, both),
                ("delete", rules.delete_when, both),
                ("insert", rules.insert_when, {SOURCE: known}),
            )
        }
        mentioned = _names(clauses.values(), SOURCE)
        extra = [
            pa.field(item.name, decoded_type(item.type))
            for item in source
            if item.name in mentioned and item.name not in target.names and item.name not in spec.path_only
        ]
        return cls(rules, **clauses, extra=tuple(extra))

    @property
    def decide_pairs(self) -> bool:
        """Whether pairs of rows differ in what happens to them."""
        return self.update is not None or self.delete is not None

    @property
    def target_columns(self) -> tuple[str, ...]:
        """The columns of target rows that conditions use."""
        return tuple(_names([self.update, self.delete], TARGET))

    @property
    def source_columns(self) -> tuple[str, ...]:
        """The columns of source rows that conditions on pairs use."""
        return tuple(_names([self.update, self.delete], SOURCE))

    def judge(self, source: Rows, target: Rows) -> Verdicts:
        """What happens to the target row of each pair."""
        deletes = np.zeros(source.num_rows, np.bool_)
        if self.delete is not None:
            deletes = self.delete.matches(source, target)
        if not self.rules.updates:
            return Verdicts(deletes, np.zeros(source.num_rows, np.bool_))
        updates = ~deletes
        if self.update is not None:
            updates &= self.update.matches(source, target)
        return Verdicts(deletes, updates)

    def insertable(self, source: Rows) -> Flags:
        """The source rows that are inserted if their key is not in the target."""
        found = np.ones(source.num_rows, np.bool_)
        if self.insert is not None:
            found &= self.insert.matches(source)
        if self.delete is not None and TARGET not in self.delete.fields:
            found &= ~self.delete.matches(source)
        return found


def _names(clauses: Iterable[Clause | None], side: str) -> list[str]:
    found = [name for each in clauses if each is not None for name in each.fields.get(side, pa.schema([])).names]
    return list(dict.fromkeys(found))

"""Predicates and assignments: which rows a delete or an update matches, and their new values.

SQL and PyArrow expressions are handled here; other languages create their own `Formula`.

Rows for which a condition is NULL do not match. In an update every expression sees the old row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from parketto.errors import ColumnNotFound, InvalidArgument
from parketto.expressions.assignment import fitted, fitted_literal, own_type, refuse_nulls
from parketto.expressions.sql import SQL, find_column, shortened, sql, translate
from parketto.expressions.time_zones import UTC, Clock, Step, Zone, is_instant
from parketto.expressions.values import ARROW_ERRORS, evaluate, plain, plain_table, plain_type

__all__ = [
    "SQL",
    "ArrowCalculation",
    "Assignment",
    "Calculation",
    "Formula",
    "Predicate",
    "assignments",
    "known_columns",
    "predicate",
    "sql",
    "sql_formula",
    "targets",
    "updated",
]

NO_CONSTANTS: Mapping[str, pa.Scalar] = MappingProxyType({})


class Calculation(Protocol):
    """A computation over the columns of a table. It can be pickled and sent to workers."""

    def run(self, table: pa.Table) -> pa.Array:
        """One value per row, in row order.

        Raises:
            InvalidArgument: If the evaluation fails.
        """
        ...


@dataclass(frozen=True)
class ArrowCalculation:
    """An Arrow expression, preceded by steps for which Arrow has no kernel."""

    expression: pc.Expression
    steps: tuple[Step, ...] = ()

    def run(self, table: pa.Table) -> pa.Array:
        """The values of the expression."""
        try:
            for step in self.steps:
                table = step.added(table)
            return evaluate(self.expression, table)
        except ARROW_ERRORS as error:
            raise InvalidArgument(" ".join(str(error).split())) from error


@dataclass(frozen=True)
class Formula:
    """An expression in any language, checked against the columns of a dataset.

    Attributes:
        calculation: Computes its values.
        type: The type of its values.
        fields: The columns that it uses, in their plain types.
        text: The expression as given, for messages.
        possible: For a condition: an Arrow expression that is true wherever the condition is. Files for which it
            cannot be true are pruned.
        nan_aware: Whether `possible` handles NaN explicitly, so that bounds that exclude NaN may be used for
            pruning.
        derived: Columns of `possible` that no file contains.
        zone: The time zone of the expression, if it differs from that of the operation.
    """

    calculation: Calculation
    type: pa.DataType
    fields: pa.Schema
    text: str
    possible: pc.Expression
    nan_aware: bool = True
    derived: tuple[Step, ...] = ()
    zone: Zone | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it uses, in schema order."""
        return tuple(self.fields.names)

    def values(self, batch: pa.RecordBatch, constants: Mapping[str, pa.Scalar], what: str = "") -> pa.Array:
        """One value per row of a batch that contains the columns, in any order."""
        try:
            return self.calculation.run(plain_table(batch, self.fields, constants))
        except (InvalidArgument, *ARROW_ERRORS) as error:
            raise InvalidArgument(
                f"{shortened(self.text)!r}{what} failed: {' '.join(str(error).split())}"
            ) from error


@dataclass(frozen=True)
class Predicate:
    """A condition on rows. It can be pickled."""

    formula: Formula

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it uses, in schema order."""
        return self.formula.columns

    def matches(self, batch: pa.RecordBatch, constants: Mapping[str, pa.Scalar] = NO_CONSTANTS) -> pa.BooleanArray:
        """Which rows match; never NULL.

        Args:
            batch: Rows that contain the columns, in any order.
            constants: Values of partition columns that exist only in the path.
        """
        found = self.formula.values(batch, constants)
        if not pat.is_boolean(found.type):
            raise InvalidArgument(
                f"{shortened(self.formula.text)!r} is a value of type {found.type}, not a condition"
            )
        return found.fill_null(False) if found.null_count else found


def predicate(where: str | pc.Expression | Formula, schema: pa.Schema, clock: Clock | None = None) -> Predicate:
    """A condition, checked against the columns of a dataset. Timestamps in SQL use the clock's time zone.

    >>> rows = pa.record_batch({"id": [1, 2, None], "name": ["a", "b", "c"]})
    >>> condition = predicate("ID >= 2 OR name = 'c'", rows.schema)
    >>> condition.columns, condition.matches(rows).to_pylist()
    (('id', 'name'), [False, True, True])

    Raises:
        InvalidArgument: If it is not a condition on single rows.
        ColumnNotFound: If it uses a column that is not in the schema.
    """
    formula = _formula(where, schema, "where", clock)
    if pat.is_null(formula.type):
        never = pc.scalar(pa.scalar(None, pa.bool_()))
        formula = replace(formula, calculation=ArrowCalculation(never), type=pa.bool_(), possible=never)
    if not pat.is_boolean(formula.type):
        raise InvalidArgument(f"{shortened(formula.text)!r} is a value of type {formula.type}, not a condition")
    return Predicate(formula)


@dataclass(frozen=True)
class Assignment:
    """A new value for a column: a validated literal, or a formula.

    Attributes:
        target: The column, with its stored type.
        value: The literal in the column's type, or None if there is a formula.
        formula: The expression to evaluate.
        text: The value as given, for messages.
        zone: The time zone of timestamps without one.
    """

    target: pa.Field
    value: pa.Scalar | None = None
    formula: Formula | None = None
    text: str = ""
    zone: Zone = UTC

    @property
    def column(self) -> str:
        """The name of the column."""
        return str(self.target.name)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the value depends on."""
        return () if self.formula is None else self.formula.columns

    def apply(self, batch: pa.RecordBatch, constants: Mapping[str, pa.Scalar] = NO_CONSTANTS) -> pa.Array:
        """The new values, in exactly the column's type.

        Raises:
            InvalidArgument: If a value does not fit into the column.
        """
        if self.formula is None:
            return fitted(pa.repeat(self.value, batch.num_rows), self.target, self.text, self.zone)
        found = self.formula.values(batch, constants, f" for column {self.column!r}")
        return fitted(found, self.target, self.text, self.zone)


def assignments(
    values: Mapping[str, object], schema: pa.Schema, clock: Clock | None = None
) -> tuple[Assignment, ...]:
    """New values for columns: literals, `sql(...)`, PyArrow expressions, or formulas of other languages.

    >>> schema = pa.schema({"id": pa.int64(), "price": pa.decimal128(8, 2)})
    >>> change, = assignments({"price": sql("price * 1.1")}, schema)
    >>> from decimal import Decimal
    >>> rows = pa.record_batch({"id": [1], "price": pa.array([Decimal("9.99")], pa.decimal128(8, 2))})
    >>> change.apply(rows).to_pylist()
    [Decimal('10.99')]

    A value that a column cannot hold is an error: a string for a number, a fraction for an integer, NULL for a
    required column. Literals are checked here, computed values at evaluation. Decimals are rounded to the column's
    scale, half away from zero, and numbers to the nearest float. Strings are parsed for date and time columns.
    Dates and timestamps without a zone use the clock's, or UTC without a clock.
    """
    clock = Clock() if clock is None else clock
    made: dict[str, Assignment] = {}
    for column, value in targets(values, schema).items():
        made[column] = _assignment(schema.field(column), value, schema, clock)
    return tuple(made.values())


def targets(values: Mapping[str, object], schema: pa.Schema) -> dict[str, object]:
    """The given values, by the exact names of the columns."""
    given: object = values
    if not isinstance(given, Mapping) or not values:
        raise InvalidArgument(f"values must be a mapping of columns to new values, got {values!r}")
    found: dict[str, object] = {}
    for name, value in values.items():
        if not isinstance(name, str):
            raise InvalidArgument(f"a column name must be a string, got {name!r}")
        column = find_column(name, schema)
        if column in found:
            raise InvalidArgument(f"column {column!r} is given two values")
        found[column] = value
    return found


def _assignment(target: pa.Field, value: object, schema: pa.Schema, clock: Clock) -> Assignment:
    # Resolve the zone only if it matters: it may start a Spark session.
    kind = plain_type(target.type)
    if not isinstance(value, SQL | pc.Expression | Formula):
        zone = clock.zone if is_instant(kind) or pat.is_date(kind) else UTC
        return Assignment(target, fitted_literal(value, target, zone), text=repr(value), zone=zone)
    formula = _formula(value, schema, f"the new value of {target.name!r}", clock)
    zone = (formula.zone or clock.zone) if is_instant(kind) != is_instant(formula.type) else UTC
    # An empty array detects incompatible types before rows are read.
    fitted(pa.array([], formula.type), target, formula.text, zone)
    if not formula.columns:
        only = formula.calculation.run(pa.table([pa.nulls(1)], names=["rows"]))
        refuse_nulls(fitted(only, target, formula.text, zone), target, formula.text)
    return Assignment(target, None, formula, formula.text, zone)


def updated(
    batch: pa.RecordBatch,
    mask: pa.BooleanArray,
    changes: Sequence[Assignment],
    constants: Mapping[str, pa.Scalar] = NO_CONSTANTS,
) -> pa.RecordBatch:
    """The batch with new values where the mask is true.

    Expressions are not evaluated on other rows, so those cannot fail.
    """
    if not mask.true_count:
        return batch
    used = {name for change in changes for name in change.columns if name not in constants}
    # Filter plain columns: Arrow cannot filter some of the other types.
    seen = pa.RecordBatch.from_pydict(
        {name: plain(batch.column(name)) for name in used} or {"": pa.nulls(len(mask))}
    )
    matched = seen if mask.true_count == batch.num_rows else seen.filter(mask)
    columns = {change.column: change.apply(matched, constants) for change in changes}
    arrays = [
        _scattered(batch.column(at), mask, columns[name], batch.schema.field(at))
        if name in columns
        else batch.column(at)
        for at, name in enumerate(batch.schema.names)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def _scattered(old: pa.Array, mask: pa.BooleanArray, new: pa.Array, target: pa.Field) -> pa.Array:
    if len(new) == len(old):
        return new
    # Indices into the old values, followed by the new ones.
    chosen = np.arange(len(old))
    chosen[mask.to_numpy(zero_copy_only=False)] = np.arange(len(old), len(old) + len(new))
    # Old values are decoded: nested ones may have another type than new values, which have the stored type.
    before, after = plain(old), plain(new)
    both = pa.concat_arrays([before, after.cast(before.type)]).take(pa.array(chosen))
    return own_type(both, target, "")


def known_columns(schema: pa.Schema) -> pa.Schema:
    """The columns that expressions may use, in their plain types, without duplicate names."""
    return _plain_fields(schema, [name for name in schema.names if schema.names.count(name) == 1])


def _plain_fields(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    return pa.schema([pa.field(name, plain_type(schema.field(name).type)) for name in columns])


def sql_formula(text: str, schema: pa.Schema, clock: Clock | None = None) -> Formula:
    """A formula from SQL, checked against the columns of a dataset."""
    translation = translate(text, known_columns(schema), clock)
    return Formula(
        ArrowCalculation(translation.expression, translation.steps),
        translation.type,
        _plain_fields(schema, translation.columns),
        str(text),
        translation.expression,
        derived=translation.steps,
    )


def _formula(given: object, schema: pa.Schema, what: str, clock: Clock | None) -> Formula:
    if isinstance(given, Formula):
        return given
    if isinstance(given, str):
        return sql_formula(given, schema, clock)
    expression, kind, columns = _bound(given, known_columns(schema), what)
    fields = _plain_fields(schema, columns)
    return Formula(ArrowCalculation(expression), kind, fields, str(given), expression, nan_aware=False)


def _bound(given: object, known: pa.Schema, what: str) -> tuple[pc.Expression, pa.DataType, tuple[str, ...]]:
    if not isinstance(given, pc.Expression):
        raise InvalidArgument(f"{what} must be an SQL string or a PyArrow expression, got {given!r}")
    if "FieldPath(" in re.sub(r'"([^"\\]|\\.)*"', "", str(given)):
        raise InvalidArgument(f"{what}: {given} refers to a column by position; use its name")
    try:
        kind = evaluate(given, _table(known)).type
    except ARROW_ERRORS as error:
        missing = re.search(r"FieldRef\.Name\((.*?)\) in", str(error))
        if missing:
            raise ColumnNotFound([missing[1]], known.names) from error
        raise InvalidArgument(f"{what}: {' '.join(str(error).split())}") from error
    return given, kind, tuple(name for name in known.names if _uses(given, name, known))


def _table(known: pa.Schema) -> pa.Table:
    return known.empty_table() if known.names else pa.table([pa.nulls(0)], names=["rows"])


def _uses(expression: pc.Expression, name: str, known: pa.Schema) -> bool:
    # PyArrow does not expose the columns of an expression, so try to bind it without the column.
    try:
        evaluate(expression, _table(known.remove(known.get_field_index(name))))
    except ARROW_ERRORS:
        return True
    return False

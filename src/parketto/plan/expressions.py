"""What a delete or an update says: which rows, and which new values.

SQL text and PyArrow expressions are understood here; other languages make formulas of their own.

NULL is unknown: a row for which a condition is NULL does not match. In an update every expression sees the row as
it was before.
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
from parketto.plan.assigning import fitted, fitted_literal, own_type, refuse_nulls
from parketto.plan.sql import SQL, find_column, sql, translate
from parketto.plan.values import ARROW_ERRORS, evaluate, plain, plain_table, plain_type
from parketto.plan.zones import UTC, Clock, Step, Zone, is_instant

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
    """What is calculated from the columns of a table. It can be pickled, and so travel to where the rows are."""

    def run(self, table: pa.Table) -> pa.Array:
        """A value for each row, in the order of the rows.

        Raises:
            InvalidArgument: If it cannot be calculated; says why.
        """
        ...


@dataclass(frozen=True)
class ArrowCalculation:
    """A calculation that Arrow carries out, after steps that it has no function for."""

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
    """What a caller said about the values of a row, in whatever language, checked against the columns.

    Attributes:
        calculation: How its values are found.
        type: The type of its values.
        fields: The columns that it uses, in their plain types.
        text: What the caller gave, for messages.
        possible: If it is a condition: one that Arrow understands and that is true wherever this one is. Files for
            which it cannot be true are not looked at.
        nan_aware: Whether `possible` says of every NaN on its own what becomes of it, so that bounds which leave
            NaN out may be used for pruning.
        derived: Columns of `possible` that no file has: nothing is known of them before rows are read.
        zone: The time zone in which it was said, if that is not the one of the operation.
    """

    calculation: Calculation
    type: pa.DataType
    fields: pa.Schema
    text: str
    possible: pc.Expression
    nan_aware: bool = True
    derived: tuple[pa.Field, ...] = ()
    zone: Zone | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it uses, in the order of the schema."""
        return tuple(self.fields.names)

    def values(self, batch: pa.RecordBatch, constants: Mapping[str, pa.Scalar], what: str = "") -> pa.Array:
        """A value for each row of a batch that has the columns, in any order and among others."""
        try:
            return self.calculation.run(plain_table(batch, self.fields, constants))
        except (InvalidArgument, *ARROW_ERRORS) as error:
            raise InvalidArgument(f"{self.text!r}{what} failed: {' '.join(str(error).split())}") from error


@dataclass(frozen=True)
class Predicate:
    """A condition on rows. It can be pickled."""

    formula: Formula

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it uses, in the order of the schema."""
        return self.formula.columns

    def matches(self, batch: pa.RecordBatch, constants: Mapping[str, pa.Scalar] = NO_CONSTANTS) -> pa.BooleanArray:
        """Which rows match; never NULL.

        Args:
            batch: Rows that have the columns, in any order and among others.
            constants: Values of columns that stand only in the path.
        """
        found = self.formula.values(batch, constants)
        if not pat.is_boolean(found.type):
            raise InvalidArgument(f"{self.formula.text!r} is a value of type {found.type}, not a condition")
        return found.fill_null(False) if found.null_count else found


def predicate(where: str | pc.Expression | Formula, schema: pa.Schema, clock: Clock | None = None) -> Predicate:
    """A condition, checked against the columns of a dataset. The times in SQL are read in the clock's time zone.

    >>> rows = pa.record_batch({"id": [1, 2, None], "name": ["a", "b", "c"]})
    >>> condition = predicate("ID >= 2 OR name = 'c'", rows.schema)
    >>> condition.columns, condition.matches(rows).to_pylist()
    (('id', 'name'), [False, True, True])

    Raises:
        InvalidArgument: If it is no condition on single rows.
        ColumnNotFound: If it uses a column that is not in the schema.
    """
    formula = _formula(where, schema, "where", clock)
    if pat.is_null(formula.type):
        never = pc.scalar(pa.scalar(None, pa.bool_()))
        formula = replace(formula, calculation=ArrowCalculation(never), type=pa.bool_(), possible=never)
    if not pat.is_boolean(formula.type):
        raise InvalidArgument(f"{formula.text!r} is a value of type {formula.type}, not a condition")
    return Predicate(formula)


@dataclass(frozen=True)
class Assignment:
    """A new value for a column: a literal that is known to fit, or a formula.

    Attributes:
        target: The column, with its own type.
        value: The literal in the column's type, or None if there is a formula.
        formula: What to calculate.
        text: The value as the caller gave it.
        zone: The time zone of times that do not say theirs.
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
        """The columns that the value is calculated from."""
        return () if self.formula is None else self.formula.columns

    def apply(self, batch: pa.RecordBatch, constants: Mapping[str, pa.Scalar] = NO_CONSTANTS) -> pa.Array:
        """The new values, in exactly the column's type.

        Raises:
            InvalidArgument: If one does not fit into the column.
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

    A value that a column cannot hold is an error: text for a number, a fraction for a whole number, NULL where
    there may be none. Literals are checked here, calculated values when they are met. Decimals are rounded to the
    column's scale, half away from zero, and numbers to the nearest float. A text is read as a date or a time for
    such a column. Times and dates without a zone are read in the clock's; that is UTC if there is none.
    """
    clock = Clock() if clock is None else clock
    made: dict[str, Assignment] = {}
    for column, value in targets(values, schema).items():
        made[column] = _assignment(schema.field(column), value, schema, clock)
    return tuple(made.values())


def targets(values: Mapping[str, object], schema: pa.Schema) -> dict[str, object]:
    """What was given for each column, under the column's own name."""
    given: object = values
    if not isinstance(given, Mapping) or not values:
        raise InvalidArgument(f"values must be a mapping of columns to new values, got {values!r}")
    found: dict[str, object] = {}
    for name, value in values.items():
        if not isinstance(name, str):
            raise InvalidArgument(f"a column is named by text, got {name!r}")
        column = find_column(name, schema)
        if column in found:
            raise InvalidArgument(f"column {column!r} is given two values")
        found[column] = value
    return found


def _assignment(target: pa.Field, value: object, schema: pa.Schema, clock: Clock) -> Assignment:
    # A zone is asked for only where it matters: a Spark session may have to be started for that.
    kind = plain_type(target.type)
    if not isinstance(value, SQL | pc.Expression | Formula):
        zone = clock.zone if is_instant(kind) or pat.is_date(kind) else UTC
        return Assignment(target, fitted_literal(value, target, zone), text=repr(value), zone=zone)
    formula = _formula(value, schema, f"the new value of {target.name!r}", clock)
    zone = (formula.zone or clock.zone) if is_instant(kind) != is_instant(formula.type) else UTC
    # The types alone may already say that it cannot fit, whatever the rows are.
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

    Other rows are not even calculated with, so they cannot fail.
    """
    if not mask.true_count:
        return batch
    used = {name for change in changes for name in change.columns if name not in constants}
    # Rows are picked out of plain columns: Arrow cannot pick from some of the others.
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
    # Each row takes from the old values, or from the new ones that are laid after them.
    chosen = np.arange(len(old))
    chosen[mask.to_numpy(zero_copy_only=False)] = np.arange(len(old), len(old) + len(new))
    both = pa.concat_arrays([plain(old), plain(new)]).take(pa.array(chosen))
    return own_type(both, target, "")


def known_columns(schema: pa.Schema) -> pa.Schema:
    """The columns that expressions may use, in their plain types: a name that stands twice says nothing."""
    return _plain_fields(schema, [name for name in schema.names if schema.names.count(name) == 1])


def _plain_fields(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    return pa.schema([pa.field(name, plain_type(schema.field(name).type)) for name in columns])


def sql_formula(text: str, schema: pa.Schema, clock: Clock | None = None) -> Formula:
    """An SQL text, checked against the columns of a dataset."""
    said = translate(text, known_columns(schema), clock)
    return Formula(
        ArrowCalculation(said.expression, said.steps),
        said.type,
        _plain_fields(schema, said.columns),
        str(text),
        said.expression,
        derived=tuple(step.target for step in said.steps),
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
        raise InvalidArgument(f"{what} must be an SQL text or a PyArrow expression, got {given!r}")
    if "FieldPath(" in re.sub(r'"([^"\\]|\\.)*"', "", str(given)):
        raise InvalidArgument(f"{what}: {given} names a column by its position; name it by its name")
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
    # An expression does not tell what it uses. One that can do without a column does not use it.
    try:
        evaluate(expression, _table(known.remove(known.get_field_index(name))))
    except ARROW_ERRORS:
        return True
    return False

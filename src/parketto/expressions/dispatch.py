"""Dispatch of conditions and new values by language: SQL, PyArrow, Polars or Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from parketto.errors import InvalidArgument
from parketto.expressions import conditions
from parketto.expressions.conditions import Assignment, Predicate, targets
from parketto.expressions.polars import is_polars, polars_formula
from parketto.expressions.spark import is_spark, spark_formula
from parketto.expressions.time_zones import Clock
from parketto.expressions.values import plain_type


def predicate(where: object, schema: pa.Schema, clock: Clock | None = None) -> Predicate:
    """A condition in any of the languages, checked against the columns of a dataset.

    The clock's time zone applies to SQL and Spark Columns. Polars and PyArrow have their own rules.

    >>> import polars as pl
    >>> rows = pa.record_batch({"id": [1, 2, None]})
    >>> [predicate(where, rows.schema).matches(rows).to_pylist() for where in ("id > 1", pl.col("id") > 1)]
    [[False, True, False], [False, True, False]]

    Raises:
        InvalidArgument: If it is not a condition on single rows.
        ColumnNotFound: If it uses a column that is not in the schema.
    """
    condition: Any = _read(where, schema, None, clock)
    if not isinstance(condition, str | pc.Expression | conditions.Formula):
        raise InvalidArgument(
            "where must be an SQL string, a PyArrow expression, a Polars expression or a Spark Column, "
            f"got {where!r}"
        )
    return conditions.predicate(condition, schema, clock)


def assignments(
    values: Mapping[str, object], schema: pa.Schema, clock: Clock | None = None
) -> tuple[Assignment, ...]:
    """New values for columns: plain values, `sql(...)`, or expressions of PyArrow, Polars or Spark."""
    read = {
        column: _read(value, schema, plain_type(schema.field(column).type), clock)
        for column, value in targets(values, schema).items()
    }
    return conditions.assignments(read, schema, clock)


def _read(given: object, schema: pa.Schema, target: pa.DataType | None, clock: Clock | None) -> object:
    if is_spark(given):
        return spark_formula(given, schema, clock, target)
    return polars_formula(given, schema) if is_polars(given) else given

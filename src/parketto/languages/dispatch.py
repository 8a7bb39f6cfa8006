"""Which language a condition or a new value is said in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from parketto.errors import InvalidArgument
from parketto.languages.polars import is_polars, polars_formula
from parketto.languages.spark import is_spark, spark_formula
from parketto.plan import expressions
from parketto.plan.expressions import Assignment, Predicate, targets
from parketto.plan.values import plain_type
from parketto.plan.zones import Clock


def predicate(where: object, schema: pa.Schema, clock: Clock | None = None) -> Predicate:
    """A condition in any of the languages, checked against the columns of a dataset.

    The clock tells in which time zone SQL and Spark Columns are read. Polars and PyArrow have rules of their own.

    >>> import polars as pl
    >>> rows = pa.record_batch({"id": [1, 2, None]})
    >>> [predicate(where, rows.schema).matches(rows).to_pylist() for where in ("id > 1", pl.col("id") > 1)]
    [[False, True, False], [False, True, False]]

    Raises:
        InvalidArgument: If it is no condition on single rows.
        ColumnNotFound: If it uses a column that is not in the schema.
    """
    said: Any = _read(where, schema, None, clock)
    if not isinstance(said, str | pc.Expression | expressions.Formula):
        raise InvalidArgument(
            "where must be an SQL text, a PyArrow expression, a Polars expression or a Spark Column, "
            f"got {where!r}"
        )
    return expressions.predicate(said, schema, clock)


def assignments(
    values: Mapping[str, object], schema: pa.Schema, clock: Clock | None = None
) -> tuple[Assignment, ...]:
    """New values for columns: plain values, `sql(...)`, or expressions of PyArrow, Polars or Spark."""
    read = {
        column: _read(value, schema, plain_type(schema.field(column).type), clock)
        for column, value in targets(values, schema).items()
    }
    return expressions.assignments(read, schema, clock)


def _read(given: object, schema: pa.Schema, target: pa.DataType | None, clock: Clock | None) -> object:
    if is_spark(given):
        return spark_formula(given, schema, clock, target)
    return polars_formula(given, schema) if is_polars(given) else given

"""Which language a condition or a new value is said in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from parketto.errors import InvalidArgument
from parketto.languages.polars import is_polars, polars_formula
from parketto.languages.spark import is_spark, spark_sql
from parketto.plan import expressions
from parketto.plan.expressions import Assignment, Predicate, targets


def predicate(where: object, schema: pa.Schema) -> Predicate:
    """A condition in any of the languages, checked against the columns of a dataset.

    >>> import polars as pl
    >>> rows = pa.record_batch({"id": [1, 2, None]})
    >>> [predicate(where, rows.schema).matches(rows).to_pylist() for where in ("id > 1", pl.col("id") > 1)]
    [[False, True, False], [False, True, False]]

    Raises:
        InvalidArgument: If it is no condition on single rows.
        ColumnNotFound: If it uses a column that is not in the schema.
    """
    said: Any = _read(where, schema, None)
    if not isinstance(said, str | pc.Expression | expressions.Formula):
        raise InvalidArgument(
            "where must be an SQL text, a PyArrow expression, a Polars expression or a Spark Column, "
            f"got {where!r}"
        )
    return expressions.predicate(said, schema)


def assignments(values: Mapping[str, object], schema: pa.Schema) -> tuple[Assignment, ...]:
    """New values for columns: plain values, `sql(...)`, or expressions of PyArrow, Polars or Spark."""
    read = {
        column: _read(value, schema, schema.field(column).type)
        for column, value in targets(values, schema).items()
    }
    return expressions.assignments(read, schema)


def _read(given: object, schema: pa.Schema, target: pa.DataType | None) -> object:
    if is_spark(given):
        return spark_sql(given, schema, target)
    return polars_formula(given, schema) if is_polars(given) else given

"""Polars expressions as conditions and new values.

Polars itself calculates them, on the rows of each batch, wherever the task runs. What it thinks of types, overflow
and rounding holds. A condition is also looked through for simple forms, so that files can be ruled out.
"""

from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING, Any, TypeGuard

import pyarrow as pa

from parketto.errors import ColumnNotFound, EngineUnavailable, InvalidArgument
from parketto.languages.polars_pruning import possible
from parketto.languages.polars_tree import columns_of, not_row_wise, tagged
from parketto.plan.expressions import Formula, known_columns
from parketto.plan.sql import find_column

if TYPE_CHECKING:
    import polars as pl

_SAID_LENGTH = 200
# A function may say something else the next time, and rows are looked at twice: to count, and to rewrite.
_NO_FUNCTIONS = (
    "Python functions are not available: what they look at, and whether they say the same again, cannot be known. "
    "Use Polars' own expressions, or calculate the rows and merge them"
)


def is_polars(given: object) -> TypeGuard[pl.Expr]:
    """Whether something is a Polars expression; Polars is not loaded to find out."""
    loaded = sys.modules.get("polars")
    return loaded is not None and isinstance(given, loaded.Expr)


def polars_formula(given: pl.Expr, schema: pa.Schema) -> Formula:
    """A Polars expression, checked against the columns of a dataset.

    >>> import polars as pl
    >>> rows = pa.record_batch({"id": [1, 2, None]})
    >>> polars_formula(pl.col("id") + 1, rows.schema).values(rows, {}).to_pylist()
    [2, 3, None]
    >>> polars_formula(pl.col("id").sum(), rows.schema)
    Traceback (most recent call last):
        ...
    parketto.errors.InvalidArgument: col("id").sum() is not known to be calculated row by row: ...

    Raises:
        InvalidArgument: If it is not known to look at one row at a time, or its types do not fit.
        ColumnNotFound: If it names a column that is not in the schema.
    """
    said = _said(given)
    tree = _row_wise_tree(given, said)
    known = known_columns(schema)
    used = set(columns_of(tree))
    for name in used:
        if name not in known.names:
            if name in schema.names:
                find_column(name, schema)  # says that it stands there more than once
            raise ColumnNotFound([name], known.names)
    fields = pa.schema([field for field in known if field.name in used])
    calculation = PolarsCalculation(given)
    empty = fields.empty_table() if used else pa.table([pa.nulls(0)], names=["rows"])
    try:
        kind = calculation.run(empty).type
    except InvalidArgument as error:
        raise InvalidArgument(f"{said}: {error}") from error
    return Formula(calculation, kind, fields, said, possible(tree, fields, _constant))


class PolarsCalculation:
    """A calculation that Polars carries out.

    It travels as bytes: whoever has no Polars can still unpickle them, and say what is missing.
    """

    def __init__(self, expression: pl.Expr) -> None:
        self._expression: pl.Expr | None = expression
        self._content = b""

    def __getstate__(self) -> dict[str, Any]:
        content = self._content if self._expression is None else self._expression.meta.serialize()
        return {"_expression": None, "_content": content}

    def run(self, table: pa.Table) -> pa.Array:
        """The values of the expression."""
        try:
            import polars as pl
        except ImportError as error:
            raise EngineUnavailable(
                "a Polars expression needs Polars wherever rows are read, Spark's workers included: "
                "pip install polars"
            ) from error
        try:
            rows = pl.from_arrow(table)
            assert isinstance(rows, pl.DataFrame), "a table becomes a frame"
            # Beside the columns a literal becomes one value for each row.
            found = rows.with_columns(self._unpacked().alias("value")).get_column("value")
            values = found.to_arrow(compat_level=pl.CompatLevel.oldest())
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, pa.ArrowException) as error:
            raise InvalidArgument(" ".join(str(error).split())) from error
        if len(values) != table.num_rows:
            raise InvalidArgument(f"{len(values)} values for {table.num_rows} rows: it must give one for each")
        return values

    def _unpacked(self) -> pl.Expr:
        import polars as pl

        if self._expression is None:
            self._expression = pl.Expr.deserialize(self._content)
        return self._expression


def _row_wise_tree(given: pl.Expr, said: str) -> Any:
    import polars as pl

    if given.meta.has_multiple_outputs():
        raise InvalidArgument(f"{said} stands for several columns, or for a pattern of names: name one column")
    try:
        tree = json.loads(given.meta.serialize(format="json"))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise InvalidArgument(
            f"{said} cannot be sent to where the rows are ({' '.join(str(error).split())}). {_NO_FUNCTIONS}"
        ) from error
    except RecursionError as error:
        raise InvalidArgument(f"nested too deeply: {said}") from error
    part = not_row_wise(tree)
    if part is None:
        return tree
    if tagged(part)[0] == "AnonymousFunction":
        raise InvalidArgument(f"{said} calls a Python function. {_NO_FUNCTIONS}")
    if tagged(part)[0] in ("Selector", "Wildcard", "Columns", "Nth"):
        raise InvalidArgument(f"{said} names columns by a pattern: name each of them")
    raise InvalidArgument(
        f"{_part_said(part)} is not known to be calculated row by row: an expression sees one row at a time, "
        f"in {said}"
    )


def _part_said(part: Any) -> str:
    import polars as pl

    try:
        return _said(_deserialized(part))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return str(tagged(part)[0])


def _said(given: pl.Expr) -> str:
    line = " ".join(str(given).split())
    return line if len(line) <= _SAID_LENGTH else line[: _SAID_LENGTH - 3] + "..."


def _deserialized(tree: Any) -> pl.Expr:
    import polars as pl

    return pl.Expr.deserialize(io.StringIO(json.dumps(tree)), format="json")


def _constant(tree: Any) -> pa.Array | None:
    """The values of a step without columns, as Polars sees them."""
    import polars as pl

    if any(True for _ in columns_of(tree)):
        return None
    try:
        return pl.select(_deserialized(tree)).to_series().to_arrow(compat_level=pl.CompatLevel.oldest())
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, pa.ArrowException):
        return None  # NaN and infinity, for example, are lost in JSON

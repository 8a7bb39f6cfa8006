"""Polars expressions as conditions and new values.

Polars evaluates them on each batch, in the task that reads it, with its rules for types, overflow and rounding.
The simple parts of a condition are also used for pruning.
"""

from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING, Any, TypeGuard

import pyarrow as pa

from parketto.errors import ColumnNotFound, EngineUnavailable, InvalidArgument
from parketto.expressions.conditions import Formula, known_columns
from parketto.expressions.polars_pruning import possible
from parketto.expressions.polars_tree import columns_of, not_row_wise, tagged
from parketto.expressions.sql import find_column

if TYPE_CHECKING:
    import polars as pl

_MAX_TEXT_LENGTH = 200  # characters of an expression in messages
# Rows are read twice, to count and to rewrite, so results must be reproducible.
_NO_FUNCTIONS = (
    "Python functions are not available: they may read other rows or return different results on each call. "
    "Use Polars expressions, or compute the rows and merge them"
)


def is_polars(given: object) -> TypeGuard[pl.Expr]:
    """Whether the object is a Polars expression, without importing Polars."""
    loaded = sys.modules.get("polars")
    return loaded is not None and isinstance(given, loaded.Expr)


def polars_formula(given: pl.Expr, schema: pa.Schema) -> Formula:
    """A formula from a Polars expression, checked against the columns of a dataset.

    >>> import polars as pl
    >>> rows = pa.record_batch({"id": [1, 2, None]})
    >>> polars_formula(pl.col("id") + 1, rows.schema).values(rows, {}).to_pylist()
    [2, 3, None]
    >>> polars_formula(pl.col("id").sum(), rows.schema)
    Traceback (most recent call last):
        ...
    parketto.errors.InvalidArgument: col("id").sum() is not known to be calculated row by row: ...

    Raises:
        InvalidArgument: If it is not known to be row-wise, or its types do not fit.
        ColumnNotFound: If it uses a column that is not in the schema.
    """
    text = _shortened(given)
    tree = _row_wise_tree(given, text)
    known = known_columns(schema)
    used = set(columns_of(tree))
    for name in used:
        if name not in known.names:
            if name in schema.names:
                find_column(name, schema)  # raises for duplicate column names
            raise ColumnNotFound([name], known.names)
    fields = pa.schema([field for field in known if field.name in used])
    calculation = PolarsCalculation(given)
    empty = fields.empty_table() if used else pa.table([pa.nulls(0)], names=["rows"])
    try:
        kind = calculation.run(empty).type
    except InvalidArgument as error:
        raise InvalidArgument(f"{text}: {error}") from error
    condition, steps = possible(tree, fields, _constant)
    return Formula(calculation, kind, fields, text, condition, derived=steps)


class PolarsCalculation:
    """A computation that Polars evaluates.

    The expression is pickled as bytes, so that workers without Polars can unpickle it and report what is missing.
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
                "a Polars expression needs Polars wherever rows are read, including Spark workers: "
                "pip install polars"
            ) from error
        try:
            rows = pl.from_arrow(table)
            assert isinstance(rows, pl.DataFrame), "a table becomes a DataFrame"
            # `with_columns` broadcasts a literal to one value per row.
            found = rows.with_columns(self._unpacked().alias("value")).get_column("value")
            values = found.to_arrow(compat_level=pl.CompatLevel.oldest())
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, pa.ArrowException) as error:
            raise InvalidArgument(" ".join(str(error).split())) from error
        if len(values) != table.num_rows:
            raise InvalidArgument(f"got {len(values)} values for {table.num_rows} rows: expected one per row")
        return values

    def _unpacked(self) -> pl.Expr:
        import polars as pl

        if self._expression is None:
            self._expression = pl.Expr.deserialize(self._content)
        return self._expression


def _row_wise_tree(given: pl.Expr, text: str) -> Any:
    import polars as pl

    if given.meta.has_multiple_outputs():
        raise InvalidArgument(f"{text} selects several columns, or columns by a pattern: name one column")
    try:
        tree = json.loads(given.meta.serialize(format="json"))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise InvalidArgument(
            f"{text} cannot be serialised ({' '.join(str(error).split())}). {_NO_FUNCTIONS}"
        ) from error
    except RecursionError as error:
        raise InvalidArgument(f"nested too deeply: {text}") from error
    part = not_row_wise(tree)
    if part is None:
        return tree
    if tagged(part)[0] == "AnonymousFunction":
        raise InvalidArgument(f"{text} calls a Python function. {_NO_FUNCTIONS}")
    if tagged(part)[0] in ("Selector", "Wildcard", "Columns", "Nth"):
        raise InvalidArgument(f"{text} selects columns by a pattern: name each of them")
    raise InvalidArgument(
        f"{_part_text(part)} is not known to be calculated row by row: an expression sees one row at a time, "
        f"in {text}"
    )


def _part_text(part: Any) -> str:
    import polars as pl

    try:
        return _shortened(_deserialized(part))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return str(tagged(part)[0])


def _shortened(given: pl.Expr) -> str:
    line = " ".join(str(given).split())
    return line if len(line) <= _MAX_TEXT_LENGTH else line[: _MAX_TEXT_LENGTH - 3] + "..."


def _deserialized(tree: Any) -> pl.Expr:
    import polars as pl

    return pl.Expr.deserialize(io.StringIO(json.dumps(tree)), format="json")


def _constant(tree: Any) -> pa.Array | None:
    """The values of an expression without columns, as Polars evaluates it; None if it cannot."""
    import polars as pl

    if any(True for _ in columns_of(tree)):
        return None
    try:
        return pl.select(_deserialized(tree)).to_series().to_arrow(compat_level=pl.CompatLevel.oldest())
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, pa.ArrowException):
        return None  # JSON loses NaN and infinity, for example

"""Columns that are computed from the other columns of a row, on the way into files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pat

from parketto.errors import InvalidArgument, quoted
from parketto.expressions.conditions import Formula, sql_formula
from parketto.expressions.time_zones import Clock


@dataclass(frozen=True)
class DerivedColumns:
    """Appends computed columns to rows. It can be pickled.

    >>> rows = pa.record_batch({"n": [7, 12]})
    >>> tens = DerivedColumns.of({"tens": "CAST(n / 10 AS INT)"}, rows.schema)
    >>> [batch.to_pylist() for batch in tens(iter([rows]))]
    [[{'n': 7, 'tens': 0}, {'n': 12, 'tens': 1}]]
    """

    takes: pa.Schema
    formulas: tuple[tuple[str, Formula], ...]

    @classmethod
    def of(cls, expressions: Mapping[str, str], schema: pa.Schema, clock: Clock | None = None) -> DerivedColumns:
        """The columns that SQL expressions over a schema define."""
        if existing := [name for name in expressions if name in schema.names]:
            raise InvalidArgument(
                f"the rows already have columns named {quoted(existing)}; derived columns need new names: rename "
                "them, or name the existing columns without an expression"
            )
        formulas = []
        for name, text in expressions.items():
            formula = sql_formula(text, schema, clock)
            if pat.is_null(formula.type):
                raise InvalidArgument(f"{text!r} for column {name!r} is always NULL: use CAST to give it a type")
            formulas.append((name, formula))
        return cls(schema, tuple(formulas))

    @property
    def schema(self) -> pa.Schema:
        """The columns of the result."""
        fields = [pa.field(name, formula.type) for name, formula in self.formulas]
        return pa.schema([*self.takes, *fields], metadata=self.takes.metadata)

    def __call__(self, batches: Iterator[pa.RecordBatch], limit_bytes: int = 0) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """The rows with the new columns."""
        return map(self.added, batches)

    def added(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows with the new columns."""
        for name, formula in self.formulas:
            values = formula.values(batch, {}, f" for column {name!r}")
            batch = batch.append_column(pa.field(name, formula.type), values.cast(formula.type))
        return batch

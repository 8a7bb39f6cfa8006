"""The scope of a full merge: a condition that source rows must match, and that limits the rows of the target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from parketto.errors import InvalidArgument, shortened_row
from parketto.expressions.conditions import Predicate
from parketto.merge.keys import Rows
from parketto.parquet.file_info import FileInfo
from parketto.runtime.arrays import Flags


@dataclass(frozen=True)
class Scope:
    """A condition on rows, and how many rows of each file match it."""

    condition: Predicate
    #: The types of partition columns that exist only in paths. Rows have them as strings.
    path_only: Mapping[str, pa.DataType] = field(default_factory=dict)
    #: The matching rows by file path; files without any are missing.
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the condition uses."""
        return self.condition.columns

    @property
    def num_rows(self) -> int:
        """The rows of all files that match."""
        return sum(self.counts.values())

    def rows_outside(self, file: FileInfo) -> int:
        """The rows of a file that do not match."""
        return file.num_rows - self.counts.get(file.path, 0)

    def matches(self, rows: Rows) -> Flags:
        """Which rows match."""
        if not self.columns:
            columns = {"rows": pa.nulls(rows.num_rows)}
        else:
            columns = {name: self._column(rows, name) for name in self.columns}
        found: Flags = self.condition.matches(pa.RecordBatch.from_pydict(columns)).to_numpy(zero_copy_only=False)
        return found

    def _column(self, rows: Rows, name: str) -> pa.Array:
        column = rows.column(name)
        column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        return column.cast(self.path_only[name]) if name in self.path_only else column

    def refuse_outside(self, rows: Rows, keys: tuple[str, ...]) -> None:
        """Refuse source rows that do not match."""
        outside = np.flatnonzero(~self.matches(rows))
        if len(outside):
            names = dict.fromkeys((*keys, *self.columns))
            example = {name: rows.column(name)[int(outside[0])].as_py() for name in names}
            raise InvalidArgument(
                f"the source has rows outside of within={self.condition.formula.text!r}, such as "
                f"{shortened_row(example)}. Filter the source, or widen the scope; nothing was changed"
            )

"""Changes of the rows of neighbouring files, known before any of them is written."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from parketto.runtime.arrays import Flags, Indices


@dataclass(frozen=True)
class RowChanges:
    """Rows that are removed, and rows that get new values. Row numbers count through all files.

    >>> changes = RowChanges(np.array([True, False, True, True]), np.array([3]), pa.table({"hits": [7]}))
    >>> changes.touch(0, 1), changes.touch(0, 2), changes.touch(2, 4)
    (False, True, True)
    >>> changes.rows_left(0, 4)
    3
    """

    #: For each row, whether it stays; None: all stay.
    stays: Flags | None = None
    #: The numbers of the rows with new values, sorted.
    at: Indices = field(default_factory=lambda: np.empty(0, np.int64))
    #: Their new values, in the columns that change.
    values: pa.Table = field(default_factory=lambda: pa.table({}))

    def rows_left(self, start: int, stop: int) -> int:
        """How many of the rows from `start` to before `stop` stay."""
        return stop - start if self.stays is None else int(np.count_nonzero(self.stays[start:stop]))

    def touch(self, start: int, stop: int) -> bool:
        """Whether any of the rows from `start` to before `stop` is removed or gets new values."""
        first, last = np.searchsorted(self.at, [start, stop])
        return bool(first < last) or self.rows_left(start, stop) < stop - start

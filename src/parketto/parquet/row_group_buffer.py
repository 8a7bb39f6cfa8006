"""A buffer for decoded rows, until there are enough of them for a row group."""

from __future__ import annotations

import pyarrow as pa

from parketto.parquet.dictionaries import DictionaryLimits
from parketto.runtime.batches import RowSizes

MAX_ROW_GROUP_ROWS = 1024 * 1024


class RowGroupBuffer:
    """Buffers batches until they fill a row group.

    Args:
        schema: The schema that readers will see: dictionary columns limit the distinct values of a row group.
        most_bytes: The decoded size at which a row group is full.
        most_rows: The number of rows at which it is full.
    """

    def __init__(self, schema: pa.Schema, most_bytes: int, most_rows: int | None = None) -> None:
        self._max_bytes = most_bytes
        self._max_rows = max(1, min(most_rows or MAX_ROW_GROUP_ROWS, MAX_ROW_GROUP_ROWS))
        self._dictionaries, self._sizes = DictionaryLimits(schema), RowSizes(schema)
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self.num_rows = 0

    @property
    def is_full(self) -> bool:
        """Whether the buffered rows fill a row group."""
        return self.num_rows >= self._max_rows or self._bytes >= self._max_bytes

    def add(self, batch: pa.RecordBatch, room: int | None = None) -> int:
        """Add the first rows of a batch, as many as fit and at most `room`; return their number.

        It is 0 if a dictionary column has no room for another value: then flush first.
        """
        free = self._max_rows - self.num_rows
        part = batch.slice(0, free if room is None else min(free, room))
        fitting = self._dictionaries.admit(part)
        if fitting:
            part = part.slice(0, fitting)
            self._batches.append(part)
            self.num_rows += part.num_rows
            self._bytes += self._sizes.of(part)
        return fitting

    def flush(self) -> pa.Table:
        """Return all buffered rows, and empty the buffer."""
        table = pa.Table.from_batches(self._batches)
        self._batches, self.num_rows, self._bytes = [], 0, 0
        self._dictionaries.clear()
        return table

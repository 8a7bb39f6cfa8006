"""Rows that wait, decoded, until there are enough of them for a row group."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

import pyarrow as pa

from parketto.kernels.sizes import DictionaryLimits, RowSizes

MAX_ROW_GROUP_ROWS = 1024 * 1024


class WaitingRows:
    """Takes batches until they make a row group.

    Args:
        schema: The schema that readers will see: columns of categories limit how many values go together.
        most_bytes: A row group is full when its rows take so much, decoded.
        most_rows: Or when it has so many rows.
    """

    def __init__(self, schema: pa.Schema, most_bytes: int, most_rows: int | None = None) -> None:
        self._most_bytes = most_bytes
        self._most_rows = max(1, min(most_rows or MAX_ROW_GROUP_ROWS, MAX_ROW_GROUP_ROWS))
        self._dictionaries, self._sizes = DictionaryLimits(schema), RowSizes(schema)
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self.num_rows = 0

    @property
    def is_full(self) -> bool:
        """Whether no more rows should come."""
        return self.num_rows >= self._most_rows or self._bytes >= self._most_bytes

    def take(self, batch: pa.RecordBatch, room: int | None = None) -> int:
        """Take the first rows of a batch, as many as fit, and at most `room`; how many these are.

        None, if a column has no room for another value: then those that wait must leave first.
        """
        free = self._most_rows - self.num_rows
        part = batch.slice(0, free if room is None else min(free, room))
        fitting = self._dictionaries.admit(part)
        if fitting:
            part = part.slice(0, fitting)
            self._batches.append(part)
            self.num_rows += part.num_rows
            self._bytes += self._sizes.of(part)
        return fitting

    def leave(self) -> pa.Table:
        """All rows that wait; none do afterwards."""
        table = pa.Table.from_batches(self._batches)
        self._batches, self.num_rows, self._bytes = [], 0, 0
        self._dictionaries.clear()
        return table


class StagedWriter(ABC):
    """What writes staged files: they are finished when all went well, and let go of when it did not."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()
        else:
            self.abandon()

    @abstractmethod
    def finish(self) -> None:
        """Write what waits, and end the file."""

    @abstractmethod
    def abandon(self) -> None:
        """Let go of a file that nobody will use."""

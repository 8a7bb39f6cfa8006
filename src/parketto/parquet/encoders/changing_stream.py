"""Changes rows while Polars streams them from files to a file."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from parketto.parquet.codec import PolarsFailed
from parketto.parquet.file_info import FileInfo
from parketto.parquet.row_changes import RowChanges
from parketto.runtime.arrays import Indices

if TYPE_CHECKING:
    import polars as pl


class ChangingStream:
    """Applies changes to the pieces of a stream, which come in any order and from several threads.

    The stream fails once all rows of a file have passed and none of them has changed: such a file must stay.

    Args:
        files: The files that are streamed.
        changes: The changes.
        check: Called for each piece; may raise an error to end the stream.
    """

    def __init__(self, files: Sequence[FileInfo], changes: RowChanges, check: Callable[[], None]) -> None:
        import polars as pl

        self._changes, self._check = changes, check
        changes.values.validate(full=True)  # Polars trusts text to be UTF-8
        values = pl.from_arrow(changes.values)
        assert isinstance(values, pl.DataFrame), "it is made of a table"
        self._values = values
        assert files[0].schema is not None, "files to rewrite come from a snapshot"
        self._number = f"{max(files[0].schema.names, key=len)}?"  # no column has this name
        self._ends = np.cumsum([file.num_rows for file in files])
        self._unseen = [file.num_rows for file in files]
        self._has_changed = [False] * len(files)
        self._lock = threading.Lock()

    def of(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """The rows of the files with their changes.

        Raises:
            PolarsFailed: The new values have other types.
        """
        schema = rows.collect_schema()
        if any(schema.get(name) != kind for name, kind in self._values.schema.items()):
            raise PolarsFailed("the new values have other types")
        numbered = rows.with_row_index(self._number)
        changed = numbered.map_batches(
            self._change,
            streamable=True,
            predicate_pushdown=False,
            projection_pushdown=False,
            slice_pushdown=False,
        )
        return changed.drop(self._number)

    def _change(self, piece: pl.DataFrame) -> pl.DataFrame:
        """A piece with its changes."""
        import polars as pl

        self._check()
        if not piece.height:
            return piece
        numbers = piece.get_column(self._number)
        start, stop = int(numbers[0]), int(numbers[-1]) + 1
        if stop - start != piece.height:
            raise PolarsFailed("a piece of the stream has gaps")
        with self._lock:
            self._note_changes(piece, start, stop)
        at, values = self._new_values(start, stop)
        if len(at):
            positions = pl.Series(at - start)
            piece = piece.with_columns(
                piece.get_column(column.name).scatter(positions, column) for column in values.iter_columns()
            )
        if self._changes.stays is None or self._changes.stays[start:stop].all():
            return piece
        return piece.filter(pl.Series(self._changes.stays[start:stop]))

    def _new_values(self, start: int, stop: int) -> tuple[Indices, pl.DataFrame]:
        """The numbers of the rows with new values from `start` to before `stop`, and these values."""
        first, last = np.searchsorted(self._changes.at, [start, stop]).tolist()
        return self._changes.at[first:last], self._values.slice(first, last - first)

    def _note_changes(self, piece: pl.DataFrame, start: int, stop: int) -> None:
        """Note which files change; fail if all of a file was seen without a change."""
        first, number = start, int(np.searchsorted(self._ends, start, side="right"))
        while first < stop:
            end = min(stop, int(self._ends[number]))
            if not self._has_changed[number]:
                self._has_changed[number] = self._change_any(piece, start, first, end)
            self._unseen[number] -= end - first
            if not (self._unseen[number] or self._has_changed[number]):
                raise PolarsFailed("a file has the new values already")
            first, number = end, number + 1

    def _change_any(self, piece: pl.DataFrame, start: int, first: int, end: int) -> bool:
        """Whether some rows of a piece are removed, or get values that surely differ from the old ones."""
        import polars as pl

        at, values = self._new_values(first, end)
        positions = pl.Series(at - start)
        return self._changes.rows_left(first, end) < end - first or any(
            piece.get_column(column.name).gather(positions).ne_missing(column).any()
            for column in values.iter_columns()
        )

"""Changes rows while Polars streams them from files to a file."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from parketto.parquet.codec import PolarsFailed
from parketto.parquet.file_info import FileInfo
from parketto.parquet.row_changes import RowChanges

if TYPE_CHECKING:
    import polars as pl


class ChangingStream:
    """Applies changes to the rows that Polars streams from files.

    New values are put into pieces of the stream, which come in any order and from several threads. The stream
    fails once all rows of a file have passed and none of them has changed: such a file must stay.

    Args:
        files: The files that are streamed.
        changes: The changes.
        check: Called for each piece; may raise an error to end the stream.
    """

    def __init__(self, files: Sequence[FileInfo], changes: RowChanges, check: Callable[[], None]) -> None:
        assert files[0].schema is not None, "files to rewrite come from a snapshot"
        self._changes, self._check = changes, check
        self._number = f"{max(files[0].schema.names, key=len)}?"  # no column has this name
        sizes = [file.num_rows for file in files]
        self._ends = np.cumsum(sizes)
        self._unseen = list(sizes)
        self._has_changed = [
            changes.rows_left(end - rows, end) < rows for end, rows in zip(self._ends, sizes, strict=True)
        ]
        self._differing = ""
        self._lock = threading.Lock()

    def of(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """The rows of the files with their changes.

        Raises:
            PolarsFailed: The new values have other types, or rows of a file do not change.
        """
        import polars as pl

        if len(self._changes.at):
            rows = self._with_new_values(rows)
        elif not all(self._has_changed):
            raise PolarsFailed("nothing changes in a file")
        if self._changes.stays is None:
            return rows
        stays = pl.LazyFrame({self._number: pl.Series(self._changes.stays)})
        return pl.concat([rows, stays], how="horizontal").filter(pl.col(self._number)).drop(self._number)

    def _with_new_values(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        import polars as pl

        self._changes.values.validate(full=True)  # Polars trusts text to be UTF-8
        values = pl.from_arrow(self._changes.values, rechunk=False)
        assert isinstance(values, pl.DataFrame), "it is made of a table"
        self._values = values
        schema = rows.collect_schema()
        if any(schema.get(name) != kind for name, kind in values.schema.items()):
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
        """A piece with its new values."""
        # Without expressions: Polars would start a stream for each.
        import polars as pl

        self._check()
        if not piece.height:
            return piece
        numbers = piece.get_column(self._number)
        start, stop = int(numbers[0]), int(numbers[-1]) + 1
        file = int(np.searchsorted(self._ends, start, side="right"))
        if stop - start != piece.height or stop > self._ends[file]:
            raise PolarsFailed("a piece of the stream is not from one file")
        first, last = np.searchsorted(self._changes.at, (start, stop)).tolist()
        at, values = pl.Series(self._changes.at[first:last] - start), self._values.slice(first, last - first)
        self._note_change(file, piece.height, self._has_changed[file] or self._differ(piece, at, values))
        new = {column.name: column for column in values.get_columns()}
        columns = piece.get_columns()
        return pl.DataFrame([each.scatter(at, new[each.name]) if each.name in new else each for each in columns])

    def _note_change(self, file: int, rows: int, changes: bool) -> None:
        """Note whether rows of a file change; fail if all of its rows were seen without a change."""
        with self._lock:
            self._has_changed[file] = self._has_changed[file] or changes
            self._unseen[file] -= rows
            if not (self._unseen[file] or self._has_changed[file]):
                raise PolarsFailed("a file has the new values already")

    def _differ(self, piece: pl.DataFrame, at: pl.Series, values: pl.DataFrame) -> bool:
        """Whether any new value surely differs from the old one."""
        # A column that differed before probably does so again; keys never do.
        for column in sorted(values.get_columns(), key=lambda column: column.name != self._differing):
            if not piece.get_column(column.name)[at].equals(column, null_equal=True):
                self._differing = column.name
                return True
        return False

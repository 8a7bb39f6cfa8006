"""The rows that an edit moves to other partitions."""

from __future__ import annotations

import pyarrow as pa

from parketto.merge.row_edits import Rewriting, RowEdits, moved_rows
from parketto.parquet.output import Written
from parketto.runtime.task import Worker
from parketto.sorting.spill import SpillFiles
from parketto.tasks.write import write_rows


class MovedRows:
    """The rows that move to other partitions, spilled until all files are rewritten."""

    def __init__(self, rewriting: Rewriting, worker: Worker) -> None:
        self._rewriting, self._worker = rewriting, worker
        self._spilled: SpillFiles[None] | None = None

    def add(self, batch: pa.RecordBatch, edits: RowEdits) -> None:
        """Keep the rows of a batch that move."""
        if edits.moves_out.any():
            self._spilled = self._spilled or SpillFiles(self._worker.scratch_directory())
            self._spilled.write(None, moved_rows(batch, edits, self._rewriting.updated))

    def write(self) -> Written:
        """Write them."""
        if self._spilled is None:
            return Written()
        output = self._rewriting.elsewhere
        assert output is not None, "rows that move need an output"
        self._spilled.close()
        moved = (part.select(output.row_schema.names) for part in self._spilled[None])
        return write_rows(moved, output, self._worker, at_least_one=False)

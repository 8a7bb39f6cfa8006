"""A reader of a stream without Spark: offsets, micro-batches, restarts and replays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from parketto.operations.added_files import AddedFiles, Offset, OnChange
from parketto.operations.added_rows import added_scans, schema_template
from parketto.operations.read import RowQuery


class Stream:
    """Reads the rows that are added to a dataset, as the data source does."""

    def __init__(
        self,
        place: Any,
        starting: str | int = "earliest",
        on_change: OnChange = "fail",
        columns: Sequence[str] | None = None,
        where: str | None = None,
    ) -> None:
        self._place, self._on_change, self._query = place, on_change, RowQuery(columns, where)
        self.restart()
        self.start = self.added.first(starting)
        #: The micro-batches so far: start and end.
        self.batches: list[tuple[Offset, Offset]] = []

    def restart(self, on_change: OnChange | None = None) -> None:
        """Lose everything but the offsets, as a new process does."""
        context = self._place.dataset(retries=3)._context
        self.added = AddedFiles(context, on_change or self._on_change)
        self._context = context

    def next(self, max_commits: int | None = None) -> pa.Table | None:
        """The rows of the next micro-batch; None if there is none."""
        end = self.added.next(self.start, self.added.latest(self.start), max_commits)
        if end == self.start:
            return None
        rows = self.replay(self.start, end)
        self.batches.append((self.start, end))
        self.start = end
        return rows

    def replay(self, start: Offset, end: Offset) -> pa.Table:
        """The rows of a micro-batch."""
        entries = self.added.between(start, end)
        template = schema_template(self._context, pa.schema({}))
        tables = [
            pa.Table.from_batches(scan.batches(), scan.schema)
            for scan in added_scans(self._context, entries, self._query, template)
        ]
        return (
            pa.concat_tables(tables, promote_options="default")
            if tables
            else pa.table({"id": pa.array([], pa.int64())})
        )

    def ids(self, max_commits: int | None = None) -> list[int] | None:
        """The ids of the rows of the next micro-batch, sorted."""
        found = self.next(max_commits)
        return None if found is None else sorted(found.column("id").to_pylist())

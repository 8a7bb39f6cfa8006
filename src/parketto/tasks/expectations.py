"""Expectations: named conditions on rows. Tasks leave out rows that break one, or stage them for a quarantine."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parketto.expressions.conditions import Predicate
from parketto.parquet.decoded_types import cast_rows, decoded_schema
from parketto.parquet.file_writer import FileWriter, file_writer
from parketto.parquet.output import Output
from parketto.parquet.row_checks import Split, Violations
from parketto.runtime.staging import Staging
from parketto.runtime.task import Worker
from parketto.storage.store import Store

#: The columns that quarantined rows have besides their own.
BROKEN_RULES, QUARANTINED_AT, QUARANTINE_ID = "broken_rules", "quarantined_at", "quarantine_id"
QUARANTINE_FIELDS = (
    pa.field(BROKEN_RULES, pa.list_(pa.string())),
    pa.field(QUARANTINED_AT, pa.timestamp("us", "UTC")),
    pa.field(QUARANTINE_ID, pa.string()),
)
_QUARANTINE_SHARE = 4  # the rows for the quarantine get 1/4 of a task's memory


@dataclass(frozen=True)
class QuarantineFiles:
    """Where tasks stage the rows that break a rule."""

    store: Store
    staging: Staging
    #: In the schema of the quarantine, which may have further columns.
    output: Output
    #: The operation that writes the rows, and when it began.
    identity: str
    at: dt.datetime

    def stored(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows with the columns of the quarantine."""
        for item, value in zip(QUARANTINE_FIELDS[1:], (self.at, self.identity), strict=True):
            rows = rows.append_column(item, pa.repeat(pa.scalar(value, item.type), rows.num_rows))
        return cast_rows(rows, self.output.format.schema)


@dataclass(frozen=True)
class Expectations:
    """Named conditions that rows should meet. It can be pickled.

    A row breaks a rule if its condition is not true: FALSE or NULL.

    >>> from parketto.expressions.dispatch import predicate
    >>> rows = pa.record_batch({"id": [1, None, 3], "price": [1.0, 0.0, None]})
    >>> rules = {"positive": "price > 0", "has id": "id IS NOT NULL"}
    >>> conditions = tuple(predicate(condition, rows.schema) for condition in rules.values())
    >>> found = Expectations(tuple(rules), conditions, rows.schema, rows.schema).split(rows)
    >>> found.passed.to_pylist()
    [{'id': 1, 'price': 1.0}]
    >>> found.violating.column("broken_rules").to_pylist(), found.found.counts
    ([['positive', 'has id'], ['positive']], (2, 1))
    """

    names: tuple[str, ...]
    conditions: tuple[Predicate, ...]
    #: The columns that conditions may use, and that a quarantine keeps.
    given: pa.Schema
    #: The schema of the rows: further columns are derived from the given ones.
    rows: pa.Schema
    #: Whether a row that breaks a rule fails the operation: then other rows need not be written either.
    fails: bool = False
    quarantine: QuarantineFiles | None = None

    def split(self, batch: pa.RecordBatch) -> Split:
        """Check the rows of a batch."""
        rows = cast_rows(batch, decoded_schema(self.rows).remove_metadata())
        met = [condition.matches(rows) for condition in self.conditions]
        passes = met[0]
        for each in met[1:]:
            passes = pc.and_(passes, each)
        if passes.false_count == 0:
            none = (0,) * len(met)
            return Split(rows, None, Violations(rows.num_rows, 0, none, (None,) * len(met)))
        fails = pc.invert(passes)
        violating = rows.select(self.given.names).filter(fails)
        broken = ~np.column_stack([each.filter(fails).to_numpy(zero_copy_only=False) for each in met])
        counts = tuple(int(count) for count in broken.sum(axis=0))
        examples = tuple(
            violating.slice(int(np.argmax(broken[:, at])), 1).to_pylist()[0] if count else None
            for at, count in enumerate(counts)
        )
        found = Violations(rows.num_rows, violating.num_rows, counts, examples)
        named = violating.append_column(QUARANTINE_FIELDS[0], self._names_of(broken))
        return Split(rows.filter(passes), named, found)

    def _names_of(self, broken: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> pa.ListArray:
        """The names of the rules that each row breaks."""
        offsets = np.concatenate([[0], np.cumsum(broken.sum(axis=1))]).astype(np.int32)
        names = pa.array(self.names, pa.string()).take(pa.array(np.nonzero(broken)[1]))
        return pa.ListArray.from_arrays(pa.array(offsets), names)

    @contextmanager
    def checking(self, worker: Worker) -> Iterator[RowCheck]:
        """Check the rows of a task, and stage those that break a rule, if there is a quarantine."""
        if self.quarantine is None:
            yield RowCheck(self, None)
            return
        files = self.quarantine
        # The attempt of the task also names its files of the quarantine: those of a failed one are not published.
        staging = replace(files.staging, attempt=worker.staging.attempt)
        writer = file_writer(files.output, worker.share_for(files.store, staging, _QUARANTINE_SHARE))
        check = RowCheck(self, writer)
        try:
            yield check
            if writer.num_rows:
                writer.finish()
                check.found += Violations(staged=tuple(writer.staged))
        finally:
            writer.abandon()


class RowCheck:
    """The check of the rows of one task."""

    def __init__(self, expectations: Expectations, writer: FileWriter | None) -> None:
        self._expectations, self._writer = expectations, writer
        self.found = Violations()

    def passed(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows that pass, in decoded types."""
        expectations = self._expectations
        for batch in batches:
            passed, violating, found = expectations.split(batch)
            self.found += found
            if violating is not None and self._writer is not None and expectations.quarantine is not None:
                self._writer.write(expectations.quarantine.stored(violating))
            if passed.num_rows and not (expectations.fails and self.found.violating):
                yield passed


@dataclass(frozen=True)
class CheckBatches:
    """Check rows that are in memory."""

    batches: list[pa.RecordBatch]
    expectations: Expectations

    @property
    def size_bytes(self) -> int:
        """The size of these rows."""
        return sum(batch.nbytes for batch in self.batches)

    def run(self, worker: Worker) -> tuple[list[pa.RecordBatch], Violations]:
        """The rows that pass, and what was found."""
        with self.expectations.checking(worker) as check:
            passed = list(check.passed(worker.until_cancelled(iter(self.batches))))
        return passed, check.found

"""Checks of rows on their way into files: what a check finds, and what a task needs to know of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from parketto.runtime.staging import StagedFile
from parketto.runtime.task import Worker


@dataclass(frozen=True)
class Violations:
    """The number of rows that were checked and that break rules, and the staged files with those rows."""

    rows: int = 0
    #: The rows that break at least one rule.
    violating: int = 0
    #: For each rule, the number of rows that break it, and the first of them.
    counts: tuple[int, ...] = ()
    examples: tuple[Mapping[str, Any] | None, ...] = ()
    #: The files for the quarantine; none if rows are dropped.
    staged: tuple[StagedFile, ...] = ()

    def __add__(self, other: Violations) -> Violations:
        if not self.counts or not other.counts:
            mine, theirs = self.counts or other.counts, self.examples or other.examples
            counts, examples = mine, theirs
        else:
            counts = tuple(map(sum, zip(self.counts, other.counts, strict=True)))
            pairs = zip(self.examples, other.examples, strict=True)
            examples = tuple(theirs if mine is None else mine for mine, theirs in pairs)
        return Violations(
            self.rows + other.rows,
            self.violating + other.violating,
            counts,
            examples,
            self.staged + other.staged,
        )


class Split(NamedTuple):
    """The rows of a batch that pass all rules, those that do not with the names of the rules, and the counts."""

    passed: pa.RecordBatch
    #: With the column of broken rules; None if all rows pass.
    violating: pa.RecordBatch | None
    found: Violations


class Checking(Protocol):
    """The check of the rows of one task."""

    @property
    def found(self) -> Violations:
        """What was found; complete, with staged files, once the context of the check is left."""

    def passed(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows that pass, in decoded types."""


class RowChecks(Protocol):
    """A check that is shipped to tasks."""

    @property
    def rows(self) -> pa.Schema:
        """The schema of the rows, as their source has it."""

    def split(self, batch: pa.RecordBatch) -> Split:
        """Check the rows of a batch."""

    def checking(self, worker: Worker) -> AbstractContextManager[Checking]:
        """Check the rows of a task, and stage those that break a rule, if they are kept."""

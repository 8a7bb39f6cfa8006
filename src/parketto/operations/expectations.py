"""Expectations of an operation: which rows are written, dropped or quarantined, in commits that belong together.

Tasks check the rows (`tasks/expectations.py`). This module binds the rules to a source, judges what tasks have
found, and commits quarantined rows immediately before the operation itself.
"""

from __future__ import annotations

import datetime as dt
import logging
import posixpath
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, cast

import pyarrow as pa
import pyarrow.compute as pc

from parketto.arguments import DEFAULT_CODEC
from parketto.commit.lease import Lease
from parketto.commit.quarantine import (
    Announcement,
    announce,
    announcements,
    forget,
    interrupted,
    is_committed,
)
from parketto.commit.recovery import recover
from parketto.commit.transaction import Transaction
from parketto.commit.verify import verify_written
from parketto.commit.workspace import Workspace
from parketto.engines.base import Context
from parketto.errors import (
    ColumnNotFound,
    CommitStateUnknown,
    DatasetNotFound,
    ExpectationFailed,
    InvalidArgument,
    quoted,
)
from parketto.expressions.conditions import Predicate
from parketto.expressions.dispatch import predicate
from parketto.expressions.time_zones import Clock
from parketto.operations.context import DatasetContext
from parketto.operations.edit import edit
from parketto.operations.edit_run import EditRequest
from parketto.operations.write_output import WriteRequest, append_output
from parketto.parquet.file_format import FileFormat
from parketto.parquet.output import Output
from parketto.parquet.row_checks import Violations
from parketto.parquet.row_source import ArrowRows, FileRows, RowSource
from parketto.parquet.snapshot import read_files
from parketto.planning.naming import Naming
from parketto.results import ExpectationStats
from parketto.runtime.staging import Staging
from parketto.storage.listing import is_inside, refuse_foreign, retry_on_vanished_files
from parketto.storage.store import FileEntry
from parketto.tasks.expectations import (
    QUARANTINE_FIELDS,
    QUARANTINE_ID,
    CheckBatches,
    Expectations,
    QuarantineFiles,
)

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import Column

logger = logging.getLogger(__name__)

#: A condition on rows: SQL, or an expression of PyArrow, Polars or Spark.
Condition: TypeAlias = "str | pc.Expression | pl.Expr | Column"
OnViolation = Literal["fail", "drop", "quarantine"]
Stats = TypeVar("Stats", bound=ExpectationStats)
ON_VIOLATION: tuple[OnViolation, ...] = ("fail", "drop", "quarantine")


@dataclass(frozen=True)
class Expect:
    """The rules of an operation as they are given, and what happens to rows that break one."""

    rules: Mapping[str, Any]
    on_violation: OnViolation
    quarantine: DatasetContext | None = None

    @classmethod
    def of(cls, dataset: DatasetContext, rules: Any, on_violation: Any, quarantine: str | None) -> Expect | None:
        """Check what can be checked without any data; `quarantine` is a path in the store of the dataset."""
        if on_violation not in ON_VIOLATION:
            raise InvalidArgument(f"unknown on_violation {on_violation!r}; valid choices: {quoted(ON_VIOLATION)}")
        if quarantine is not None and (rules is None or on_violation != "quarantine"):
            raise InvalidArgument("quarantine needs expect= and on_violation='quarantine'")
        if rules is None:
            return None
        if not isinstance(rules, Mapping) or not rules:
            raise InvalidArgument(
                f"expect must map names to conditions, such as {{'has id': 'id IS NOT NULL'}}, got {rules!r}"
            )
        for name in rules:
            if not isinstance(name, str) or not name.strip():
                raise InvalidArgument(f"the name of an expectation must be a non-empty string, got {name!r}")
        place = _quarantine_of(dataset, quarantine) if on_violation == "quarantine" else None
        return cls(dict(rules), on_violation, place)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments, as the log records them."""
        return {
            "expect": {name: str(condition) for name, condition in self.rules.items()},
            "on_violation": self.on_violation,
        }

    def bound(self, given: pa.Schema, rows: pa.Schema, clock: Clock) -> Bound:
        """The rules for the rows of a source; refuses conditions that are invalid.

        Args:
            given: The columns that conditions may use.
            rows: The same and derived ones.
            clock: The time zone of conditions.
        """
        conditions = tuple(_condition(name, condition, given, clock) for name, condition in self.rules.items())
        if self.quarantine is not None:
            taken = [item.name for item in QUARANTINE_FIELDS if item.name in given.names]
            if taken:
                raise InvalidArgument(
                    f"the quarantine adds columns named {quoted(taken)}; rename those of the rows"
                )
        fails = self.on_violation == "fail"
        return Bound(self, Expectations(tuple(self.rules), conditions, given, rows, fails))


def _condition(name: str, condition: Any, schema: pa.Schema, clock: Clock) -> Predicate:
    try:
        return predicate(condition, schema, clock)
    except ColumnNotFound as error:
        raise ColumnNotFound(error.missing, error.available, f"columns of the expectation {name!r}") from error
    except InvalidArgument as error:
        raise InvalidArgument(f"the expectation {name!r} is invalid: {error}") from error


def _quarantine_of(dataset: DatasetContext, path: str | None) -> DatasetContext:
    """The quarantine of a dataset: beside it, unless another path is given."""
    root, name = dataset.root, posixpath.basename(dataset.root)
    if path is None:
        if "=" in name or not name or "/" not in root:
            raise InvalidArgument(f"{root!r} has no place for a quarantine beside it; pass quarantine='<a path>'")
        path = f"{root}_quarantine"
    if is_inside(path, root) or is_inside(root, path):
        raise InvalidArgument(
            f"the quarantine {path!r} and the dataset {root!r} must be two folders, neither inside the other"
        )
    return _in_place(dataset, path)


def _in_place(dataset: DatasetContext, root: str) -> DatasetContext:
    """A dataset with the same settings at another path."""
    store, own = dataset.store, dataset.workspace
    location = None if own.path == Workspace(store, dataset.root).path else posixpath.dirname(own.path)
    workspace = Workspace(store, root, location, history=own.keeps_history)
    return replace(dataset, root=root, workspace=workspace)


@dataclass(frozen=True)
class Bound:
    """Rules that are bound to the columns of a source."""

    expect: Expect
    checks: Expectations


def begun(bound: Bound | None, dataset: DatasetContext, commit_id: str | None) -> str | None:
    """Settle what earlier operations have left in the quarantine; returns the commit_id of this one."""
    if bound is None or bound.expect.quarantine is None:
        return commit_id
    settle_quarantines(dataset)
    if commit_id is None and not dataset.workspace.keeps_history:
        return f"quarantine:{uuid.uuid4().hex}"  # the log keeps no other commits
    return commit_id


class Inspection:
    """The check of the rows of one attempt at an operation. Without rules, it accepts everything."""

    def __init__(self, bound: Bound | None, checks: Expectations | None) -> None:
        self._bound, self._checks = bound, checks
        self._found, self._withheld = Violations(), False

    def output(self, output: Output) -> Output:
        """The output whose tasks check the rows."""
        return replace(output, checks=self._checks)

    def passed(self, dataset: DatasetContext, source: RowSource, context: Context) -> RowSource:
        """The rows of a source that pass, which can be read several times."""
        if self._checks is None:
            return source
        quiet = replace(context, progress=None)
        if isinstance(source, ArrowRows) and isinstance(source.batches, list):
            batches, found = dataset.engine.run_here(CheckBatches(source.batches, self._checks), quiet)
            self.accept(found)
            return ArrowRows(source.schema, batches)
        # The files are staged and never published.
        file_format = FileFormat(source.schema, DEFAULT_CODEC)
        output = self.output(Output(dataset.root, file_format, source.schema, prefix="source"))
        written = dataset.engine.write(source, output, quiet)
        self.accept(written.violations)
        files = read_files(context.store, [file.path for file in written.staged])
        return FileRows(source.schema, context.store, tuple(files))

    def accept(self, found: Violations) -> None:
        """Judge what tasks have found: raise if rows break rules, and that is not allowed."""
        self._found = found
        if self._checks is not None and self._checks.fails and found.violating:
            counts = dict(zip(self._checks.names, found.counts, strict=True))
            examples = dict(zip(self._checks.names, found.examples, strict=True))
            raise ExpectationFailed(found.rows, found.violating, counts, examples)

    def report(self, stats: Stats) -> Stats:
        """Statistics of the operation with those of the rules, if there are any."""
        found = expectation_stats(self._bound, self._found)
        if self._withheld and "quarantine" in found:
            found["quarantine"] = None
        return cast("Stats", {**stats, **found})

    @property
    def quarantines(self) -> bool:
        """Whether there are rows to quarantine, which need a commit of the operation."""
        return False

    def withhold(self) -> None:
        """Quarantine no rows: the operation does nothing."""
        self._withheld = True

    def before_commit(self) -> None:
        """Called when nothing but the commit itself is left to do."""


def expectation_stats(bound: Bound | None, found: Violations | None) -> ExpectationStats:
    """The statistics of rules; without `found`, the rows were not read."""
    if bound is None:
        return ExpectationStats()
    if found is None:
        return ExpectationStats(expectations=None, rows_violating=None)
    counts = found.counts or (0,) * len(bound.checks.names)
    pairs = zip(bound.checks.names, counts, strict=True)
    stats = ExpectationStats(
        expectations={name: {"passed": found.rows - broken, "violations": broken} for name, broken in pairs},
        rows_violating=found.violating,
    )
    if (place := bound.expect.quarantine) is not None:
        stats["quarantine"] = place.store.url(place.root) if found.violating else None
    return stats


def _quarantine_output(place: DatasetContext, existing: Sequence[FileEntry], given: pa.Schema) -> Output:
    fields = [*(item.with_nullable(True) for item in given), *QUARANTINE_FIELDS]
    schema = pa.schema(fields)
    output = Output(place.root, FileFormat(schema, DEFAULT_CODEC), schema)
    request = WriteRequest("append", Naming(), schema="evolve")
    found = append_output(place, existing, ArrowRows(schema, iter(())), output, request)
    if found.partition_by:
        raise InvalidArgument(
            f"the quarantine {place.root!r} is partitioned by {quoted(found.partition_by)}; pass another path, or "
            "remove its partitions. Nothing was changed"
        )
    return found


def leased(bound: Bound, identity: str, application: str) -> Bound:
    """Rules for an operation in several processes, which stage rows for the quarantine in a folder of its own."""
    place = bound.expect.quarantine
    if place is None:
        return bound
    refuse_foreign(place.store, place.root)
    given = bound.checks.given
    output = retry_on_vanished_files(place.root, lambda: _quarantine_output(place, place.listed_if_any(), given))
    lease = Lease.open(place.workspace, application)
    staging = Staging(lease.directory, place.store.local_path(lease.directory))
    files = QuarantineFiles(place.store, staging, output, identity, dt.datetime.now(dt.UTC))
    expect = replace(bound.expect, quarantine=replace(place, lease=lease))
    return Bound(expect, replace(bound.checks, quarantine=files))


class _QuarantineInspection(Inspection):
    """Stages rows that break a rule, and commits them to the quarantine before the operation is committed."""

    def __init__(
        self, bound: Bound, dataset: DatasetContext, place: DatasetContext, main: Transaction, own: Transaction
    ) -> None:
        self._dataset, self._place, self._main, self._own = dataset, place, main, own
        output = retry_on_vanished_files(
            place.root, lambda: _quarantine_output(place, place.existing(own, loosely=True), bound.checks.given)
        )
        self._files = QuarantineFiles(place.store, own.staging, output, main.identity, dt.datetime.now(dt.UTC))
        super().__init__(bound, replace(bound.checks, quarantine=self._files))
        self._announced: Announcement | None = None

    @property
    def quarantines(self) -> bool:
        return bool(self._found.staged)

    def accept(self, found: Violations) -> None:
        super().accept(found)
        verify_written(self._place.store, found.staged, found.violating, self._files.output.format)

    def before_commit(self) -> None:
        """Commit the rows of the quarantine. A commit may validate several times; later calls do nothing."""
        if self._announced is None and self._found.staged:
            self._announced = announce(self._dataset.workspace, self._main.identity, self._place.root)
            self._own.commit(
                self._found.staged, [], follows=(), statistics={"rows_written": self._found.violating}
            )

    def confirm(self) -> None:
        """The operation is committed, and with it the rows of the quarantine."""
        if self._announced is not None:
            try:
                forget(self._dataset.workspace, self._announced.identity)
            except OSError as error:  # the next operation with a quarantine finds the commit in the log
                logger.warning("could not remove an announcement yet: %s", error)

    def settle(self) -> None:
        """Remove the rows of the quarantine again, unless the operation was committed."""
        if self._announced is not None:
            _settle(self._dataset, self._announced)


@contextmanager
def inspecting(
    bound: Bound | None, dataset: DatasetContext, transaction: Transaction, *, dry_run: bool = False
) -> Iterator[Inspection]:
    """Check the rows of an operation. Its commit calls `before_commit`, and is done when the context is left."""
    place = None if bound is None else bound.expect.quarantine
    if bound is None or place is None or dry_run:
        checks = None if bound is None else replace(bound.checks, fails=bound.checks.fails and not dry_run)
        yield Inspection(bound, checks)
        return
    refuse_foreign(place.store, place.root)
    request = place.request("quarantine", {"dataset": dataset.root, **bound.expect.arguments})
    with Transaction(place.workspace, request, swap=place.swap, lease=place.lease) as own:
        inspection = _QuarantineInspection(bound, dataset, place, transaction, own)
        try:
            yield inspection
        except CommitStateUnknown:
            raise  # the next operation with a quarantine, or recover(), finds the announcement
        except BaseException:
            inspection.settle()
            raise
        inspection.confirm()


def settle_quarantines(dataset: DatasetContext) -> int:
    """Remove quarantined rows of operations that died before their own commit; returns how many did."""
    workspace = dataset.workspace
    announced = announcements(workspace)
    if not announced:
        return 0
    recover(workspace)
    found = interrupted(workspace, announced)
    for each in found:
        _settle(dataset, each)
    return len(found)


def _settle(dataset: DatasetContext, announced: Announcement) -> None:
    """Remove quarantined rows, unless their operation is in the log."""
    if not is_committed(dataset.workspace, announced.identity):
        if announced.is_certain:
            _withdraw(_in_place(dataset, announced.root), announced.identity)
        else:
            logger.warning("rows %s in %r may be unneeded", announced.identity, announced.root)
    forget(dataset.workspace, announced.identity)


def _withdraw(place: DatasetContext, identity: str) -> None:
    condition = pc.field(QUARANTINE_ID) == pc.scalar(identity)
    try:
        edit(
            replace(place, isolation="snapshot"),
            EditRequest("delete", condition),
            None,
            dry_run=False,
            progress=None,
        )
    except (DatasetNotFound, ColumnNotFound) as error:
        logger.info("no quarantined rows to remove: %s", error)

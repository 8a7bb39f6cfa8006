"""Dry runs of writes: check the rows as a write would, and report what it would replace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar, cast

from parketto.commit.replays import replayed
from parketto.engines.base import Context, ProgressCallback
from parketto.errors import DatasetNotFound
from parketto.expressions.dispatch import predicate
from parketto.expressions.time_zones import Clock
from parketto.operations.context import DatasetContext, entries
from parketto.operations.edit_run import Editor, EditRequest, EditRun
from parketto.operations.expectations import Bound, expectation_stats
from parketto.operations.overwrite import ExistingPartitions, check_partitioned
from parketto.operations.replace import mismatch_error
from parketto.operations.write_output import WriteRequest, append_output, overwrite_output
from parketto.parquet.output import Output
from parketto.parquet.partition_spec import PartitionSpec
from parketto.parquet.row_source import RowSource
from parketto.results import WritePlan
from parketto.runtime.staging import Staging
from parketto.storage.listing import refuse_foreign, retry_on_vanished_files
from parketto.storage.store import FileEntry
from parketto.tasks.scan import CheckedRows, CheckRows

Found = TypeVar("Found")


def plan_write(
    dataset: DatasetContext,
    source: RowSource,
    output: Output,
    request: WriteRequest,
    progress: ProgressCallback | None = None,
) -> WritePlan:
    """What a write would do."""
    refuse_foreign(dataset.store, dataset.root, listed=False)
    dataset.engine.check_store(dataset.store)
    logged = dataset.request(request.mode, request.arguments(output), request.commit_id)  # raises if it is invalid
    entry = dataset.repeats(logged)
    bound = request.bound(source, dataset.clock()) if request.expect is not None else None
    if bound is not None:
        output = replace(output, checks=replace(bound.checks, fails=False))
    plan = _plan_write if request.replace_where is None else _plan_replace
    found = retry_on_vanished_files(dataset.root, lambda: plan(dataset, source, output, request, bound, progress))
    return found if entry is None else cast("WritePlan", replayed(found, entry))


def _plan_write(
    dataset: DatasetContext,
    source: RowSource,
    output: Output,
    request: WriteRequest,
    bound: Bound | None,
    progress: ProgressCallback | None,
) -> WritePlan:
    existing = _if_exists(dataset.listed)
    if request.mode == "overwrite":
        like = overwrite_output(dataset, existing, output, request)
        return write_plan(like, _checked(dataset, source, CheckRows(like), request, progress), existing, bound)
    like = append_output(dataset, existing, source, output, request)
    if request.mode == "append":
        return write_plan(like, _checked(dataset, source, CheckRows(like), request, progress), [], bound)
    check_partitioned(like, existing)
    partitions = ExistingPartitions.of(dataset, existing, like)
    checked = _checked(dataset, source, CheckRows(like), request, progress)
    return write_plan(like, checked, None if checked is None else partitions.among(checked.folders), bound)


def _plan_replace(
    dataset: DatasetContext,
    source: RowSource,
    output: Output,
    request: WriteRequest,
    bound: Bound | None,
    progress: ProgressCallback | None,
) -> WritePlan:
    clock = dataset.clock()
    editor = Editor(dataset, EditRequest(request.mode, request.replace_where), clock)
    files = _if_exists(lambda: dataset.snapshot(None, editor.stats_columns).files)
    like = append_output(dataset, entries(files), source, output, request)
    checked = _checked(dataset, source, _matching(like, request, clock), request, progress)
    if checked is not None and checked.mismatches.count:
        raise mismatch_error(request.replace_where, checked.mismatches, checked.num_rows)
    run = editor.dry_run(files, progress) if files else EditRun((), (), ())
    return write_plan(like, checked, run.retired, bound, rows_deleted=run.matched)


def _matching(output: Output, request: WriteRequest, clock: Clock) -> CheckRows:
    stored = output.format.schema
    only_path = {item.name: item.type for item in output.row_schema if item.name not in stored.names}
    schema = PartitionSpec(output.partition_by, only_path).row_schema(stored)
    return CheckRows(output, predicate(request.replace_where, schema, clock))


def _checked(
    dataset: DatasetContext,
    source: RowSource,
    check: CheckRows,
    request: WriteRequest,
    progress: ProgressCallback | None,
) -> CheckedRows | None:
    """The counts of the rows; None if they can be read only once."""
    if not source.repeatable:
        return None
    context = Context(dataset.store, Staging(""), request.mode, progress)
    return sum(dataset.engine.scan(source, check, context), CheckedRows())


def write_plan(
    output: Output,
    checked: CheckedRows | None,
    replaced: Sequence[FileEntry] | None,
    bound: Bound | None = None,
    rows_deleted: int | None = None,
) -> WritePlan:
    """The report of a dry run."""
    plan = WritePlan(
        dry_run=True,
        rows_written=None if checked is None else checked.num_rows,
        partitions={} if not output.partition_by else None if checked is None else dict(checked.folders),
        files_replaced=None if replaced is None else len(replaced),
        replaced_files=None if replaced is None else [entry.path for entry in replaced],
        rows_deleted=rows_deleted,
    )
    found = expectation_stats(bound, None if checked is None else checked.violations)
    return cast("WritePlan", {**plan, **found})


def _if_exists(find: Callable[[], Sequence[Found]]) -> Sequence[Found]:
    try:
        return find()
    except DatasetNotFound:
        return ()

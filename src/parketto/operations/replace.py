"""Replace the rows that match a condition: they are deleted and the new rows are added in one commit."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from parketto.commit.request import CheckAdded
from parketto.commit.transaction import Transaction
from parketto.commit.verify import verify_written
from parketto.engines.base import Context, ProgressCallback
from parketto.errors import DatasetNotFound, InvalidArgument, shortened_row
from parketto.expressions.dispatch import predicate
from parketto.expressions.time_zones import Clock
from parketto.operations.context import DatasetContext, entries
from parketto.operations.edit_run import Editor, EditRequest
from parketto.operations.expectations import Bound, begun, inspecting
from parketto.operations.partition_form import check_added_form
from parketto.operations.write import new_rows
from parketto.operations.write_output import WriteRequest, append_output
from parketto.parquet.file_info import FileInfo
from parketto.parquet.output import Output
from parketto.parquet.partition_spec import partition_spec_of
from parketto.parquet.row_source import FileRows, RowSource
from parketto.results import WriteStats
from parketto.runtime.staging import StagedFile
from parketto.storage.hive import partition_values
from parketto.storage.listing import refuse_foreign, relative
from parketto.storage.store import FileEntry
from parketto.tasks.mismatches import FindMismatches, Mismatches


def replace_matching(
    dataset: DatasetContext,
    source: RowSource,
    output: Output,
    request: WriteRequest,
    progress: ProgressCallback | None = None,
) -> WriteStats:
    """Discover → plan → execute → verify → commit → report."""
    refuse_foreign(dataset.store, dataset.root)
    clock = dataset.clock()
    predicate(request.replace_where, output.row_schema, clock)  # raises before anything is written
    bound = request.bound(source, clock)
    request = replace(request, commit_id=begun(bound, dataset, request.commit_id))
    return dataset.run(
        dataset.request(request.mode, request.arguments(output), request.commit_id),
        lambda transaction: _replace(dataset, transaction, source, output, request, bound, clock, progress),
        known=lambda statistics: cast("WriteStats", statistics),
        repeatable=source.repeatable,
    )


def _replace(
    dataset: DatasetContext,
    transaction: Transaction,
    source: RowSource,
    output: Output,
    request: WriteRequest,
    bound: Bound | None,
    clock: Clock,
    progress: ProgressCallback | None,
) -> WriteStats:
    """Write the rows, check that all of them match, delete the old ones that match, and commit both."""
    editor = Editor(dataset, EditRequest(request.mode, request.replace_where), clock)
    files = _existing(dataset, transaction, editor)
    like = append_output(dataset, entries(files), source, output, request)
    context = dataset.context(transaction, progress)
    with inspecting(bound, dataset, transaction) as inspection:
        written = dataset.engine.write(source, inspection.output(like), context)
        inspection.accept(written.violations)
        written = new_rows(written, exists=bool(files))
        new = verify_written(dataset.store, written.staged, written.num_rows, like.format)
        _check_match(dataset, like, files, _placed(dataset.root, written.staged, new), request, clock, context)
        run = editor.run(transaction, files, progress)
        rewritten = editor.verified(run)
        edited = run.staged(transaction.operation)
        staged = [*edited, *written.staged]
        stats = WriteStats(
            rows_written=written.num_rows,
            files_written=len(staged),
            bytes_written=sum(file.size_bytes for file in (*rewritten, *new)),
            files_replaced=len(run.retired),
            rows_deleted=run.matched,
        )
        stats = inspection.report(stats)
        if staged or run.edits or request.commit_id is not None or inspection.quarantines:
            transaction.commit(
                staged or editor.schema_file(run, transaction),
                run.retired,
                naming=request.naming,
                named=edited,
                read=editor.checked_files(run),
                check_added=_checks(editor.check_added(run), check_added_form(dataset, like) if new else None),
                follows=like.partition_by if new else None,
                names_may_exist=request.naming.scheme != "uuid",
                statistics=stats,
                validate=inspection.before_commit,
            )
        return stats


def _checks(*checks: CheckAdded | None) -> CheckAdded | None:
    """All checks of added files in one."""
    given = [check for check in checks if check is not None]

    def refuse(added: Sequence[FileEntry], who: Callable[[str], str]) -> None:
        for check in given:
            check(added, who)

    return refuse if given else None


def mismatch_error(where: Any, found: Mismatches, total: int) -> InvalidArgument:
    """The error for new rows that the condition would not replace next time."""
    return InvalidArgument(
        f"{found.count:,} of {total:,} rows do not match replace_where={str(where)!r} (NULL is no match), for "
        f"example {shortened_row(found.example or {})}. Remove these rows, or use a condition that all rows "
        "match. Nothing was changed"
    )


def _existing(dataset: DatasetContext, transaction: Transaction, editor: Editor) -> Sequence[FileInfo]:
    try:
        return dataset.snapshot_in(transaction, None, editor.stats_columns).files
    except DatasetNotFound:
        return ()


def _placed(root: str, staged: Sequence[StagedFile], files: Sequence[FileInfo]) -> list[FileInfo]:
    """Staged files with the partition values of their destinations."""
    folders = [posixpath.dirname(relative(file.destination, root)) for file in staged]
    return [replace(file, partition=partition_values(folder)) for file, folder in zip(files, folders, strict=True)]


def _check_match(
    dataset: DatasetContext,
    output: Output,
    existing: Sequence[FileInfo],
    new: Sequence[FileInfo],
    request: WriteRequest,
    clock: Clock,
    context: Context,
) -> None:
    """Refuse new rows that do not match, as they are stored: in the dataset's types."""
    filled = [file for file in new if file.num_rows]
    spec = partition_spec_of([*existing, *filled])
    schema = spec.row_schema(output.format.schema)
    condition = predicate(request.replace_where, schema, clock)
    rows = FileRows(schema, dataset.store, (), spec)
    # A condition without any column (`FALSE`) still needs the number of rows.
    needed = rows.selected(condition.columns or schema.names[:1])
    quiet = replace(context, progress=None)
    tasks = [FindMismatches(replace(needed, files=(file,)), condition) for file in filled]
    results = dataset.engine.run(tasks, quiet)
    total = sum(results, Mismatches())
    if total.count:
        # Only the columns of the condition were read: one file is read again for a whole row.
        file = next(task.files[0] for task, result in zip(tasks, results, strict=True) if result.count)
        (example,) = dataset.engine.run([FindMismatches(replace(rows, files=(file,)), condition)], quiet)
        found = Mismatches(total.count, example.example)
        raise mismatch_error(request.replace_where, found, sum(file.num_rows for file in filled))

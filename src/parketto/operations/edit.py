"""Delete and update rows; only files in which a row changes are rewritten."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import pyarrow as pa

from parketto.commit.transaction import Transaction
from parketto.commit.verify import verify_edits, verify_written
from parketto.engines.base import Context, ProgressCallback
from parketto.errors import CommitConflict, InvalidArgument
from parketto.expressions.conditions import Assignment, Predicate
from parketto.expressions.dispatch import assignments, predicate
from parketto.expressions.pruning import may_match
from parketto.expressions.time_zones import Clock
from parketto.operations.context import Backups, DatasetContext, entries
from parketto.operations.edits import write_empty_file
from parketto.parquet.dataset_schema import unified
from parketto.parquet.file_info import FileInfo, MentionedColumns, StatsColumns
from parketto.parquet.output import Output, Written, output_like
from parketto.parquet.partition_spec import PartitionSpec, partition_spec_of
from parketto.parquet.partitions import folder_names
from parketto.parquet.snapshot import read_snapshot
from parketto.results import EditStats
from parketto.runtime.staging import StagedFile, Staging
from parketto.storage.hive import PartitionFilter, directory_matcher
from parketto.storage.listing import relative
from parketto.storage.store import FileEntry
from parketto.tasks.edit import Edited, EditFile


@dataclass(frozen=True)
class EditRequest:
    """Which rows to edit, and how. Without changes, they are deleted."""

    operation: str
    where: Any
    changes: Mapping[str, Any] | None = None
    compression: str | None = None
    commit_id: str | None = None
    #: Whether row groups of another codec than `compression` are re-encoded; else copied ones keep theirs.
    recompress: bool = True


def edit(
    dataset: DatasetContext,
    request: EditRequest,
    partition_filter: PartitionFilter,
    *,
    dry_run: bool,
    progress: ProgressCallback | None,
    backups: Backups | None = None,
) -> EditStats:
    """Discover → plan → execute → verify → commit → report."""
    clock = dataset.clock()
    dataset.check_exists(partition_filter)
    dataset.engine.check_store(dataset.store)
    # An update may move rows to other partitions, and then needs the bounds of those as well.
    stats_columns = MentionedColumns(str(request.where)) if request.changes is None else None
    if dry_run:
        files = dataset.snapshot(partition_filter, stats_columns).files
        plan = _plan(dataset.root, files, request, clock, dry_run=True)
        results = dataset.engine.run(plan, Context(dataset.store, Staging(""), request.operation, progress))
        return _stats(request, files, plan, results, dry_run=True)

    def attempt(transaction: Transaction) -> EditStats:
        files = dataset.snapshot_in(transaction, partition_filter, stats_columns).files
        plan = _plan(dataset.root, files, request, clock, dry_run=False)
        with transaction.conflicts_over(entries([task.file for task in plan])):
            results = dataset.engine.run(plan, dataset.context(transaction, progress))
        edits = _with_changes(plan, results)

        def stats(backup_path: str | None) -> EditStats:
            return _stats(request, files, plan, results, dry_run=False, backup_path=backup_path)

        if edits or request.commit_id is not None:
            # Concurrently added rows may match the condition.
            conflicts = _ConflictCheck(dataset, request, clock, partition_filter, stats_columns, files[0])
            transaction.commit(
                _staged(dataset, transaction, files, edits),
                entries([task.file for task, _ in edits]),
                read=entries([task.file for task in plan]) if dataset.isolation == "serializable" else (),
                check_added=conflicts.refuse if dataset.isolation == "serializable" else None,
                statistics=stats,
            )
        return stats(transaction.backup_path)

    arguments = {
        "where": str(request.where),
        "values": request.changes,
        "partition_filter": partition_filter,
        "compression": request.compression,
    }
    return dataset.run(
        dataset.request(request.operation, arguments, request.commit_id),
        attempt,
        known=lambda statistics: cast("EditStats", statistics),
        backups=backups,
    )


@dataclass(frozen=True)
class _ConflictCheck:
    """Refuses concurrently added files that an edit may match: by their paths, then by their bounds."""

    dataset: DatasetContext
    request: EditRequest
    clock: Clock
    partition_filter: PartitionFilter
    stats_columns: StatsColumns
    #: A file in the dataset's schema, which the condition refers to.
    like: FileInfo

    def refuse(self, added: Sequence[FileEntry], who: Callable[[str], str]) -> None:
        matches = directory_matcher(self.partition_filter)
        root = self.dataset.root
        candidates = [entry for entry in added if matches(posixpath.dirname(relative(entry.path, root)))]
        if not candidates:
            return
        found = read_snapshot(self.dataset.store, root, candidates, self.stats_columns).files
        files = unified([self.like, *found]).files[1:]
        for task in _plan(root, files, self.request, self.clock, dry_run=True):
            raise CommitConflict.because_of(
                task.file.path,
                operation=self.request.operation,
                matters="may contain rows that match its condition",
                who=who(task.file.path),
            )


def _with_changes(plan: Sequence[EditFile], results: Sequence[Edited]) -> list[tuple[EditFile, Edited]]:
    return [
        (task, result)
        for task, result in zip(plan, results, strict=True)
        if result.matched and not result.unchanged
    ]


def _plan(
    root: str, files: Sequence[FileInfo], request: EditRequest, clock: Clock, *, dry_run: bool
) -> list[EditFile]:
    """A task for each file whose path and footer do not exclude matching rows."""
    spec = partition_spec_of(files)
    by_schema: dict[int, list[FileInfo]] = {}
    for file in files:
        by_schema.setdefault(id(file.schema), []).append(file)
    tasks = []
    for same in by_schema.values():
        assert same[0].schema is not None, "files to edit come from a snapshot"
        schema = spec.row_schema(same[0].schema)
        condition = predicate(request.where, schema, clock)
        changes = None if request.changes is None else _changes(request.changes, schema, clock)
        for file, possible in zip(same, may_match(condition, same, spec.path_only), strict=True):
            if possible and file.num_rows:
                tasks.append(_task(root, files, file, spec, request, condition, changes, dry_run=dry_run))
    return tasks


def _changes(values: Mapping[str, Any], schema: pa.Schema, clock: Clock) -> tuple[Assignment, ...]:
    if not values:
        raise InvalidArgument("nothing to set: name at least one column and its new value")
    return assignments(values, schema, clock)


def _task(
    root: str,
    files: Sequence[FileInfo],
    file: FileInfo,
    spec: PartitionSpec,
    request: EditRequest,
    condition: Predicate,
    changes: tuple[Assignment, ...] | None,
    *,
    dry_run: bool,
) -> EditFile:
    moves = any(change.column in spec.partition_by for change in changes or ())
    moved_output = _moved_output(root, files, file, spec, request) if moves else None
    return EditFile(
        file,
        request.operation,
        condition,
        changes,
        spec,
        request.compression,
        moved_output,
        dry_run=dry_run,
        recompress=request.recompress,
    )


def _moved_output(
    root: str, files: Sequence[FileInfo], file: FileInfo, spec: PartitionSpec, request: EditRequest
) -> Output:
    """The output for rows that move to another partition, in the format of their source file."""
    assert file.schema is not None, "files to edit come from a snapshot"
    return replace(
        output_like(file, request.operation, request.compression, request.changes or ()),
        directory=root,
        row_schema=spec.row_schema(file.schema),
        partition_by=spec.partition_by,
        folders=folder_names(files, spec, root),
    )


def _staged(
    dataset: DatasetContext,
    transaction: Transaction,
    files: Sequence[FileInfo],
    edits: Sequence[tuple[EditFile, Edited]],
) -> list[StagedFile]:
    """The verified files that replace the edited ones."""
    kept = [(task.file, result.kept) for task, result in edits]
    verify_edits(dataset.store, kept)
    moved = sum((result.moved for _, result in edits), Written())
    if moved.staged:
        assert files[0].schema is not None, "files to edit come from a snapshot"
        verify_written(dataset.store, moved.staged, moved.num_rows, files[0].schema.names)
    for task, result in edits:
        expected = 0 if task.changes is None else result.matched
        written = result.kept.num_rows + result.moved.num_rows
        assert written == task.file.num_rows - result.matched + expected, "every row is kept, moved or deleted"
    staged = [file for _, result in edits for file in (*result.kept.staged, *result.moved.staged)]
    retired = [task.file for task, _ in edits]
    if edits and not staged and len(retired) == len(files) and transaction.lists_only(entries(files)):
        first = edits[0][0]
        output = output_like(first.file, "delete", first.compression)
        staged = write_empty_file(dataset.engine, output, first.file.directory, dataset.context(transaction))
    return staged


def _stats(
    request: EditRequest,
    files: Sequence[FileInfo],
    plan: Sequence[EditFile],
    results: Sequence[Edited],
    *,
    dry_run: bool,
    backup_path: str | None = None,
) -> EditStats:
    edits = _with_changes(plan, results)
    matched = sum(result.matched for result in results)
    before = sum(file.num_rows for file in files)
    deletes = request.changes is None
    removed = [task for task, result in edits if deletes and result.matched == task.file.num_rows]
    return EditStats(
        rows_matched=matched,
        rows_before=before,
        rows_after=before - matched if deletes else before,
        files_before=len(files),
        files_scanned=len(plan),
        files_rewritten=len(edits) - len(removed),
        files_removed=len(removed),
        files_written=sum(_files_written(task, result, dry_run=dry_run) for task, result in edits),
        rewritten_bytes=sum(task.file.size_bytes for task, _ in edits if task not in removed),
        partitions_affected=len(set[str]().union(*(_directories(task, result) for task, result in edits))),
        dry_run=dry_run,
        backup_path=backup_path,
    )


def _files_written(task: EditFile, result: Edited, *, dry_run: bool) -> int:
    if not dry_run:
        return len(result.kept.staged) + len(result.moved.staged)
    rows_leave = task.changes is None or task.elsewhere is not None
    return int(not rows_leave or result.matched < task.file.num_rows) + len(result.directories)


def _directories(task: EditFile, result: Edited) -> set[str]:
    moved = {posixpath.dirname(file.destination) for file in result.moved.staged}
    return {task.file.directory} | moved | result.directories

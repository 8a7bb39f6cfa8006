"""Deleting and updating rows: only files with a matching row are rewritten."""

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
from parketto.kernels.edit import Edited, EditFile
from parketto.kernels.partitions import folder_names
from parketto.kernels.rewrite import group_output
from parketto.kernels.rows import common_schema
from parketto.kernels.work import StagedFile, Staging
from parketto.kernels.write import Output, Written
from parketto.languages import assignments, predicate
from parketto.operations.edits import leave_schema
from parketto.operations.place import Backups, Place, entries
from parketto.plan.expressions import Assignment, Predicate
from parketto.plan.form import Form, form_of
from parketto.plan.pruning import may_match
from parketto.plan.rewrite import FileGroup
from parketto.plan.zones import Clock
from parketto.rowgroups.area import without_area
from parketto.stats import EditStats
from parketto.storage.footers import FileInfo, MentionedColumns, StatsColumns
from parketto.storage.hive import PartitionFilter, directory_matcher
from parketto.storage.snapshot import read_snapshot, relative
from parketto.storage.store import FileEntry


@dataclass(frozen=True)
class EditRequest:
    """What is to be done to which rows. Without changes they are deleted."""

    operation: str
    where: Any
    changes: Mapping[str, Any] | None = None
    compression: str | None = None
    commit_id: str | None = None


def edit(
    place: Place,
    request: EditRequest,
    partition_filter: PartitionFilter,
    *,
    dry_run: bool,
    progress: ProgressCallback | None,
    backups: Backups | None = None,
) -> EditStats:
    """Discover → plan → execute → verify → commit → report."""
    clock = place.clock()
    place.check_exists(partition_filter)
    place.engine.check_store(place.store)
    # An update may move rows to other partitions, and then asks for the bounds of these as well.
    known = MentionedColumns(str(request.where)) if request.changes is None else None
    if dry_run:
        files = place.snapshot(partition_filter, known).files
        plan = _plan(place.root, files, request, clock, dry_run=True)
        results = place.engine.run(plan, Context(place.store, Staging(""), request.operation, progress))
        return _stats(request, files, plan, _touching(plan, results), dry_run=True)

    def attempt(transaction: Transaction) -> EditStats:
        files = place.snapshot_in(transaction, partition_filter, known).files
        plan = _plan(place.root, files, request, clock, dry_run=False)
        with transaction.conflicts_over(entries([task.file for task in plan])):
            results = place.engine.run(plan, place.context(transaction, progress))
        edits = _touching(plan, results)

        def stats(backup_path: str | None) -> EditStats:
            return _stats(request, files, plan, edits, dry_run=False, backup_path=backup_path)

        if edits or request.commit_id is not None:
            # Rows that others add meanwhile may be rows that this is about.
            concerns = _Concerns(place, request, clock, partition_filter, known)
            transaction.commit(
                _staged(place, transaction, files, edits),
                entries([task.file for task, _ in edits]),
                read=entries([task.file for task in plan]) if place.isolation == "serializable" else (),
                check_added=concerns.refuse if place.isolation == "serializable" else None,
                statistics=stats,
            )
        return stats(transaction.backup_path)

    arguments = {
        "where": str(request.where),
        "values": request.changes,
        "partition_filter": partition_filter,
        "compression": request.compression,
    }
    return place.run(
        place.request(request.operation, arguments, request.commit_id),
        attempt,
        known=lambda statistics: cast("EditStats", statistics),
        backups=backups,
    )


@dataclass(frozen=True)
class _Concerns:
    """Which files that were added meanwhile matter to an edit: by their paths, then by their bounds."""

    place: Place
    request: EditRequest
    clock: Clock
    partition_filter: PartitionFilter
    known: StatsColumns

    def refuse(self, added: Sequence[FileEntry], who: Callable[[str], str]) -> None:
        matches = directory_matcher(self.partition_filter)
        root = self.place.root
        concerned = [entry for entry in added if matches(posixpath.dirname(relative(entry.path, root)))]
        files = read_snapshot(self.place.store, root, concerned, self.known).files if concerned else ()
        for task in _plan(root, files, self.request, self.clock, dry_run=True):
            raise CommitConflict.because_of(
                task.file.path,
                operation=self.request.operation,
                matters="may have rows that it is about",
                who=who(task.file.path),
            )


def _touching(plan: Sequence[EditFile], results: Sequence[Edited]) -> list[tuple[EditFile, Edited]]:
    return [(task, result) for task, result in zip(plan, results, strict=True) if result.matched]


def _plan(
    root: str, files: Sequence[FileInfo], request: EditRequest, clock: Clock, *, dry_run: bool
) -> list[EditFile]:
    """A task for each file that can have matching rows, as far as its footer and its path tell."""
    form = form_of(files)
    by_schema: dict[int, list[FileInfo]] = {}
    for file in files:
        by_schema.setdefault(id(file.schema), []).append(file)
    tasks = []
    for same in by_schema.values():
        assert same[0].schema is not None, "files to edit come from a snapshot"
        schema = form.row_schema(same[0].schema)
        condition = predicate(request.where, schema, clock)
        changes = None if request.changes is None else _changes(request.changes, schema, clock)
        for file, possible in zip(same, may_match(condition, same, form.path_only), strict=True):
            if possible and file.num_rows:
                tasks.append(_task(root, files, file, form, request, condition, changes, dry_run=dry_run))
    return tasks


def _changes(values: Mapping[str, Any], schema: pa.Schema, clock: Clock) -> tuple[Assignment, ...]:
    if not values:
        raise InvalidArgument("nothing to set: name at least one column and its new value")
    return assignments(values, schema, clock)


def _task(
    root: str,
    files: Sequence[FileInfo],
    file: FileInfo,
    form: Form,
    request: EditRequest,
    condition: Predicate,
    changes: tuple[Assignment, ...] | None,
    *,
    dry_run: bool,
) -> EditFile:
    moves = any(change.column in form.partition_by for change in changes or ())
    elsewhere = _elsewhere(root, files, file, form, request) if moves else None
    return EditFile(
        file, request.operation, condition, changes, form, request.compression, elsewhere, dry_run=dry_run
    )


def _elsewhere(root: str, files: Sequence[FileInfo], file: FileInfo, form: Form, request: EditRequest) -> Output:
    """Files for rows that move to another partition: like the one that they come from."""
    assert file.schema is not None, "files to edit come from a snapshot"
    noted = replace(file, metadata=without_area(file.metadata, request.changes or ()))
    same = group_output(FileGroup((noted,), compression=request.compression), request.operation, ())
    return replace(
        same,
        directory=root,
        row_schema=form.row_schema(file.schema),
        partition_by=form.partition_by,
        folders=folder_names(files, form, root),
    )


def _staged(
    place: Place,
    transaction: Transaction,
    files: Sequence[FileInfo],
    edits: Sequence[tuple[EditFile, Edited]],
) -> list[StagedFile]:
    """The verified files that take the place of those that were edited."""
    kept = [(task.file, result.kept) for task, result in edits]
    verify_edits(place.store, kept)
    moved = sum((result.moved for _, result in edits), Written())
    if moved.staged:
        assert files[0].schema is not None, "files to edit come from a snapshot"
        verify_written(place.store, moved.staged, moved.num_rows, common_schema(files).names)
    for task, result in edits:
        expected = 0 if task.changes is None else result.matched
        written = result.kept.num_rows + result.moved.num_rows
        assert written == task.file.num_rows - result.matched + expected, "every row goes somewhere"
    staged = [file for _, result in edits for file in (*result.kept.staged, *result.moved.staged)]
    retired = [task.file for task, _ in edits]
    if edits and not staged and len(retired) == len(files) and transaction.lists_only(entries(files)):
        first = edits[0][0]
        output = group_output(FileGroup((first.file,), compression=first.compression), "delete", ())
        staged = leave_schema(place.engine, output, first.file.directory, place.context(transaction))
    return staged


def _stats(
    request: EditRequest,
    files: Sequence[FileInfo],
    plan: Sequence[EditFile],
    edits: Sequence[tuple[EditFile, Edited]],
    *,
    dry_run: bool,
    backup_path: str | None = None,
) -> EditStats:
    matched = sum(result.matched for _, result in edits)
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
    leaves = task.changes is None or task.elsewhere is not None
    return int(not leaves or result.matched < task.file.num_rows) + len(result.directories)


def _directories(task: EditFile, result: Edited) -> set[str]:
    moved = {posixpath.dirname(file.destination) for file in result.moved.staged}
    return {task.file.directory} | moved | result.directories

"""Delete and update rows; only files in which a row changes are rewritten."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import cast

import pyarrow as pa

from parketto.commit.replays import replayed
from parketto.commit.transaction import Transaction
from parketto.engines.base import ProgressCallback
from parketto.merge.enum_notes import files_without_enum_notes
from parketto.operations.context import Backups, DatasetContext
from parketto.operations.edit_run import Editor, EditRequest, EditRun
from parketto.parquet.snapshot import RuledOut
from parketto.results import EditStats
from parketto.runtime.staging import StagedFile
from parketto.storage.hive import PartitionFilter
from parketto.storage.listing import relative_paths


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
    editor = Editor(dataset, request, dataset.clock(), partition_filter)
    dataset.check_exists(partition_filter)
    dataset.engine.check_store(dataset.store)
    arguments = {
        "where": None if request.purge else str(request.where),  # it may contain personal data
        "purge": request.purge or None,
        "values": request.changes,
        "partition_filter": partition_filter,
        "compression": request.compression,
    }
    logged = dataset.request(request.operation, arguments, request.commit_id)
    if dry_run:
        entry = dataset.repeats(logged)
        snapshot = dataset.snapshot(partition_filter, editor.stats_columns, rows=editor.rows)
        run = editor.dry_run(snapshot.files, progress, snapshot.ruled_out)
        planned = _stats(dataset.root, request, run, complete=snapshot.complete, dry_run=True)
        return planned if entry is None else cast("EditStats", replayed(planned, entry))

    def attempt(transaction: Transaction) -> EditStats:
        snapshot = dataset.snapshot_in(transaction, partition_filter, editor.stats_columns, rows=editor.rows)
        changed = pa.schema([(str(name), pa.null()) for name in request.changes or ()])
        files = files_without_enum_notes(snapshot.files, changed)
        run = editor.run(transaction, files, progress, snapshot.ruled_out)
        staged: list[StagedFile] = []

        def stats(backup_path: str | None) -> EditStats:
            return _stats(
                dataset.root,
                request,
                run,
                staged,
                complete=snapshot.complete,
                dry_run=False,
                backup_path=backup_path,
            )

        if run.edits or request.commit_id is not None:
            editor.verified(run)
            staged = run.staged(transaction.operation) or editor.schema_file(run, transaction)
            transaction.commit(
                staged,
                run.retired,
                read=editor.checked_files(run),
                check_added=editor.check_added(run),
                statistics=stats,
            )
        return stats(transaction.backup_path)

    return dataset.run(logged, attempt, known=lambda statistics: cast("EditStats", statistics), backups=backups)


def _stats(
    root: str,
    request: EditRequest,
    run: EditRun,
    staged: Sequence[StagedFile] = (),
    *,
    complete: bool,
    dry_run: bool,
    backup_path: str | None = None,
) -> EditStats:
    others = run.ruled_out or RuledOut()
    before = sum(file.num_rows for file in run.files) + others.rows
    deletes = request.changes is None
    files = [file for file, _ in run.edits]
    removed = {file.path for file in run.emptied} if deletes else frozenset[str]()
    rewritten = [file for file in files if file.path not in removed]
    moved = {posixpath.dirname(file.destination) for result in run.results for file in result.moved.staged}
    moved = moved.union(*(found.directories for _, found in run.edits))
    return EditStats(
        rows_matched=run.matched,
        rows_before=before if complete else None,
        rows_after=(before - run.matched if deletes else before) if complete else None,
        files_before=len(run.files) + others.files if complete else None,
        files_scanned=len(run.plan),
        files_rewritten=len(rewritten),
        files_removed=len(removed),
        files_written=_planned_files(run) if dry_run else _written_files(run),
        rewritten_bytes=sum(file.size_bytes for file in rewritten),
        partitions_affected=len({file.directory for file in files} | moved),
        dry_run=dry_run,
        backup_path=backup_path,
        rewritten_files=relative_paths((file.path for file in files), root),
        added_files=relative_paths((file.destination for file in staged), root),
    )


def _written_files(run: EditRun) -> int:
    return sum(len(result.files.written.staged) + len(result.moved.staged) for result in run.results)


def _planned_files(run: EditRun) -> int:
    """One file for each group with remaining rows, and one for each directory to which its rows move."""
    emptied = {file.path for file in run.emptied}
    return sum(
        any(file.path not in emptied for file in task.files)
        + len(frozenset[str]().union(*(found.directories for found in task.matches)))
        for task in run.groups
    )

"""Restore a backup: remove what an operation published and bring back what it retired, in one commit."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import replace

from parketto.commit.backup import Manifest, check_known, kept_file, read_manifest, transfer
from parketto.commit.column_changes import change_in_the_way
from parketto.commit.past import Commits, UndoPlan, plan_backup
from parketto.commit.transaction import Transaction
from parketto.errors import CannotUndo, CommitConflict, InvalidArgument
from parketto.operations.context import DatasetContext
from parketto.operations.past_states import commits_of
from parketto.operations.returning_files import ReturningFiles
from parketto.parquet.file_info import FileInfo
from parketto.parquet.snapshot import read_snapshot
from parketto.results import RestoreStats
from parketto.storage.hive import partition_values
from parketto.storage.store import FileEntry, Store


def restore(dataset: DatasetContext, backups: Store, path: str, *, dry_run: bool = False) -> RestoreStats:
    """Discover → check columns → stage copies → verify → commit → report."""
    manifest = read_manifest(backups, path)

    def check(current: Sequence[FileEntry]) -> tuple[list[FileEntry], tuple[str, ...] | None, RestoreStats]:
        """The files that go, the partition columns afterwards, and what the restore does."""
        retired = _removed(dataset, manifest, path)
        commits = _commits(dataset)
        plan = _plan(commits, manifest)
        _refuse_other_columns(commits, plan, path)
        found = _read(backups, path, [kept_file(path, file) for file in manifest.retired])
        # As if they were back.
        back = [
            replace(
                each,
                path=f"{dataset.root}/{file.path}",
                partition=partition_values(posixpath.dirname(file.path)),
            )
            for each, file in zip(found, manifest.retired, strict=True)
        ]
        returning = ReturningFiles(
            [file.path for file in manifest.retired],
            lambda: back,
            since=plan.restored[0][0] if plan.restored else 0,
            have_same_types=False,
            what=f"the backup {path!r} cannot be restored",
            otherwise="",
        )
        gone = {entry.path for entry in retired}
        staying = [entry for entry in current if entry.path not in gone]
        stats = RestoreStats(
            files_restored=len(manifest.retired),
            files_removed=len(manifest.published),
            rows_restored=sum(file.num_rows for file in found),
            restored_files=sorted(file.path for file in manifest.retired),
            removed_files=sorted(file.path for file in manifest.published),
            dry_run=dry_run,
        )
        return retired, returning.partition_columns(dataset, commits, staying), stats

    def check_log() -> None:
        commits = _commits(dataset)
        _refuse_other_columns(commits, _plan(commits, manifest), path)

    if dry_run:
        return check(dataset.listed_if_any())[-1]

    def attempt(transaction: Transaction) -> RestoreStats:
        retired, partition_by, stats = check(dataset.existing(transaction))
        staged = []
        for number, file in enumerate(manifest.retired):
            directory, name = posixpath.split(f"{dataset.root}/{file.path}")
            copy = transaction.staging.restored_file(number, directory, name)
            transfer(backups, kept_file(path, file), dataset.store, copy.path)
            staged.append(copy)
        _read(dataset.store, dataset.root, [file.path for file in staged])  # the copies are whole
        transaction.commit(
            staged,
            retired,
            follows=partition_by,
            names_may_exist=True,
            statistics=stats,
            validate=check_log,
        )
        return stats

    # A retry cannot fix an invalid backup.
    return dataset.run(dataset.request("restore", {"backup": path}), attempt, repeatable=False)


def _removed(dataset: DatasetContext, manifest: Manifest, path: str) -> list[FileEntry]:
    """The files that the operation had published, which are removed.

    Raises:
        CommitConflict: They have changed, or the names of those that come back are taken.
    """
    taken = dataset.store.stat_many([f"{dataset.root}/{file.path}" for file in manifest.retired])
    if taken:
        raise CommitConflict(
            f"{sorted(taken)[0]!r} already exists, so the backup {path!r} was restored before, or its "
            "operation never happened. Nothing was changed"
        )
    return check_known(dataset.store, dataset.root, manifest.published)


def _read(store: Store, root: str, paths: Sequence[str]) -> Sequence[FileInfo]:
    """The footers of files that come back."""
    entries = store.stat_many(paths)
    if lost := [each for each in paths if each not in entries]:
        raise InvalidArgument(f"the backup is not complete: {lost[0]!r} is missing. Nothing was changed")
    return read_snapshot(store, root, [entries[each] for each in paths]).files


def _plan(commits: Commits, manifest: Manifest) -> UndoPlan:
    return plan_backup(
        commits, [file.path for file in manifest.retired], [file.path for file in manifest.published]
    )


def _commits(dataset: DatasetContext) -> Commits:
    """The commits that the log has; none if the dataset keeps none."""
    return commits_of(dataset) if dataset.workspace.keeps_history else Commits({}, 0, 0)


def _refuse_other_columns(commits: Commits, plan: UndoPlan, path: str) -> None:
    """Refuse a backup whose files lack a later change of the columns, as far as the log shows it."""
    if (changed := change_in_the_way(commits, plan)) is not None:
        raise CannotUndo(
            f"the backup {path!r} cannot be restored: its files have other columns than those that "
            f"{commits.describe(changed)} has written or left. Undo commit {changed} first. Nothing was changed"
        )

"""Restore a backup: remove what an operation published and bring back what it retired, in one commit."""

from __future__ import annotations

import posixpath
from dataclasses import replace

from parketto.commit.backup import check_known, kept_file, read_manifest, transfer
from parketto.commit.column_changes import change_in_the_way
from parketto.commit.past import Commits, UndoPlan, plan_backup
from parketto.commit.transaction import Transaction
from parketto.errors import CannotUndo, CommitConflict
from parketto.operations.context import DatasetContext
from parketto.operations.past_states import commits_of
from parketto.operations.returning_files import ReturningFiles
from parketto.parquet.snapshot import read_snapshot
from parketto.results import RestoreStats
from parketto.storage.hive import partition_values
from parketto.storage.store import Store


def restore(dataset: DatasetContext, backups: Store, path: str) -> RestoreStats:
    """Discover → check columns → stage copies → verify → commit → report."""
    manifest = read_manifest(backups, path)

    def plan_of(commits: Commits) -> UndoPlan:
        return plan_backup(
            commits, [file.path for file in manifest.retired], [file.path for file in manifest.published]
        )

    def attempt(transaction: Transaction) -> RestoreStats:
        taken = dataset.store.stat_many([f"{dataset.root}/{file.path}" for file in manifest.retired])
        if taken:
            raise CommitConflict(
                f"{sorted(taken)[0]!r} already exists, so the backup {path!r} was restored before, or its "
                "operation never happened. Nothing was changed"
            )
        retired = check_known(dataset.store, dataset.root, manifest.published)
        gone = {entry.path for entry in retired}
        staying = [entry for entry in dataset.existing(transaction) if entry.path not in gone]
        commits = _commits(dataset)
        plan = plan_of(commits)
        _refuse_other_columns(commits, plan, path)
        staged = []
        for number, file in enumerate(manifest.retired):
            directory, name = posixpath.split(f"{dataset.root}/{file.path}")
            copy = transaction.staging.restored_file(number, directory, name)
            transfer(backups, kept_file(path, file), dataset.store, copy.path)
            staged.append(copy)
        entries = dataset.store.stat_many([file.path for file in staged])
        found = read_snapshot(dataset.store, dataset.root, [entries[file.path] for file in staged]).files
        # As if they were back.
        back = [
            replace(each, path=copy.destination, partition=partition_values(posixpath.dirname(file.path)))
            for each, copy, file in zip(found, staged, manifest.retired, strict=True)
        ]
        returning = ReturningFiles(
            [file.path for file in manifest.retired],
            lambda: back,
            since=plan.restored[0][0] if plan.restored else 0,
            have_same_types=False,
            what=f"the backup {path!r} cannot be restored",
            otherwise="",
        )
        partition_by = returning.partition_columns(dataset, commits, staying)

        def check_log() -> None:
            now = _commits(dataset)
            _refuse_other_columns(now, plan_of(now), path)

        stats = RestoreStats(
            files_restored=len(staged),
            files_removed=len(retired),
            rows_restored=sum(file.num_rows for file in found),
        )
        transaction.commit(
            staged, retired, follows=partition_by, names_may_exist=True, statistics=stats, validate=check_log
        )
        return stats

    # A retry cannot fix an invalid backup.
    return dataset.run(dataset.request("restore", {"backup": path}), attempt, repeatable=False)


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

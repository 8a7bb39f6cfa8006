"""Restore a backup: remove what an operation published and bring back what it retired, in one commit."""

from __future__ import annotations

import posixpath

from parketto.commit.backup import check_known, kept_file, read_manifest, transfer
from parketto.commit.transaction import Transaction
from parketto.errors import CommitConflict
from parketto.operations.context import DatasetContext
from parketto.parquet.snapshot import read_snapshot
from parketto.results import RestoreStats
from parketto.storage.store import Store


def restore(dataset: DatasetContext, backups: Store, path: str) -> RestoreStats:
    """Discover → stage copies → verify → commit → report."""
    manifest = read_manifest(backups, path)

    def attempt(transaction: Transaction) -> RestoreStats:
        taken = dataset.store.stat_many([f"{dataset.root}/{file.path}" for file in manifest.retired])
        if taken:
            raise CommitConflict(
                f"{sorted(taken)[0]!r} already exists, so the backup {path!r} was restored before, or its "
                "operation never happened. Nothing was changed"
            )
        retired = check_known(dataset.store, dataset.root, manifest.published)
        staged = []
        for number, file in enumerate(manifest.retired):
            directory, name = posixpath.split(f"{dataset.root}/{file.path}")
            copy = transaction.staging.restored_file(number, directory, name)
            transfer(backups, kept_file(path, file), dataset.store, copy.path)
            staged.append(copy)
        entries = dataset.store.stat_many([file.path for file in staged])
        found = read_snapshot(dataset.store, dataset.root, [entries[file.path] for file in staged]).files
        stats = RestoreStats(
            files_restored=len(staged),
            files_removed=len(retired),
            rows_restored=sum(file.num_rows for file in found),
        )
        transaction.commit(staged, retired, names_may_exist=True, statistics=stats)
        return stats

    # A retry cannot fix an invalid backup.
    return dataset.run(dataset.request("restore", {"backup": path}), attempt, repeatable=False)

"""Restore a backup: remove what an operation published and bring back what it retired, in one commit."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from parketto.commit.backup import Manifest, check_known, kept_file, read_manifest, transfer
from parketto.commit.transaction import Transaction
from parketto.errors import CommitConflict, InvalidArgument
from parketto.operations.context import DatasetContext
from parketto.parquet.snapshot import read_snapshot
from parketto.results import RestoreStats
from parketto.storage.store import FileEntry, Store


def restore(dataset: DatasetContext, backups: Store, path: str, *, dry_run: bool = False) -> RestoreStats:
    """Discover → stage copies → verify → commit → report."""
    manifest = read_manifest(backups, path)
    if dry_run:
        _removed(dataset, manifest, path)
        return _stats(manifest, backups, path, [kept_file(path, file) for file in manifest.retired], dry_run=True)

    def attempt(transaction: Transaction) -> RestoreStats:
        retired = _removed(dataset, manifest, path)
        staged = []
        for number, file in enumerate(manifest.retired):
            directory, name = posixpath.split(f"{dataset.root}/{file.path}")
            copy = transaction.staging.restored_file(number, directory, name)
            transfer(backups, kept_file(path, file), dataset.store, copy.path)
            staged.append(copy)
        stats = _stats(manifest, dataset.store, dataset.root, [file.path for file in staged], dry_run=False)
        transaction.commit(staged, retired, names_may_exist=True, statistics=stats)
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


def _stats(manifest: Manifest, store: Store, root: str, paths: Sequence[str], *, dry_run: bool) -> RestoreStats:
    """What comes back and what is removed; `paths` are the copies that come back, below `root`."""
    entries = store.stat_many(paths)
    if lost := [each for each in paths if each not in entries]:
        raise InvalidArgument(f"the backup is not complete: {lost[0]!r} is missing. Nothing was changed")
    found = read_snapshot(store, root, [entries[each] for each in paths]).files
    return RestoreStats(
        files_restored=len(paths),
        files_removed=len(manifest.published),
        rows_restored=sum(file.num_rows for file in found),
        restored_files=sorted(file.path for file in manifest.retired),
        removed_files=sorted(file.path for file in manifest.published),
        dry_run=dry_run,
    )

"""Bringing a backup back: what an operation published goes, what it retired returns, in one step."""

from __future__ import annotations

import posixpath

from parketto.commit.backup import check_known, kept_file, read_manifest, transfer
from parketto.commit.transaction import Transaction
from parketto.errors import CommitConflict
from parketto.operations.place import Place
from parketto.stats import RestoreStats
from parketto.storage.snapshot import read_snapshot
from parketto.storage.store import Store


def restore(place: Place, backups: Store, path: str) -> RestoreStats:
    """Discover → stage copies → verify → commit → report."""
    manifest = read_manifest(backups, path)

    def attempt(transaction: Transaction) -> RestoreStats:
        taken = place.store.stat_many([f"{place.root}/{file.path}" for file in manifest.retired])
        if taken:
            raise CommitConflict(
                f"{sorted(taken)[0]!r} is there again already, so the backup {path!r} was restored before, or its "
                "operation never happened. Nothing was changed"
            )
        retired = check_known(place.store, place.root, manifest.published)
        staged = []
        for number, file in enumerate(manifest.retired):
            directory, name = posixpath.split(f"{place.root}/{file.path}")
            copy = transaction.staging.restored_file(number, directory, name)
            transfer(backups, kept_file(path, file), place.store, copy.path)
            staged.append(copy)
        entries = place.store.stat_many([file.path for file in staged])
        found = read_snapshot(place.store, place.root, [entries[file.path] for file in staged]).files
        stats = RestoreStats(
            files_restored=len(staged),
            files_removed=len(retired),
            rows_restored=sum(file.num_rows for file in found),
        )
        transaction.commit(staged, retired, names_may_exist=True, statistics=stats)
        return stats

    # What is wrong with a backup is wrong the next time, too.
    return place.run(place.request("restore", {"backup": path}), attempt, repeatable=False)

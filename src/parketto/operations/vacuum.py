"""Remove files that commits have retired, before or after their time is over."""

from __future__ import annotations

from collections.abc import Collection

from parketto.commit.index_update import clear_index
from parketto.commit.recovery import recover_locked, settle
from parketto.commit.retention import KeptFiles
from parketto.commit.workspace import Workspace
from parketto.operations.context import DatasetContext
from parketto.results import VacuumStats
from parketto.storage.locks import held


def vacuum(dataset: DatasetContext, older_than: float | None, *, dry_run: bool) -> VacuumStats:
    """Find what is old enough → remove it → report.

    Args:
        dataset: The dataset.
        older_than: The least age of the commits in seconds; None means those whose retention is over.
        dry_run: Only report.
    """
    kept = KeptFiles(dataset.store, dataset.workspace.path)
    names = kept.names()
    chosen = names.keys() & set(kept.expired() if older_than is None else kept.older_than(older_than))
    found = {name: _size(kept, name) for name in names}
    if not dry_run:
        clear_index(dataset.workspace)  # it may have bounds of removed files
    if chosen and not dry_run:
        chosen = remove_kept_folders(dataset.workspace, chosen)
    left = names.keys() - chosen
    return VacuumStats(
        commits=sorted(names[name] for name in chosen),
        files_removed=sum(found[name][0] for name in chosen),
        bytes_removed=sum(found[name][1] for name in chosen),
        files_kept=sum(found[name][0] for name in left),
        bytes_kept=sum(found[name][1] for name in left),
        dry_run=dry_run,
    )


def remove_kept_folders(workspace: Workspace, names: Collection[str]) -> set[str]:
    """Remove folders of kept files, once all commits are settled; returns those that were removed.

    A commit in progress may still need its retired files, to undo it. So folders of later commits stay.
    """
    kept = KeptFiles(workspace.store, workspace.path)
    with held(workspace.lock()):
        if workspace.locks:
            recover_locked(workspace)
        while not (state := workspace.read_state()).log.done:
            settle(workspace, state.log)
        there = kept.names()
        chosen = {name for name in names if name in there and there[name] <= state.log.last}
        kept.remove(sorted(chosen))
    workspace.tidy()
    return chosen


def _size(kept: KeptFiles, name: str) -> tuple[int, int]:
    """The number and the size of the files in a folder."""
    manifest = kept.manifest(name)
    files = () if manifest is None else manifest.files
    return len(files), sum(file.size_bytes for file in files)

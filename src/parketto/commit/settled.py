"""Listings of a dataset at a moment when no commit is half done."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

from parketto.commit.identity import is_same
from parketto.commit.log import SWEEP, LogView
from parketto.commit.record import paths_of
from parketto.commit.recovery import recover_one
from parketto.commit.workspace import Workspace
from parketto.errors import CommitFailed, DatasetNotFound
from parketto.storage.hive import PartitionFilter, directory_matcher, folder_matcher
from parketto.storage.listing import refuse_file, relative, select_data_files
from parketto.storage.store import FileEntry
from parketto.storage.walk import Enter, Walk, is_entered

_LISTING_ATTEMPTS = 10
_FRESH_LISTINGS = 2  # listings to repeat after concurrent commits; later ones are corrected by the records


@dataclass(frozen=True, slots=True)
class Listing:
    """All data files between two commits, and the number of the commit before.

    An append may list during another commit. Then the number is unknown (None).
    """

    files: list[FileEntry]
    number: int | None
    #: All files at that moment, data or not, in the folders that were listed.
    everything: list[FileEntry]
    #: Which folders were listed; None: all.
    walk: Walk | None = None
    #: A time before the files were listed, in seconds since the epoch.
    begun: float = 0.0

    @property
    def left_out(self) -> list[str]:
        """The folders that were not listed, by their paths in the dataset."""
        return [] if self.walk is None else self.walk.left_out

    @property
    def seen(self) -> dict[str, set[str]]:
        """The folders of data files below each folder in `left_out` that the store has listed all the same."""
        return {} if self.walk is None else self.walk.seen


def list_settled(
    workspace: Workspace,
    partition_filter: PartitionFilter = None,
    *,
    enter: Enter | None = None,
    to_change: bool = False,
    locked: bool = False,
) -> Listing:
    """The data files at a moment when no commit is half done, in this dataset, its parents or its partitions.

    It neither locks nor writes, unless a commit was interrupted or other writers commit without a pause.

    Args:
        workspace: The dataset's workspace.
        partition_filter: Which partitions to list. Folders that it rules out are not read.
        enter: A further rule for the folders to list, by their paths in the dataset.
        to_change: The caller is about to commit. Then a commit in progress is settled first: a plan that is based
            on the state before would conflict with it.
        locked: The caller holds the workspace's lock, and has recovered.
    """
    store, root = workspace.store, workspace.root
    directory_matcher(partition_filter)  # refuse an invalid filter before any read
    refuse_file(store, root)
    given = [folder_matcher(partition_filter)] if partition_filter is not None else []
    given += [enter] if enter is not None else []
    walk = Walk(*given) if given else None
    for attempt in range(_LISTING_ATTEMPTS):
        for outer in workspace.outer_workspaces():
            if not outer.read_state().log.done:
                recover_one(outer)
        last = attempt == _LISTING_ATTEMPTS - 1
        before = workspace.read_state().log
        if not before.done and (to_change or workspace.locks):
            recover_one(workspace)
            before = workspace.read_state().log
            if not before.done and workspace.locks and not last:
                continue  # the next commit has begun, and may still be undone
        begun = time.time()
        with _locking_writers_out(workspace) if last and not locked else contextlib.nullcontext():
            found = list(store.list_files(root) if walk is None else store.list_files(root, walk))
            after = workspace.read_state().log
        if last and workspace.locks:
            before = after
        if before != after and not locked and (store.is_local_disk or attempt < _FRESH_LISTINGS):
            continue  # another writer has committed meanwhile: the listing may contain half of its files
        inner = workspace.unsettled_inner_workspaces(found)
        if not inner:
            shown = _as_settled(workspace, before, after, found, walk, last=last)
            if shown is None:
                continue
            files = _selected(workspace, shown, partition_filter, walk, enter)
            return Listing(files, after.last, shown, walk, begun)
        for each in inner:  # never while holding a lock: its owner may be waiting for ours
            recover_one(each)
    raise CommitFailed(f"other writers keep committing below {root!r}; nothing was changed, run it again")


def _selected(
    workspace: Workspace,
    shown: list[FileEntry],
    partition_filter: PartitionFilter,
    walk: Walk | None,
    enter: Enter | None,
) -> list[FileEntry]:
    """The data files that match. An empty result is an error only if no file of the whole dataset matches."""
    store, root = workspace.store, workspace.root
    try:
        return select_data_files(store, root, shown, partition_filter)
    except DatasetNotFound:
        if walk is None or not walk.left_out:
            raise
        return (
            [] if enter is not None else select_data_files(store, root, store.list_files(root), partition_filter)
        )


@contextlib.contextmanager
def _locking_writers_out(workspace: Workspace) -> Iterator[None]:
    """Keep other writers from committing for a moment, if this process has the permission."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(CommitFailed, PermissionError):
            stack.enter_context(workspace.locked())
        yield


def _as_settled(
    workspace: Workspace,
    before: LogView,
    view: LogView,
    found: list[FileEntry],
    walk: Walk | None,
    *,
    last: bool,
) -> list[FileEntry] | None:
    """The files of a listing, as they are between two commits; None if that cannot be determined.

    Records tell old files from new ones. So a reader need not wait for writers, write, or start again.
    """
    here = {relative(entry.path, workspace.root): entry for entry in found}
    try:
        # A long listing may contain half of a commit that was settled meanwhile.
        for number in range(before.last + before.done, view.last + view.done):
            if before != view and not _apply_to_listing(workspace, number, view, here, walk):
                return None
        if not view.done:
            record = workspace.log.read(view.last)
            if is_same(workspace.store, workspace.root, record):
                new, old = (_listed(paths_of(each), walk) for each in (record.publish, record.retire))
                # Old files are retired after all new ones are published. Else the listing took so long that it
                # missed both; or, if that happens repeatedly, an external writer has removed an old one.
                if not (new <= here.keys() or old <= here.keys() or last):
                    return None
                for path in old if new <= here.keys() and not view.undo else new:
                    here.pop(path, None)
    except FileNotFoundError:
        return None  # a record was folded meanwhile
    return list(here.values())


def _listed(paths: set[str], walk: Walk | None) -> set[str]:
    """The paths that are in folders which the listing enters."""
    return paths if walk is None else {path for path in paths if is_entered(path, walk)}


def _apply_to_listing(
    workspace: Workspace, number: int, view: LogView, here: dict[str, FileEntry], walk: Walk | None
) -> bool:
    """Bring a listing, by relative paths, to the state after a commit; False if a file is gone since."""
    record = workspace.log.read(number)
    if record.operation == SWEEP or workspace.log.outcome(number, view) != "complete":
        return True
    for old in record.retire:
        here.pop(old.path, None)
    missing = [f"{workspace.root}/{path}" for path in _listed(paths_of(record.publish), walk) if path not in here]
    entries = workspace.store.stat_many(missing)
    here.update({relative(path, workspace.root): entry for path, entry in entries.items()})
    return len(entries) == len(missing)

"""Apply a record where files can be moved: publish the new files and retire the old ones, or undo both.

Every step is idempotent: any process that finds a half-applied commit runs the same code from the start. If
possible, one directory swap does it all (`commit/swap.py`). Otherwise all new files are published before the first
old one is retired, so that no row is missing at any moment.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Iterable

from parketto.commit.record import KEPT, Publication, Record, Retirement
from parketto.commit.retention import MANIFEST, Manifest
from parketto.commit.swap import Retired, exchange, finish, is_swapped, path_in_old_tree
from parketto.commit.workspace import Workspace
from parketto.errors import CommitConflict

logger = logging.getLogger(__name__)

_MOVE_ATTEMPTS = 5  # to move a file into a folder that other writers may remove


class MovingApplier:
    """Applies one record by moves. All of them can be undone until the retired files are removed.

    Files to keep are parked where they are kept, so that nothing is left to do for them once they are retired.

    Args:
        workspace: The workspace that contains the record.
        record: The record to apply.
        first: No process has started to apply it; otherwise some steps may already be done.
    """

    def __init__(self, workspace: Workspace, record: Record, *, first: bool = False) -> None:
        self._workspace, self._record, self._store = workspace, record, workspace.store
        self._first = first
        self._swap = record.swap
        #: Whether the commit can no longer be undone.
        self.irreversible = False

    def can_complete(self) -> bool:
        """Whether the remaining steps are still possible: no other writer has changed their files.

        Every new file must be staged or published, and every file to retire unchanged, in place or parked.
        """
        published = self._is_swapped() or all(
            self._exists(self._staged(new.staged)) or self._exists(self._live(new.path))
            for new in self._record.publish
        )
        return published and all(
            any(self._fingerprint(path, self._live(old.path)) == old.fingerprint for path in self._locations(old))
            for old in self._record.retire
        )

    def roll_forward(self) -> None:
        """Bring the dataset to the state after the operation.

        Uses a swap if possible. After a swap all steps are done, and later changes do not matter; only a file to
        retire that another writer changed just before the swap is still a conflict.
        """
        for parking in sorted({posixpath.dirname(old.parked) for old in self._record.retire}):
            self._make_dirs(self._staged(parking))
        self._write_manifest()
        swapped = self._is_swapped() or self._exchange()
        if swapped:
            self._finish()
        else:
            for new in self._record.publish:
                self._publish(new)
        for old in self._left_to_retire(swapped):
            self._retire(old)
        self._sync()
        self._remove_folders([old.path for old in self._record.retire], [new.path for new in self._record.publish])
        self.irreversible = True

    def clear(self) -> None:
        """Do nothing: parked files are needed until the commit is settled, and kept or swept after that."""

    def roll_back(self) -> None:
        """Bring the dataset back to the state before the operation; files of other writers stay."""
        if self._record.kept is not None:
            self._store.remove(self._staged(f"{self._record.kept}/{MANIFEST}"))
        if self._is_swapped():
            self._finish()
        for old in self._record.retire:
            parked = self._staged(old.parked)
            if self._fingerprint(parked, self._live(old.path)) is not None:
                self._make_dirs(posixpath.dirname(self._live(old.path)))
                self._store.move(parked, self._free_path(old.path))
        for new in self._record.publish:
            live = self._live(new.path)
            if self._is_ours(new, live):
                self._store.remove(live)
        self._sync()
        self._remove_folders([new.path for new in self._record.publish], [old.path for old in self._record.retire])
        if self._record.kept is not None:
            self._store.remove_tree(self._staged(self._record.kept))
            self._store.remove_empty_dir(self._staged(KEPT))

    def _write_manifest(self) -> None:
        """Describe the files to keep before the first one leaves the dataset: readers find them by it."""
        if self._record.kept is not None:
            path = self._staged(f"{self._record.kept}/{MANIFEST}")
            if self._first or not self._exists(path):
                self._store.write(path, Manifest.of(self._record).to_bytes())

    def _is_swapped(self) -> bool:
        return self._swap is not None and is_swapped(self._store, self._workspace.path, self._swap)

    def _exchange(self) -> bool:
        retired = {old.path for old in self._record.retire}
        return self._swap is not None and exchange(
            self._store, self._workspace.root, self._workspace.path, self._swap, retired
        )

    def _finish(self) -> None:
        assert self._swap is not None, "only called after a swap"
        finish(
            self._store,
            self._workspace.root,
            self._workspace.path,
            self._swap,
            {new.path: new.fingerprint for new in self._record.publish},
            {old.path: Retired(old.fingerprint, old.parked) for old in self._record.retire},
        )

    def _left_to_retire(self, swapped: bool) -> list[Retirement]:
        """All files; after a swap, those that are not parked or whose names exist again."""
        if not swapped:
            return list(self._record.retire)
        if not self._first:
            return []
        folders = {posixpath.dirname(old.path) for old in self._record.retire}
        names = {folder: set(self._store.list_names(self._live(folder))) for folder in folders}
        return [
            old
            for old in self._record.retire
            if posixpath.basename(old.path) in names[posixpath.dirname(old.path)] or not self._is_parked(old)
        ]

    def _locations(self, old: Retirement) -> list[str]:
        """The paths at which a file to retire can be."""
        locations = [self._live(old.path), self._staged(old.parked)]
        return (
            locations
            if self._swap is None
            else [*locations, path_in_old_tree(self._workspace.path, self._swap, old.path)]
        )

    def _is_parked(self, old: Retirement) -> bool:
        return self._fingerprint(self._staged(old.parked), self._live(old.path)) == old.fingerprint

    def _exists(self, path: str) -> bool:
        return self._store.stat(path) is not None

    def _fingerprint(self, path: str, origin: str) -> str | None:
        entry = self._store.stat_moved(path, origin)
        return None if entry is None else entry.fingerprint

    def _is_ours(self, new: Publication, live: str) -> bool:
        return self._fingerprint(live, live) == new.fingerprint

    def _free_path(self, path: str) -> str:
        """The path itself, or another name in its folder if another writer has taken it."""
        live = self._live(path)
        if not self._exists(live):
            return live
        stem = live.removesuffix(".parquet")
        return f"{stem}-restored-{self._record.id}.parquet"

    def _publish(self, new: Publication) -> None:
        staged, live = self._staged(new.staged), self._live(new.path)
        if self._exists(live):
            if self._first and not self._is_ours(new, live):
                raise CommitConflict(f"{live!r} was just created by another writer; nothing was changed")
            return
        for _ in range(_MOVE_ATTEMPTS):
            self._make_dirs(posixpath.dirname(live))
            try:
                self._store.move(staged, live)
            except FileNotFoundError as error:
                failure = error  # another writer may have removed the folder again, because it was empty
            else:
                return
        raise failure

    def _retire(self, old: Retirement) -> None:
        live = self._live(old.path)
        found = self._store.stat(live)
        if found is not None and found.fingerprint == old.fingerprint:
            self._store.move(live, self._staged(old.parked))
            if not self._is_parked(old):  # replaced between the check and the move
                raise CommitConflict.over(live, gone=False)
        elif self._first and (found is not None or not self._is_parked(old)):
            # Another writer changed the file after validation, before the record.
            raise CommitConflict.over(live, gone=found is None)
        elif found is not None:
            logger.warning("another writer replaced %s while it was being retired; the new file is kept", live)

    def _make_dirs(self, directory: str) -> None:
        if self._store.is_dir(directory):
            return
        self._store.make_dirs(directory)
        # The new name must survive a power failure like the file in it: sync all parents up to the dataset.
        while directory.startswith(f"{self._workspace.root}/"):
            directory = posixpath.dirname(directory)
            self._store.sync([directory])

    def _sync(self) -> None:
        steps: list[Publication | Retirement] = [*self._record.publish, *self._record.retire]
        directories = sorted({posixpath.dirname(step.path) for step in steps})
        self._store.sync([path for path in map(self._live, directories) if self._store.is_dir(path)])
        if self._record.kept is not None:
            kept = [self._staged(self._record.kept), self._staged(KEPT)]
            self._store.sync([path for path in kept if self._store.is_dir(path)])

    def _remove_folders(self, left: Iterable[str], filled: Iterable[str]) -> None:
        """Remove the folders that files have left, if they are empty; never the dataset's own folder."""
        if not (emptied := _folders(left) - _folders(filled)):
            return
        self._store.remove_empty_dirs(self._live(folder) for folder in emptied)
        above = sorted({self._live(posixpath.dirname(folder)) for folder in emptied})
        self._store.sync([folder for folder in above if self._store.is_dir(folder)])

    def _live(self, path: str) -> str:
        return f"{self._workspace.root}/{path}" if path else self._workspace.root

    def _staged(self, path: str) -> str:
        return f"{self._workspace.path}/{path}"


def _folders(paths: Iterable[str]) -> set[str]:
    """The folders of files, with all folders above them below the dataset; paths are relative to it.

    >>> sorted(_folders(["a/b/1.parquet", "2.parquet"]))
    ['a', 'a/b']
    """
    found: set[str] = set()
    for folder in {posixpath.dirname(path) for path in paths}:
        while folder and folder not in found:
            found.add(folder)
            folder = posixpath.dirname(folder)
    return found

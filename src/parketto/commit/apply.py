"""Carrying a journal out: publish the new files, retire the old ones; or undo both.

Every step can be taken again: whoever finds a half-done commit runs the same code from the start. The steps
go directory by directory, so that a reader of one partition sees as little as possible of the change.
"""

from __future__ import annotations

import logging
import posixpath
from collections import defaultdict
from collections.abc import Iterable
from typing import TypeVar

from parketto.commit.journal import Journal, Publication, Retirement
from parketto.commit.swap import Swap, carry_over, refresh_twin
from parketto.commit.workspace import Workspace
from parketto.errors import CommitConflict, CommitStateUnknown
from parketto.storage.store import FileEntry

logger = logging.getLogger(__name__)

Step = TypeVar("Step", Publication, Retirement)


class Applier:
    """Applies one journal. `irreversible` says whether a live file is already gone for good.

    Args:
        workspace: Where the journal is.
        journal: What to do.
        first: Nobody has begun with it yet; otherwise steps may already be taken.
    """

    def __init__(self, workspace: Workspace, journal: Journal, *, first: bool = False) -> None:
        self._workspace, self._journal, self._store = workspace, journal, workspace.store
        self._first = first
        self._publish_steps, self._retire_steps = _by_directory(journal.publish), _by_directory(journal.retire)
        self._kept: dict[str, dict[str, str]] = {}  # what twins really kept, where that is known better
        self.irreversible = False

    def roll_forward(self) -> None:
        """Bring the dataset to the state after the operation.

        The first time, directories that the journal says can be swapped are; the single steps then find their
        work done. Recovery goes without: the directory may have changed since.
        """
        publish, retire = self._publish_steps, self._retire_steps
        swaps = {each.directory: each for each in self._journal.swaps}
        if self._store.atomic_move:
            for parking in sorted({posixpath.dirname(old.parked) for old in self._journal.retire}):
                self._make_dirs(self._staged(parking))
        for directory in sorted({*publish, *retire}):
            if self._first and directory in swaps:
                self._swap(swaps[directory])
            for new in publish[directory]:
                self._publish(new)
            for old in retire[directory]:
                self._retire(old)
        self._sync({*publish, *retire})
        for each in self._journal.swaps:
            self._carry_over(each)

    def roll_back(self) -> None:
        """Bring the dataset back to the state before the operation."""
        directories = set()
        for each in self._journal.swaps:
            self._carry_over(each)
        for old in self._journal.retire:
            parked = self._staged(old.parked)
            if self._store.stat(parked) is not None:
                self._store.move(parked, self._live(old.path))
                directories.add(posixpath.dirname(old.path))
        for new in self._journal.publish:
            if self._store.stat(self._live(new.path)) is not None:
                self._store.remove(self._live(new.path))
                directories.add(posixpath.dirname(new.path))
        self._sync(directories)

    def _swap(self, swap: Swap) -> None:
        directory, twin = self._live(swap.directory), self._staged(swap.twin)
        retired = {posixpath.basename(old.path) for old in self._retire_steps[swap.directory]}
        try:
            kept = refresh_twin(self._store, directory, twin, swap.kept, retired)
            self._store.swap(directory, twin)
        except OSError as error:
            # Somebody made a folder in it, or the filesystem cannot do it: the single steps are as good.
            logger.debug("%s is not swapped: %s", swap.directory, error)
        else:
            self._kept[swap.directory] = kept
            self._carry_over(swap)

    def _carry_over(self, swap: Swap) -> None:
        directory = self._live(swap.directory)
        if self._store.is_dir(directory) and self._store.identity(directory) != swap.identity:
            parked = [
                posixpath.basename(old.parked)
                for old in self._retire_steps[swap.directory]
                if self._fingerprint(self._staged(old.parked)) == old.fingerprint
            ]
            kept = self._kept.get(swap.directory, swap.kept)
            carry_over(self._store, directory, self._staged(swap.twin), kept, parked)

    def _fingerprint(self, path: str) -> str | None:
        entry = self._store.stat(path)
        return None if entry is None else entry.fingerprint

    def _publish(self, new: Publication) -> None:
        staged, live = self._staged(new.staged), self._live(new.path)
        if self._store.stat(staged) is not None:
            self._make_dirs(posixpath.dirname(live))
            if self._store.atomic_move:
                self._store.move(staged, live)
            else:
                # A copy that was cut short is simply made again: the staged file stays until the end.
                self._store.copy(staged, live)
        elif self._store.stat(live) is None:
            raise CommitStateUnknown(
                f"the journal {self._workspace.journal_path!r} promises {live!r}, but its staged file "
                f"{staged!r} is gone. No file was removed for it"
            )

    def _retire(self, old: Retirement) -> None:
        live = self._live(old.path)
        found = self._store.stat(live)
        if found is None or found.fingerprint != old.fingerprint:
            self._already_retired(old, live, found)
            return
        if self._store.atomic_move:
            self._store.move(live, self._staged(old.parked))
        else:
            self.irreversible = True
            self._store.remove(live)

    def _already_retired(self, old: Retirement, live: str, found: FileEntry | None) -> None:
        """The file is not where it was. In a recovery that is the work of the first attempt, or of somebody later.

        The first time it is a conflict: somebody was quicker than the check before the journal.
        """
        parked = self._fingerprint(self._staged(old.parked)) == old.fingerprint
        if self._first and (found is not None or not parked):
            raise CommitConflict.over(live, gone=found is None)
        if found is not None:
            logger.warning("%s was replaced by somebody else while it was being retired; it stays", live)

    def _make_dirs(self, directory: str) -> None:
        if self._store.is_dir(directory):
            return
        self._store.make_dirs(directory)
        # The new name must survive a power cut as well as the file in it: sync up to a folder that was there.
        while directory.startswith(f"{self._workspace.root}/"):
            directory = posixpath.dirname(directory)
            self._store.sync([directory])

    def _sync(self, directories: Iterable[str]) -> None:
        existing = [path for path in map(self._live, sorted(directories)) if self._store.is_dir(path)]
        self._store.sync(existing)

    def _live(self, path: str) -> str:
        return f"{self._workspace.root}/{path}" if path else self._workspace.root

    def _staged(self, path: str) -> str:
        return f"{self._workspace.path}/{path}"


def _by_directory(steps: Iterable[Step]) -> defaultdict[str, list[Step]]:
    grouped: defaultdict[str, list[Step]] = defaultdict(list)
    for step in steps:
        grouped[posixpath.dirname(step.path)].append(step)
    return grouped

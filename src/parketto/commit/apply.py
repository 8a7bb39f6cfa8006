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
from parketto.commit.swap import carry_over, is_quiet, move_arrived
from parketto.commit.workspace import Workspace
from parketto.errors import CommitConflict

logger = logging.getLogger(__name__)

Step = TypeVar("Step", Publication, Retirement)

# How often an old directory is emptied: each time, somebody has written into it meanwhile.
_EMPTYING_ATTEMPTS = 100


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
        self._swaps = {swap.directory: swap for swap in journal.swaps}
        self.irreversible = False

    def can_complete(self) -> bool:
        """Whether nobody has changed, since the commit began, what it still has to do.

        Every new file is staged or published, and every file to retire is as it was, in its place or parked. Where
        retiring is deleting there is no way back, so the answer is always yes.
        """
        if not self._store.atomic_move:
            return True
        return all(
            self._exists(self._staged(new.staged)) or self._exists(self._live(new.path))
            for directory, steps in self._publish_steps.items()
            if not self._is_swapped(directory)
            for new in steps
        ) and all(
            any(self._fingerprint(place, self._live(old.path)) == old.fingerprint for place in self._places(old))
            for old in self._journal.retire
        )

    def roll_forward(self) -> None:
        """Bring the dataset to the state after the operation.

        The first time, quiet directories are swapped. Recovery takes single steps, and none in a directory that
        was swapped: there everything is done, and what has happened since is not its business.
        """
        if self._store.atomic_move:
            for parking in sorted({posixpath.dirname(old.parked) for old in self._journal.retire}):
                self._make_dirs(self._staged(parking))
        directories = sorted({*self._publish_steps, *self._retire_steps})
        for directory in directories:
            retired: set[str] = set()
            if self._first:
                retired = self._swap(directory)
            elif self._is_swapped(directory):
                self._finish_swap(directory)
                continue
            for new in self._publish_steps[directory]:
                self._publish(new)
            for old in self._retire_steps[directory]:
                if posixpath.basename(old.path) not in retired:
                    self._retire(old)
        self._sync(directories)

    def roll_back(self) -> None:
        """Bring the dataset back to the state before the operation; what others made meanwhile stays."""
        for directory in self._swaps:
            if self._is_swapped(directory):
                self._finish_swap(directory)
        for old in self._journal.retire:
            parked = self._staged(old.parked)
            if self._fingerprint(parked, self._live(old.path)) is not None:
                self._make_dirs(posixpath.dirname(self._live(old.path)))
                self._store.move(parked, self._free_path(old.path))
        for new in self._journal.publish:
            live = self._live(new.path)
            if self._is_ours(new, live):
                self._store.remove(live)
        self._sync({*self._publish_steps, *self._retire_steps})

    def _swap(self, directory: str) -> set[str]:
        """Swap a directory if that is possible; the names of the files that were retired with it."""
        swap = self._swaps.get(directory)
        if swap is None:
            return set()
        live = self._live(directory)
        retired = {posixpath.basename(old.path) for old in self._retire_steps[directory]}
        try:
            if not is_quiet(self._store, live, swap.kept, retired):
                return set()
            self._store.swap(live, self._staged(swap.twin))
        except OSError as error:
            # Somebody made a folder in it, or the filesystem cannot do it: the single steps are as good.
            logger.debug("%s is not swapped: %s", live, error)
            return set()
        self._finish_swap(directory)
        parked = {posixpath.basename(old.path) for old in self._retire_steps[directory] if self._is_parked(old)}
        # Where somebody has made a file of the same name just now, it is looked at singly.
        return parked.difference(self._store.list_names(live))

    def _is_swapped(self, directory: str) -> bool:
        """Whether the old directory stands where its twin was, or has stood there."""
        swap = self._swaps.get(directory)
        if swap is None:
            return False
        twin = self._staged(swap.twin)
        return self._store.is_dir(_emptying(twin)) or (
            self._store.is_dir(twin) and self._store.identity(twin) == swap.identity
        )

    def _finish_swap(self, directory: str) -> None:
        """Carry over what strangers did to the old directory, park what is retired, and remove the directory.

        Removing it last, and only when it is empty, is what no stranger can slip through: one who had found it
        just before the swap may write into it a moment later.
        """
        swap, live = self._swaps[directory], self._live(directory)
        twin = self._staged(swap.twin)
        if not self._store.is_dir(_emptying(twin)):
            there = self._store.identities(twin)
            if self._store.is_dir(live):
                carry_over(self._store, live, twin, swap.kept, there, {*self._retired_in(directory, twin, there)})
            # From here on a name that is missing there is not missing because of a stranger.
            self._store.make_dirs(_emptying(twin))
        for _ in range(_EMPTYING_ATTEMPTS):
            if not self._store.is_dir(twin):
                return
            there = self._store.identities(twin)
            retired = self._retired_in(directory, twin, there)
            for name, old in retired.items():
                self._store.move(f"{twin}/{name}", self._staged(old.parked))
            late = {name: found for name, found in there.items() if name not in retired}
            if self._store.is_dir(live):
                move_arrived(self._store, live, twin, swap.kept, late)
            for name in late:
                if not self._store.is_dir(f"{twin}/{name}"):
                    self._store.remove(f"{twin}/{name}")
            self._store.remove_empty_dir(twin)

    def _retired_in(self, directory: str, twin: str, there: dict[str, str]) -> dict[str, Retirement]:
        """Those files of an old directory that are to be retired, by their names."""
        return {
            name: old
            for old in self._retire_steps[directory]
            if (name := posixpath.basename(old.path)) in there
            # A link is not what it leads to.
            and old.fingerprint in (there[name], self._fingerprint(f"{twin}/{name}", self._live(old.path)))
        }

    def _places(self, old: Retirement) -> list[str]:
        """Where a file that is to be retired can be."""
        directory, name = posixpath.split(old.path)
        swap = self._swaps.get(directory)
        places = [self._live(old.path), self._staged(old.parked)]
        return places if swap is None else [*places, f"{self._staged(swap.twin)}/{name}"]

    def _is_parked(self, old: Retirement) -> bool:
        return self._fingerprint(self._staged(old.parked), self._live(old.path)) == old.fingerprint

    def _exists(self, path: str) -> bool:
        return self._store.stat(path) is not None

    def _fingerprint(self, path: str, origin: str) -> str | None:
        entry = self._store.stat_moved(path, origin)
        return None if entry is None else entry.fingerprint

    def _is_ours(self, new: Publication, live: str) -> bool:
        found = self._store.stat(live)
        if found is None:
            return False
        if self._store.atomic_move:
            return found.fingerprint == new.fingerprint
        # A copy is another file with a time of its own; if it was cut short it is shorter.
        staged = self._store.stat(self._staged(new.staged))
        return staged is not None and found.size_bytes <= staged.size_bytes

    def _free_path(self, path: str) -> str:
        """The path itself, or one beside it if somebody has taken its name meanwhile."""
        live = self._live(path)
        if not self._exists(live):
            return live
        stem = live.removesuffix(".parquet")
        return f"{stem}-restored-{self._journal.id}.parquet"

    def _publish(self, new: Publication) -> None:
        staged, live = self._staged(new.staged), self._live(new.path)
        if not self._store.atomic_move:
            if not self._exists(live) or self._is_ours(new, live):
                # A copy that was cut short is simply made again: the staged file stays until the end.
                self._make_dirs(posixpath.dirname(live))
                self._store.copy(staged, live)
            return
        if self._exists(live):
            if self._first and not self._is_ours(new, live):
                raise CommitConflict(f"{live!r} was made by somebody else just now; nothing was changed")
            return
        self._make_dirs(posixpath.dirname(live))
        self._store.move(staged, live)

    def _retire(self, old: Retirement) -> None:
        live = self._live(old.path)
        found = self._store.stat(live)
        if found is not None and found.fingerprint == old.fingerprint:
            if self._store.atomic_move:
                self._store.move(live, self._staged(old.parked))
                if not self._is_parked(old):  # replaced at this very moment
                    raise CommitConflict.over(live, gone=False)
            else:
                self.irreversible = True
                self._store.remove(live)
        elif self._first and (found is not None or not self._is_parked(old)):
            # Somebody was quicker than the check before the journal.
            raise CommitConflict.over(live, gone=found is None)
        elif found is not None:
            logger.warning("%s was made by somebody else while it was being retired; it stays", live)

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


def _emptying(twin: str) -> str:
    """The folder that says: files are being taken out of the old directory."""
    return f"{twin}.swapped"


def _by_directory(steps: Iterable[Step]) -> defaultdict[str, list[Step]]:
    grouped: defaultdict[str, list[Step]] = defaultdict(list)
    for step in steps:
        grouped[posixpath.dirname(step.path)].append(step)
    return grouped

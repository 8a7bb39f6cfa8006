"""After a swap: bring over what strangers did to the old tree, park what is retired, and remove the tree.

Strangers may have looked a directory up just before the swap, and write into it a moment later: so nothing of
the old tree is removed but what is known to be in the new one, and its folders only when they are empty.
Whoever is killed on the way begins anew: every step can be taken again.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from parketto.commit.twin import Swap, Tree, below, join, lineage
from parketto.storage.store import Store

# How often an old tree is emptied: each time, somebody has written into it meanwhile.
_EMPTYING_ATTEMPTS = 100


@dataclass(frozen=True, slots=True)
class Retired:
    """A file that is taken out of the dataset: what it is known by, and where in the workspace it is parked."""

    fingerprint: str
    parked: str


def marker(twin: str) -> str:
    """The folder that says: files are being taken out of the old tree."""
    return f"{twin}.swapped"


def finish(
    store: Store,
    root: str,
    workspace: str,
    swap: Swap,
    published: Mapping[str, str],
    retired: Mapping[str, Retired],
) -> None:
    """Do all that is left to do after a swap, or go on with it.

    A file that is to be retired is parked if it is still the one that was listed. Otherwise it is left to the
    caller: gone, or, as what somebody else has put in its place, in the new tree.

    Args:
        store: Where the dataset is.
        root: The dataset.
        workspace: The dataset's workspace.
        swap: A swap that has happened.
        published: The new files' fingerprints, by paths relative to the dataset.
        retired: The files to park, by paths relative to the dataset.

    Raises:
        OSError: Not everything is done. Nothing is lost; it can be called again.
    """
    old = f"{workspace}/{swap.twin}"
    # A tree that is there under another identity is a copy, made together with all of the workspace.
    if swap.identity is None or store.identity(old) not in (None, swap.identity):
        return
    for parking in sorted({posixpath.dirname(f"{workspace}/{each.parked}") for each in retired.values()}):
        store.make_dirs(parking)
    tree = _OldTree(
        store,
        old,
        join(root, swap.directory),
        swap,
        {below(path, swap.directory): fingerprint for path, fingerprint in published.items()},
        {
            below(path, swap.directory): Retired(each.fingerprint, f"{workspace}/{each.parked}")
            for path, each in retired.items()
        },
    )
    if not store.is_dir(marker(old)):
        tree.carry_over()
        # From here on a name that is missing there is not missing because of a stranger.
        store.make_dirs(marker(old))
    for _ in range(_EMPTYING_ATTEMPTS):
        if not store.is_dir(old):
            break
        tree.empty()
    else:
        # Better an interrupted commit, which recovery completes, than to remove what is not known.
        raise OSError(errno.ENOTEMPTY, f"{tree.new!r} has replaced it, but somebody keeps writing into it", old)
    tree.sync()


class _OldTree:
    """The tree that was swapped away. All paths of files and folders are relative to it, and to the new one."""

    def __init__(
        self,
        store: Store,
        old: str,
        new: str,
        swap: Swap,
        published: Mapping[str, str],
        retired: Mapping[str, Retired],
    ) -> None:
        self._store, self._old, self.new, self._kept = store, old, new, swap.kept
        self._published, self._retired = published, retired
        self._touched: set[str] = set()
        self._seen: Tree = {}

    @cached_property
    def _kept_paths(self) -> dict[str, str]:
        return {
            identity: join(folder, name)
            for folder, files in self._kept.items()
            for name, identity in files.items()
        }

    def carry_over(self) -> None:
        """Do to the new tree what strangers did to the old one between the last look at it and the swap."""
        there = self._seen = self._store.tree(self._old)
        arrived, gone = self._arrived(there), self._gone(there)
        if not (arrived or gone or there.keys() != self._kept.keys()) or not self._store.is_dir(self.new):
            return
        # A file that was renamed before the swap comes under its new name, and then loses the old one. If the new
        # tree does not have it under the old one any more, somebody has renamed or removed it since the swap.
        coming = [path for path, identity in arrived.items() if self._is_in_place(identity)]
        self._move_new_folders(there)
        for folder in sorted(self._with_kept_files(there)):
            self._make_folder(folder)
        for path in coming:
            self._bring(path)
        for path, identity in gone.items():
            if self._store.identity(f"{self.new}/{path}") == identity:
                self._touched.add(posixpath.dirname(path))
                self._store.remove(f"{self.new}/{path}")
        self._store.remove_empty_dirs(join(self.new, folder) for folder in self._kept.keys() - there.keys())

    def empty(self) -> None:
        """Take everything out of the old tree, and remove its folders."""
        # What has arrived since the last look keeps a folder from being removed, and is found the next time.
        there, self._seen = self._seen or self._store.tree(self._old), {}
        moved = self._move_new_folders(there) if self._store.is_dir(self.new) else set()
        left = there.keys() - moved
        for folder in left:
            for name in there[folder]:
                self._take_out(join(folder, name))
        self._store.remove_empty_dirs(join(self._old, folder) for folder in left)

    def sync(self) -> None:
        """Make what was carried over survive a power cut."""
        folders = [join(self.new, folder) for folder in sorted(self._touched)]
        self._store.sync(folder for folder in folders if self._store.is_dir(folder))

    def _arrived(self, there: Tree) -> dict[str, str]:
        """Files of the old tree that neither were to stay nor are retired."""
        arrived = {}
        for folder, files in there.items():
            kept = self._kept.get(folder, {})
            for name, identity in files.items():
                if kept.get(name) != identity and not _same_file(kept.get(name), identity):
                    path = join(folder, name)
                    if not self._is_retired(path, identity):
                        arrived[path] = identity
        return arrived

    def _gone(self, there: Tree) -> dict[str, str]:
        """Files that were to stay, and that the old tree does not have any more."""
        gone = {}
        for folder, files in self._kept.items():
            for name in files.keys() - there.get(folder, {}).keys():
                gone[join(folder, name)] = files[name]
        return gone

    def _is_retired(self, path: str, identity: str) -> bool:
        retired = self._retired.get(path)
        if retired is None or retired.fingerprint == identity:
            return retired is not None
        # A link is not what it leads to, and a relative one leads there from the new tree only.
        found = self._store.stat_moved(f"{self._old}/{path}", f"{self.new}/{path}")
        return found is not None and found.fingerprint == retired.fingerprint

    def _is_in_place(self, identity: str) -> bool:
        """Whether the new tree has a file under the name that it was linked by, or the file is new."""
        path = self._kept_paths.get(identity)
        return path is None or self._store.identity(f"{self.new}/{path}") == identity

    def _with_kept_files(self, there: Tree) -> set[str]:
        """Folders of strangers with files that were to stay elsewhere: they have renamed one or the other."""
        return {
            each
            for folder in there.keys() - self._kept.keys()
            if not self._kept_paths.keys().isdisjoint(there[folder].values())
            for each in lineage(folder)
            if each not in self._kept
        }

    def _move_new_folders(self, there: Tree) -> set[str]:
        """Move folders that strangers made, with all that is in them; which ones."""
        moved: set[str] = set()
        known = self._kept.keys() | self._with_kept_files(there)
        for folder in sorted(there):  # each after the one that it lies in
            if posixpath.dirname(folder) in moved:
                moved.add(folder)
            elif folder not in known and self._store.identity(f"{self.new}/{folder}") is None:
                self._make_folder(posixpath.dirname(folder))
                with contextlib.suppress(FileExistsError, FileNotFoundError):  # a stranger was quicker
                    self._store.move_to_free_name(f"{self._old}/{folder}", f"{self.new}/{folder}")
                    moved.add(folder)
        return moved

    def _take_out(self, path: str) -> None:
        """Park a file of the old tree, bring it over, or remove it if it is known to be in the new tree."""
        old = f"{self._old}/{path}"
        identity = self._store.identity(old)
        if identity is None:
            return
        folder, name = posixpath.split(path)
        if self._is_retired(path, identity):
            self._store.move(old, self._retired[path].parked)
            return
        stayed = _same_file(self._kept.get(folder, {}).get(name), identity) or self._is_elsewhere(identity)
        if stayed or not self._bring(path):
            with contextlib.suppress(IsADirectoryError):  # a stranger's, just now: the next attempt moves it
                self._store.remove(old)

    def _is_elsewhere(self, identity: str) -> bool:
        """Whether the new tree has a file already, under whatever name."""
        return identity in self._kept_paths and any(
            identity in files.values() for files in self._store.tree(self.new).values()
        )

    def _bring(self, path: str) -> bool:
        """Move a file that strangers have put into the old tree to the new one; False if it is there already.

        So it is if somebody has meanwhile written another one of that name: the last one counts.
        """
        old, new = f"{self._old}/{path}", f"{self.new}/{path}"
        if not self._store.is_dir(self.new):
            return False
        folder, name = posixpath.split(path)
        known, found = self._kept.get(folder, {}).get(name), self._store.identity(new)
        if _same_file(found, self._store.identity(old)):
            return False
        if found is None and known is not None and (renamed := self._renamed(known)):
            new, found = f"{self.new}/{renamed}", known
            folder = posixpath.dirname(renamed)
        self._make_folder(folder)
        try:
            if found is None:
                self._store.move_to_free_name(old, new)
            elif _same_file(found, known):
                self._store.move(old, new)  # a stranger has replaced it
            elif found == self._published.get(path):
                self._move_beside(old, new)
            else:
                return False
        except FileExistsError:
            return False
        self._touched.add(folder)
        return True

    def _renamed(self, identity: str) -> str | None:
        """Where strangers have moved a file of the new tree that they had replaced in the old one before."""
        if any(identity in files.values() for files in self._store.tree(self._old).values()):
            return None  # it was not replaced but renamed, and another one has got its name
        return next(
            (
                join(folder, name)
                for folder, files in self._store.tree(self.new).items()
                for name, found in files.items()
                if _same_file(found, identity)
            ),
            None,
        )

    def _move_beside(self, old: str, new: str) -> None:
        """Move a file whose name a published one has taken."""
        stem, suffix = posixpath.splitext(new)
        for number in itertools.count(1):
            with contextlib.suppress(FileExistsError):
                self._store.move_to_free_name(old, f"{stem}-{number}{suffix}")
                return

    def _make_folder(self, folder: str) -> None:
        """Have a folder in the new tree, like that of the old one."""
        for each in lineage(folder):
            old, new = join(self._old, each), join(self.new, each)
            if not self._store.is_dir(new):
                self._touched.add(posixpath.dirname(each))
                with contextlib.suppress(FileExistsError):
                    if self._store.is_dir(old):
                        self._store.make_twin(old, new)
                    else:
                        self._store.make_dirs(new)


def _same_file(one: str | None, other: str | None) -> bool:
    """Whether two identities are those of one file, which may have been written to in between.

    As long as one of the trees has a link to it, no other file gets its number.
    """
    return one is not None and other is not None and one.partition(":")[0] == other.partition(":")[0]

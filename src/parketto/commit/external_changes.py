"""After a swap: apply external changes of the old tree to the new one, park retired files, remove the old tree.

External writers do not use the log. They may open a directory just before the swap and write into it just after.
So a file of the old tree is removed only if it is known to be in the new one, and a folder only when it is empty.
Every step is idempotent: after a crash, all of them run again.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from parketto.commit.twin import Swap, Tree, join, lineage, relative_to
from parketto.storage.store import Store

# How often to empty an old tree: a further attempt is needed when an external writer has added to it meanwhile.
_EMPTYING_ATTEMPTS = 100


@dataclass(frozen=True, slots=True)
class Retired:
    """A retired file: its fingerprint, and where in the workspace it is parked."""

    fingerprint: str
    parked: str


def marker(twin: str) -> str:
    """The folder that marks that files are being removed from the old tree."""
    return f"{twin}.swapped"


def finish(
    store: Store,
    root: str,
    workspace: str,
    swap: Swap,
    published: Mapping[str, str],
    retired: Mapping[str, Retired],
) -> None:
    """Do all remaining steps after a swap, or resume them.

    A file to retire is parked if it is still the one that was listed. Otherwise it is left to the caller: it is
    gone, or another writer's replacement for it is in the new tree.

    Args:
        store: Where the dataset is.
        root: The dataset.
        workspace: The dataset's workspace.
        swap: A completed swap.
        published: The new files' fingerprints, by paths relative to the dataset.
        retired: The files to park, by paths relative to the dataset.

    Raises:
        OSError: Some steps are left. Nothing is lost; call it again.
    """
    old = f"{workspace}/{swap.twin}"
    # A tree with another identity is a copy: the whole workspace was copied.
    if swap.identity is None or store.identity(old) not in (None, swap.identity):
        return
    for parking in sorted({posixpath.dirname(f"{workspace}/{each.parked}") for each in retired.values()}):
        store.make_dirs(parking)
    tree = _OldTree(
        store,
        old,
        join(root, swap.directory),
        swap,
        {relative_to(path, swap.directory): fingerprint for path, fingerprint in published.items()},
        {
            relative_to(path, swap.directory): Retired(each.fingerprint, f"{workspace}/{each.parked}")
            for path, each in retired.items()
        },
    )
    if not store.is_dir(marker(old)):
        tree.apply_external_changes()
        # From here on, a name missing in the old tree does not mean that an external writer removed it.
        store.make_dirs(marker(old))
    for _ in range(_EMPTYING_ATTEMPTS):
        if not store.is_dir(old):
            break
        tree.empty()
    else:
        # An interrupted commit, which recovery completes, is better than removing unknown files.
        raise OSError(
            errno.ENOTEMPTY, f"{tree.new!r} has replaced it, but another process keeps writing into it", old
        )
    tree.sync()


class _OldTree:
    """The old tree after a swap. All paths of files and folders are relative to it and to the new tree."""

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

    def apply_external_changes(self) -> None:
        """Apply to the new tree what external writers did to the old one between validation and the swap."""
        current = self._seen = self._store.tree(self._old)
        added, gone = self._added_files(current), self._gone(current)
        if not (added or gone or current.keys() != self._kept.keys()) or not self._store.is_dir(self.new):
            return
        # A file renamed before the swap is added under its new name, then removed under the old one. If the new
        # tree no longer has the old name, another writer has renamed or removed the file since the swap.
        to_add = [path for path, identity in added.items() if self._is_in_place(identity)]
        self._move_new_folders(current)
        for folder in sorted(self._with_kept_files(current)):
            self._make_folder(folder)
        for path in to_add:
            self._move_to_new_tree(path)
        for path, identity in gone.items():
            if self._store.identity(f"{self.new}/{path}") == identity:
                self._touched.add(posixpath.dirname(path))
                self._store.remove(f"{self.new}/{path}")
        self._store.remove_empty_dirs(join(self.new, folder) for folder in self._kept.keys() - current.keys())

    def empty(self) -> None:
        """Move or remove all files of the old tree, and remove its folders."""
        # A file added since the listing keeps its folder from being removed; the next attempt finds it.
        current, self._seen = self._seen or self._store.tree(self._old), {}
        moved = self._move_new_folders(current) if self._store.is_dir(self.new) else set()
        left = current.keys() - moved
        for folder in left:
            for name in current[folder]:
                self._clear_file(join(folder, name))
        self._store.remove_empty_dirs(join(self._old, folder) for folder in left)

    def sync(self) -> None:
        """Sync the changed folders of the new tree to disk."""
        folders = [join(self.new, folder) for folder in sorted(self._touched)]
        self._store.sync(folder for folder in folders if self._store.is_dir(folder))

    def _added_files(self, current: Tree) -> dict[str, str]:
        """Files of the old tree that are neither kept nor retired."""
        added = {}
        for folder, files in current.items():
            kept = self._kept.get(folder, {})
            for name, identity in files.items():
                if kept.get(name) != identity and not _same_file(kept.get(name), identity):
                    path = join(folder, name)
                    if not self._is_retired(path, identity):
                        added[path] = identity
        return added

    def _gone(self, current: Tree) -> dict[str, str]:
        """Kept files that the old tree no longer has."""
        gone = {}
        for folder, files in self._kept.items():
            for name in files.keys() - current.get(folder, {}).keys():
                gone[join(folder, name)] = files[name]
        return gone

    def _is_retired(self, path: str, identity: str) -> bool:
        retired = self._retired.get(path)
        if retired is None or retired.fingerprint == identity:
            return retired is not None
        # The identity is that of a link, not of its target, and a relative link resolves only from the new tree.
        found = self._store.stat_moved(f"{self._old}/{path}", f"{self.new}/{path}")
        return found is not None and found.fingerprint == retired.fingerprint

    def _is_in_place(self, identity: str) -> bool:
        """Whether the new tree has a kept file under its original name, or the file is new."""
        path = self._kept_paths.get(identity)
        return path is None or self._store.identity(f"{self.new}/{path}") == identity

    def _with_kept_files(self, current: Tree) -> set[str]:
        """New folders that contain kept files: an external writer has renamed the files or the folders."""
        return {
            each
            for folder in current.keys() - self._kept.keys()
            if not self._kept_paths.keys().isdisjoint(current[folder].values())
            for each in lineage(folder)
            if each not in self._kept
        }

    def _move_new_folders(self, current: Tree) -> set[str]:
        """Move folders that external writers created, with their contents; returns the folders moved."""
        moved: set[str] = set()
        known = self._kept.keys() | self._with_kept_files(current)
        for folder in sorted(current):  # parents first
            if posixpath.dirname(folder) in moved:
                moved.add(folder)
            elif folder not in known and self._store.identity(f"{self.new}/{folder}") is None:
                self._make_folder(posixpath.dirname(folder))
                with contextlib.suppress(FileExistsError, FileNotFoundError):  # an external writer was faster
                    self._store.move_to_free_name(f"{self._old}/{folder}", f"{self.new}/{folder}")
                    moved.add(folder)
        return moved

    def _clear_file(self, path: str) -> None:
        """Park a file of the old tree, move it to the new tree, or remove it if the new tree already has it."""
        old = f"{self._old}/{path}"
        identity = self._store.identity(old)
        if identity is None:
            return
        folder, name = posixpath.split(path)
        if self._is_retired(path, identity):
            self._store.move(old, self._retired[path].parked)
            return
        stayed = _same_file(self._kept.get(folder, {}).get(name), identity) or self._is_elsewhere(identity)
        if stayed or not self._move_to_new_tree(path):
            with contextlib.suppress(IsADirectoryError):  # just created externally: the next attempt moves it
                self._store.remove(old)

    def _is_elsewhere(self, identity: str) -> bool:
        """Whether the new tree already has a kept file, under any name."""
        return identity in self._kept_paths and any(
            identity in files.values() for files in self._store.tree(self.new).values()
        )

    def _move_to_new_tree(self, path: str) -> bool:
        """Move a file that an external writer added from the old tree to the new one; False if that is not needed.

        It is not if another writer has since written a file of that name to the new tree: the last one wins.
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
                self._store.move(old, new)  # an external writer has replaced it
            elif found == self._published.get(path):
                self._move_beside(old, new)
            else:
                return False
        except FileExistsError:
            return False
        self._touched.add(folder)
        return True

    def _renamed(self, identity: str) -> str | None:
        """The new path of a file that external writers replaced in the old tree, then renamed in the new one."""
        if any(identity in files.values() for files in self._store.tree(self._old).values()):
            return None  # it was renamed, not replaced, and another file has its name now
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
        """Move a file under a free name, because a published file has its name."""
        stem, suffix = posixpath.splitext(new)
        for number in itertools.count(1):
            with contextlib.suppress(FileExistsError):
                self._store.move_to_free_name(old, f"{stem}-{number}{suffix}")
                return

    def _make_folder(self, folder: str) -> None:
        """Create a folder in the new tree with the attributes of the old one."""
        for each in lineage(folder):
            old, new = join(self._old, each), join(self.new, each)
            if not self._store.is_dir(new):
                self._touched.add(posixpath.dirname(each))
                with contextlib.suppress(FileExistsError):
                    if self._store.is_dir(old):
                        self._store.make_dir_like(old, new)
                    else:
                        self._store.make_dirs(new)


def _same_file(one: str | None, other: str | None) -> bool:
    """Whether two identities belong to one file, which may have been written to in between.

    As long as one of the trees has a hard link to it, no other file gets its inode number.
    """
    return one is not None and other is not None and one.partition(":")[0] == other.partition(":")[0]

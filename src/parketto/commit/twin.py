"""The twin of a directory tree: hard links to the kept and the new files, ready to replace the tree."""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from parketto.runtime.staging import StagedFile
from parketto.storage.listing import is_inside, relative
from parketto.storage.store import FileEntry, Store

logger = logging.getLogger(__name__)

# Files and folders of a tree to swap: each costs about 30 µs while other writers wait for the lock.
MAX_LINKS = 10_000
# Folders among them: each costs another 0.5 ms, because it is created, synced and removed again.
MAX_FOLDERS = 1_000

_WORKSPACE_SUFFIX = ".parketto"

#: Folders by relative paths ("" is the top), each with its files and their identities.
Tree = dict[str, dict[str, str]]


@dataclass(frozen=True, slots=True)
class Swap:
    """A directory of the dataset, its twin in the workspace, and the files linked from one into the other."""

    #: Relative to the dataset; "" is the dataset itself.
    directory: str
    #: Relative to the workspace.
    twin: str
    #: The identity of the directory before the swap; None if it does not exist yet.
    identity: str | None
    #: The identity of the twin.
    twin_identity: str
    #: Every folder of the directory (relative to it; "" is itself), with the kept files and their identities.
    kept: Tree = field(default_factory=dict)

    def check(self) -> None:
        """Raise ValueError if a path leads out of the dataset or the workspace, or is not normalized."""
        for path in (self.directory, *self.kept):
            if path:
                _check_relative(path)
        _check_relative(self.twin)
        for name in (name for names in self.kept.values() for name in names):
            if "/" in name:
                raise ValueError(f"{name!r} is not the name of a file")
            _check_relative(name)


def _check_relative(path: str) -> None:
    if "\0" in path or not {"", ".", ".."}.isdisjoint(path.split("/")):
        raise ValueError(f"{path!r} is not a normalized relative path")


def build_twin(
    store: Store,
    root: str,
    workspace: str,
    folder: str,
    publish: Iterable[StagedFile],
    retire: Iterable[FileEntry],
) -> Swap | None:
    """Build a twin of the lowest directory that contains the whole change.

    Args:
        store: Where the dataset is.
        root: The dataset.
        workspace: The dataset's workspace.
        folder: A path in the workspace that does not exist yet, to build the twin in.
        publish: The new files.
        retire: The files to leave out.

    Returns:
        What a swap and its recovery need. None if the change is a single step anyway, or if the directory
        cannot be swapped: it is too large, it contains a mount point, another workspace or a process's working
        directory, or the filesystem has no hard links.
    """
    new = {relative(file.destination, root): file.path for file in publish}
    old = {relative(entry.path, root) for entry in retire}
    if len(new) + len(old) <= 1 or not store.atomic_move:
        return None
    directory = _common_directory(store, root, {posixpath.dirname(path) for path in (*new, *old)})
    live, twin = join(root, directory), f"{folder}/tree"
    new = {relative_to(path, directory): source for path, source in new.items()}
    old = {relative_to(path, directory) for path in old}
    if is_inside(workspace, live):
        return None  # the dataset is a mount point: its workspace is inside it
    try:
        identity, kept = store.identity(live), {}
        if identity is None:
            _build_new(store, live, twin, new)
        else:
            kept = _build_changed(store, live, twin, new, old)
        twin_identity = store.identity(twin)
        assert twin_identity is not None, "the twin was just created"
    except OSError as error:
        # For example: a filesystem without hard links, no permission to set the owner, a file that just vanished.
        logger.debug("cannot prepare a swap of %s: %s", live, error)
        store.remove_tree(folder)
        return None
    return Swap(directory, relative(twin, workspace), identity, twin_identity, kept)


def join(top: str, path: str) -> str:
    """A path below a folder, or the folder itself.

    >>> join("/data", "a/b"), join("/data", ""), join("", "b")
    ('/data/a/b', '/data', 'b')
    """
    return f"{top}/{path}" if top and path else top or path


def relative_to(path: str, directory: str) -> str:
    """A path relative to a directory that contains it; both are relative to the same folder.

    >>> relative_to("day=1/a", "day=1"), relative_to("day=1/a", "")
    ('a', 'day=1/a')
    """
    return path[len(directory) + 1 :] if directory else path


def lineage(folder: str) -> list[str]:
    """A folder and its parents, outermost first.

    >>> lineage("a/b"), lineage("")
    (['', 'a', 'a/b'], [''])
    """
    parts = folder.split("/") if folder else []
    return ["/".join(parts[:end]) for end in range(len(parts) + 1)]


def _common_directory(store: Store, root: str, directories: Collection[str]) -> str:
    """The lowest common directory of the others that exists, or can be created in one step."""
    common = posixpath.commonprefix([lineage(directory) for directory in directories])[-1]
    while common and not store.is_dir(join(root, posixpath.dirname(common))):
        common = posixpath.dirname(common)
    return common


def _build_new(store: Store, live: str, twin: str, publish: Mapping[str, str]) -> None:
    """Build a tree that does not exist yet. New folders inherit the attributes of the live parent folder."""
    parent, nest = posixpath.dirname(live), posixpath.dirname(twin)
    store.make_dirs(parent)
    store.make_inheriting_dir(parent, nest)
    made = sorted({folder for path in publish for folder in lineage(posixpath.dirname(path))})
    _link_new(store, twin, made, publish)
    store.sync([*(join(twin, folder) for folder in made), nest, posixpath.dirname(nest)])


def _build_changed(
    store: Store, live: str, twin: str, publish: Mapping[str, str], retire: Collection[str]
) -> Tree:
    """Build the twin of an existing tree; returns the kept files."""
    tree = store.tree(live, MAX_LINKS)
    _check_tree(tree, publish, retire)
    nest = posixpath.dirname(twin)
    problem = store.swap_problem(live, tree) or store.writable_problem(
        posixpath.dirname(live), posixpath.dirname(nest)
    )
    if problem is not None:
        raise OSError(problem)
    kept = without(tree, retire)
    folders = _folders_after(tree, kept, publish)
    store.make_dirs(nest)
    for folder in folders:
        if folder in tree:
            store.make_dir_like(join(live, folder), join(twin, folder))
            for name in kept[folder]:
                path = join(folder, name)
                store.link(f"{live}/{path}", f"{twin}/{path}")
    _link_new(store, twin, [folder for folder in folders if folder not in tree], publish)
    store.sync([*(join(twin, folder) for folder in folders), nest, posixpath.dirname(nest)])
    return kept


def _link_new(store: Store, twin: str, folders: Iterable[str], publish: Mapping[str, str]) -> None:
    for folder in folders:
        store.make_dirs(join(twin, folder))
    for path, source in publish.items():
        store.link(source, f"{twin}/{path}")


def _check_tree(tree: Tree, publish: Collection[str], retire: Collection[str]) -> None:
    """Refuse a tree that a twin cannot represent, or that would take too long."""
    if len(tree) > MAX_FOLDERS:
        raise OSError(f"it has more than {MAX_FOLDERS} folders")
    for folder in tree:
        name = posixpath.basename(folder)
        if name.startswith(".") and name.endswith(_WORKSPACE_SUFFIX):
            # A partition is used as a dataset: hard links to its lock files would not lock anything.
            raise OSError(f"it contains the workspace {folder!r}")
    for path in retire:
        folder, name = posixpath.split(path)
        if name not in tree.get(folder, ()):
            raise OSError(f"{path!r} is gone, or behind a symbolic link")
    for path in publish:
        for folder in lineage(posixpath.dirname(path)):
            parent, name = posixpath.split(folder)
            if folder not in tree and name in tree.get(parent, ()):
                raise OSError(f"{folder!r} is a symbolic link or a file")


def _folders_after(tree: Tree, kept: Tree, publish: Iterable[str]) -> list[str]:
    """The folders of the twin, parents first.

    Folders that become empty, because all of their files are retired, are left out; those empty before are kept.
    """
    with_folders = {posixpath.dirname(folder) for folder in tree if folder}
    filled = {folder for folder, files in kept.items() if files}
    empty = {folder for folder, files in tree.items() if not files and folder not in with_folders}
    needed = {"", *filled, *empty, *map(posixpath.dirname, publish)}
    return sorted({folder for each in needed for folder in lineage(each)})


def without(tree: Tree, retired: Collection[str]) -> Tree:
    """A tree without some files."""
    return {
        folder: {name: identity for name, identity in files.items() if join(folder, name) not in retired}
        for folder, files in tree.items()
    }

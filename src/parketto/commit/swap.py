"""Swapping a directory tree: readers find the old files or the new ones, never both and never neither.

A twin of the lowest directory that contains the whole change is built in the workspace, from hard links
(`commit/twin.py`). If the directory is unchanged since then, one call swaps the two. Otherwise, or if the
filesystem cannot swap, files are moved one by one. What external writers did to the old tree just before the swap,
or do after it, is applied to the new tree (`commit/external_changes.py`).

A swap only affects what readers see. The record describes the same change as single steps, which recovery can
always take: without a swap the outcome is the same.

The interface: `build_twin` before the record is created, `exchange` after it. Once `is_swapped`, only `finish` is
left, as often as necessary. All paths in a `Swap` are relative.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Collection

from parketto.commit.external_changes import Retired, finish, marker
from parketto.commit.twin import MAX_FOLDERS, MAX_LINKS, Swap, build_twin, join, relative_to, without
from parketto.storage.store import Store

__all__ = [
    "MAX_FOLDERS",
    "MAX_LINKS",
    "Retired",
    "Swap",
    "build_twin",
    "exchange",
    "finish",
    "is_swapped",
    "path_in_old_tree",
]

logger = logging.getLogger(__name__)


def exchange(store: Store, root: str, workspace: str, swap: Swap, retired: Collection[str]) -> bool:
    """Swap the directory with its twin, if it is unchanged since; returns whether it was swapped.

    Args:
        store: Where the dataset is.
        root: The dataset.
        workspace: The dataset's workspace.
        swap: The result of `build_twin`.
        retired: The paths, relative to the dataset, of the files that the twin does not contain.
    """
    live, twin = join(root, swap.directory), f"{workspace}/{swap.twin}"
    try:
        if store.identity(twin) != swap.twin_identity:
            return False
        if swap.identity is None:
            store.move_to_free_name(twin, live)
        else:
            if not _is_unchanged(store, live, swap, retired):
                return False
            store.swap(live, twin)
    except OSError as error:
        logger.debug("cannot swap %s: %s", live, error)
        return False
    store.sync([posixpath.dirname(live) or "/", posixpath.dirname(twin)])
    return True


def is_swapped(store: Store, workspace: str, swap: Swap) -> bool:
    """Whether the twin has replaced the directory; then the old tree is, or was, at the twin's path."""
    twin = f"{workspace}/{swap.twin}"
    if swap.identity is None:
        return store.identity(twin) is None and store.is_dir(posixpath.dirname(twin))
    return store.identity(twin) == swap.identity or store.is_dir(marker(twin))


def path_in_old_tree(workspace: str, swap: Swap, path: str) -> str:
    """The path of a retired file (given relative to the dataset) between the swap and its parking."""
    return f"{workspace}/{swap.twin}/{relative_to(path, swap.directory)}"


def _is_unchanged(store: Store, live: str, swap: Swap, retired: Collection[str]) -> bool:
    """Whether the directory can be swapped, and has the same files as when its twin was built."""
    if store.identity(live) != swap.identity or store.swap_problem(live, swap.kept) is not None:
        return False
    gone = {relative_to(path, swap.directory) for path in retired}
    return without(store.tree(live), gone) == swap.kept

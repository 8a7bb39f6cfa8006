"""Swapping a directory tree: readers find the old files or the new ones, never both and never neither.

A twin of the lowest directory that holds the whole change is built in the workspace, out of hard links
(`commit/twin.py`). If the directory is still as it was when the twin was built, one call swaps the two; otherwise,
or if the filesystem cannot, files are moved singly. What strangers did to the old tree in the last instant before
the swap, or do to it after, is carried over (`commit/carry_over.py`).

This is only about what readers see. The record describes the same change as single steps, and recovery can
always take those: a swap that did not happen changes nothing about the outcome.

The whole interface: `build_twin` before the record is made, `exchange` after it. Once `is_swapped`, nothing is
left to do but to `finish`, as often as it takes. All paths in a `Swap` are relative.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Collection

from parketto.commit.carry_over import Retired, finish, marker
from parketto.commit.twin import MAX_FOLDERS, MAX_LINKS, Swap, below, build_twin, join, without
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
    """Swap the directory for its twin, if nobody has touched it since; whether that happened.

    Args:
        store: Where the dataset is.
        root: The dataset.
        workspace: The dataset's workspace.
        swap: What `build_twin` has returned.
        retired: The paths, relative to the dataset, of the files that the twin has no more.
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
        logger.debug("%s is not swapped: %s", live, error)
        return False
    store.sync([posixpath.dirname(live) or "/", posixpath.dirname(twin)])
    return True


def is_swapped(store: Store, workspace: str, swap: Swap) -> bool:
    """Whether the twin has taken the directory's place; then the old tree is, or was, where the twin has been."""
    twin = f"{workspace}/{swap.twin}"
    if swap.identity is None:
        return store.identity(twin) is None and store.is_dir(posixpath.dirname(twin))
    return store.identity(twin) == swap.identity or store.is_dir(marker(twin))


def path_in_old_tree(workspace: str, swap: Swap, path: str) -> str:
    """Where a retired file (by its path relative to the dataset) is after the swap, until it is parked."""
    return f"{workspace}/{swap.twin}/{below(path, swap.directory)}"


def _is_unchanged(store: Store, live: str, swap: Swap, retired: Collection[str]) -> bool:
    """Whether the directory can be swapped, and holds what it held when its twin was built."""
    if store.identity(live) != swap.identity or store.swap_problem(live, swap.kept) is not None:
        return False
    gone = {below(path, swap.directory) for path in retired}
    return without(store.tree(live), gone) == swap.kept

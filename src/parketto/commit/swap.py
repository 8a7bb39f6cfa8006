"""Swapping a directory: readers of it see the old files or the new ones, never both and never neither.

A twin of the directory is built in the workspace, out of hard links: what stays, and what is new. One call
swaps the two. Whatever strangers did to the directory between the building and the swap is then carried over:
the files they added, replaced or removed.

This is only about what readers see. The journal describes the same change as single steps, and recovery takes
those: a swap that did not happen, or cannot, changes nothing about the outcome.
"""

from __future__ import annotations

import logging
import posixpath
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from parketto.engines.base import StagedFile
from parketto.storage.store import FileEntry, Store

logger = logging.getLogger(__name__)

# Linking more files than this would keep everybody waiting for longer than single renames take.
_MAX_LINKS = 20_000
_REFRESHES = 3


@dataclass(frozen=True, slots=True)
class Swap:
    """A directory of the dataset, its twin in the workspace, and what was linked from one into the other."""

    directory: str
    twin: str
    #: The directory's own identity: while it has this one, it has not been swapped.
    identity: str
    #: Names and identities of the files that both have.
    kept: dict[str, str] = field(default_factory=dict)


def build_twins(
    store: Store, folder: str, publish: Iterable[StagedFile], retire: Iterable[FileEntry]
) -> list[Swap]:
    """Twins, below a folder, of the directories in which a reader could otherwise see half of the change."""
    new: defaultdict[str, list[StagedFile]] = defaultdict(list)
    for file in publish:
        new[posixpath.dirname(file.destination)].append(file)
    old: defaultdict[str, set[str]] = defaultdict(set)
    for entry in retire:
        old[posixpath.dirname(entry.path)].add(posixpath.basename(entry.path))
    twins: list[Swap] = []
    for directory in sorted(store.swappable(d for d, gone in old.items() if len(gone) + len(new[d]) > 1)):
        twin = f"{folder}/{len(twins)}"
        kept = _build_twin(store, directory, twin, new[directory], old[directory])
        if kept is not None:
            twins.append(Swap(directory, twin, store.identity(directory), kept))
    return twins


def _build_twin(
    store: Store, directory: str, twin: str, publish: Iterable[StagedFile], retired: set[str]
) -> dict[str, str] | None:
    """Build one twin; returns what it keeps, or None if this directory cannot be swapped after all."""
    kept = {name: inode for name, inode in store.identities(directory).items() if name not in retired}
    if len(kept) > _MAX_LINKS:
        return None
    try:
        store.make_twin(directory, twin)
        for name in kept:
            store.link(f"{directory}/{name}", f"{twin}/{name}")
        for file in publish:
            store.link(file.path, f"{twin}/{posixpath.basename(file.destination)}")
        store.sync([twin])
    except OSError as error:
        # No hard links on this filesystem, no right to give the twin its owner, a file that vanished just now.
        logger.debug("%s will not be swapped: %s", directory, error)
        store.remove_tree(twin)
        return None
    return kept


def refresh_twin(
    store: Store, directory: str, twin: str, kept: dict[str, str], retired: set[str]
) -> dict[str, str]:
    """Bring a twin up to date, right before the swap; returns what it keeps now.

    Much can happen to a directory while a journal is synced to disk. Above all, who writes under another name and
    renames at the end must find that name on either side of the swap.
    """
    for _ in range(_REFRESHES):
        current = {name: inode for name, inode in store.identities(directory).items() if name not in retired}
        if current == kept:
            break
        for name in kept.keys() - current.keys():
            store.remove(f"{twin}/{name}")
        for name, identity in current.items():
            if kept.get(name) != identity:
                store.remove(f"{twin}/{name}")
                store.link(f"{directory}/{name}", f"{twin}/{name}")
        kept = current
    return kept


def carry_over(store: Store, directory: str, twin: str, kept: dict[str, str], parked: Iterable[str]) -> None:
    """After a swap the twin is the old directory: bring what strangers did to it into the new one."""
    old, new = store.identities(twin), store.identities(directory)
    known = {*new.values()}  # also under another name: then its owner has renamed it since
    parked = set(parked)
    for name, identity in old.items():
        if name in parked or kept.get(name) == identity or identity in known:
            continue
        if new.get(name) == kept.get(name):  # absent in both, or not replaced again since
            store.move(f"{twin}/{name}", f"{directory}/{name}")
    for name, identity in kept.items():
        if name not in old and new.get(name) == identity:
            store.remove(f"{directory}/{name}")

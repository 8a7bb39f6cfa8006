"""Swapping a directory: readers of it see the old files or the new ones, never both and never neither.

A twin of the directory is built in the workspace, out of hard links: what stays, and what is new. If nobody has
touched the directory meanwhile, one call swaps the two; if somebody has, files are moved singly, as elsewhere.
What strangers did in the last instant before the swap is carried over.

This is only about what readers see. The journal describes the same change as single steps, and recovery takes
those: a swap that did not happen, or cannot, changes nothing about the outcome.
"""

from __future__ import annotations

import logging
import posixpath
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from parketto.kernels.work import StagedFile
from parketto.storage.store import FileEntry, Store

logger = logging.getLogger(__name__)

# Linking more files than this would keep everybody waiting for longer than single renames take.
_MAX_LINKS = 20_000


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
        swap = _build_twin(store, directory, twin, new[directory], old[directory])
        if swap is not None:
            twins.append(swap)
    return twins


def _build_twin(
    store: Store, directory: str, twin: str, publish: Iterable[StagedFile], retired: set[str]
) -> Swap | None:
    """Build one twin, or return None if this directory cannot be swapped after all."""
    try:
        identity = store.identity(directory)
        kept = store.identities(directory, but=retired)
        if len(kept) > _MAX_LINKS:
            return None
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
    return Swap(directory, twin, identity, kept)


def is_quiet(store: Store, directory: str, kept: dict[str, str], retired: set[str]) -> bool:
    """Whether nobody has touched the directory since its twin was built; else single steps are the better way."""
    return store.identities(directory, but=retired) == kept


def carry_over(
    store: Store, directory: str, twin: str, kept: dict[str, str], old: dict[str, str], parked: set[str]
) -> None:
    """After a swap the twin is the old directory: bring what strangers did to it at the last instant over.

    Taking these steps again changes nothing.

    Args:
        store: Where the dataset is.
        directory: The new directory, in its place.
        twin: The old one, in the workspace.
        kept: Names and identities of the files that both had.
        old: What is in the old directory.
        parked: The names of those files there that are retired.
    """
    new = store.identities(directory)
    arrived = {found: name for name, found in old.items() if name not in parked and kept.get(name) != found}
    for name, identity in kept.items():
        if name not in old and new.get(name) == identity:
            renamed = arrived.get(identity)
            if renamed is not None and renamed not in new:
                store.move(f"{directory}/{name}", f"{directory}/{renamed}")
            else:
                store.remove(f"{directory}/{name}")
    move_arrived(store, directory, twin, kept, {name: found for found, name in arrived.items()})


def move_arrived(store: Store, directory: str, twin: str, kept: dict[str, str], old: dict[str, str]) -> None:
    """Move what has arrived in the old directory to the new one, unless it is there already."""
    new = store.identities(directory)
    here = {*new.values()}
    for name, identity in old.items():
        known = kept.get(name)
        if identity not in here and identity != known and new.get(name) in (None, known):
            store.move(f"{twin}/{name}", f"{directory}/{name}")

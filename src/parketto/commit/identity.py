"""The identity of a dataset, beyond its path, so that no commit is ever applied to another dataset.

On a disk, a dataset is identified by its folder's inode number and birth time: they stay when it is moved, and
differ for a copy or a recreated folder. An object store has no folders. There the first commit writes a small
hidden marker into the dataset, which moves with its files. Concurrent first commits may write several markers, so
any of them identifies the dataset.
"""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Iterable

from parketto.commit.record import Record
from parketto.storage.store import FileEntry, Store

_MARKER = ".parketto-"
_IN_THIS_PROCESS = "this process"


def identity_of(store: Store, root: str, listed: Iterable[FileEntry] | None = None) -> frozenset[str]:
    """The identity of the dataset at a path; empty if it has none yet.

    Args:
        store: Where it is.
        root: Its path.
        listed: All files below the path, if the caller has listed them.
    """
    if store.is_local_disk:
        birth = store.birth(root)
        return frozenset() if birth is None else frozenset({birth})
    if not store.shared:
        return frozenset({_IN_THIS_PROCESS})
    names = store.list_names(root) if listed is None else [_name_in(entry.path, root) for entry in listed]
    return frozenset(name for name in names if name.startswith(_MARKER))


def mark(store: Store, root: str) -> str:
    """Create the identity of a dataset that has none yet, and return it."""
    store.make_dirs(root)
    if store.is_local_disk:
        found = store.birth(root)
        assert found is not None, "the folder was just created"
        return found
    name = f"{_MARKER}{uuid.uuid4().hex}"
    store.write(f"{root}/{name}", b"")  # some readers, such as Polars, skip hidden files only if they are empty
    return name


def is_same(store: Store, root: str, record: Record) -> bool:
    """Whether the dataset at the path is that of a record, before or after its commit."""
    if store.shared and not store.is_local_disk:
        return bool(store.stat_many([f"{root}/{name}" for name in record.dataset]))
    own = identity_of(store, root)
    if not own:  # does not exist yet: a swap creates it
        return record.swap is not None and record.swap.directory == "" and record.swap.identity is None
    return not own.isdisjoint(record.dataset)


def _name_in(path: str, root: str) -> str:
    """The name of a file that is directly inside a folder; else empty."""
    folder, name = posixpath.split(path)
    return name if folder == root else ""

"""Which dataset it is: more than its name, so that no commit is ever carried out on another one.

On a disk a dataset is known by its folder's inode number and time of birth: they stay when it is moved, and differ
for a copy or a folder that was made anew. An object store has no folders. There the first commit puts a small
hidden object into the dataset, which goes wherever its files go. First commits of several writers at once may put
several there, so any of them will do.
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
    """What the dataset at a path is known by; nothing if there is none yet.

    Args:
        store: Where it is.
        root: Its path.
        listed: All files below the path, if the caller has listed them.
    """
    if store.keeps_birth:
        birth = store.birth(root)
        return frozenset() if birth is None else frozenset({birth})
    if not store.shared:
        return frozenset({_IN_THIS_PROCESS})
    names = store.list_names(root) if listed is None else [_name_in(entry.path, root) for entry in listed]
    return frozenset(name for name in names if name.startswith(_MARKER))


def mark(store: Store, root: str) -> str:
    """Give a dataset that has none yet something to be known by."""
    store.make_dirs(root)
    if store.keeps_birth:
        found = store.birth(root)
        assert found is not None, "it was made just now"
        return found
    name = f"{_MARKER}{uuid.uuid4().hex}"
    store.write(f"{root}/{name}", b"")  # some readers, such as Polars, skip hidden files only if they are empty
    return name


def is_same(store: Store, root: str, record: Record) -> bool:
    """Whether the dataset at the path is the one that a record is about, before its commit or after it."""
    if store.shared and not store.keeps_birth:
        return bool(store.stat_many([f"{root}/{name}" for name in record.dataset]))
    own = identity_of(store, root)
    if not own:  # not there yet: a swap puts it there
        return record.swap is not None and record.swap.directory == "" and record.swap.identity is None
    return not own.isdisjoint(record.dataset)


def _name_in(path: str, root: str) -> str:
    """The name of a file that is directly inside of a folder; else nothing."""
    folder, name = posixpath.split(path)
    return name if folder == root else ""

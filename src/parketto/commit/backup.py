"""Backups: copies of the files that an operation retires, with a manifest for restoring them.

<backups>/20251126T101500-delete-5f0c…/
manifest.json     written last: a folder without one is not a backup
files/…           the retired files, by their paths in the dataset
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import posixpath
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from parketto.commit.record import check_relative
from parketto.errors import CommitConflict, InvalidArgument, quoted
from parketto.runtime.staging import StagedFile
from parketto.storage.listing import relative
from parketto.storage.store import FileEntry, Store

_FORMAT = "parketto backup, version 1"
_MANIFEST = "manifest.json"
_FILES = "files"
_TAIL_BYTES = 4096  # hashed to identify a file: rewriting a Parquet file changes its footer, at the end
_SHOWN_BACKUPS = 5  # of a folder that an error message lists
_COPY_BYTES = 8 * 1024 * 1024  # buffer size for copies between filesystems


@dataclass(frozen=True)
class KnownFile:
    """A file's path in the dataset, and what distinguishes it from a later file of the same name."""

    path: str
    size_bytes: int
    tail: str

    @classmethod
    def of(cls, store: Store, entry: FileEntry, path: str) -> KnownFile:
        """The current state of a file."""
        tail = store.read_range(entry.path, max(0, entry.size_bytes - _TAIL_BYTES), entry.size_bytes)
        return cls(path, entry.size_bytes, hashlib.sha256(tail).hexdigest())


@dataclass(frozen=True)
class Manifest:
    """The files that an operation retired, and those it published instead."""

    operation: str
    created: str
    dataset: str
    retired: tuple[KnownFile, ...]
    published: tuple[KnownFile, ...]

    def to_bytes(self) -> bytes:
        """Serialize the manifest as JSON."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, indent=1, ensure_ascii=False).encode()

    @classmethod
    def from_bytes(cls, content: bytes, path: str) -> Manifest:
        """Parse a manifest; raises InvalidArgument if it is invalid."""
        try:
            found: Any = json.loads(content)
        except ValueError as error:
            raise _invalid(path, error) from error
        if not isinstance(found, dict):
            raise _invalid(path, "it is not a JSON object")
        if (form := found.pop("format", None)) != _FORMAT:
            raise _invalid(path, f"its format is {form!r}, not {_FORMAT!r}")
        try:
            retired, published = (
                tuple(KnownFile(**each) for each in found.pop(name)) for name in ("retired", "published")
            )
            for file in (*retired, *published):
                check_relative(file.path)
            return cls(**found, retired=retired, published=published)
        except KeyError as error:
            raise _invalid(path, f"it has no {error}") from error
        except (ValueError, TypeError, AttributeError) as error:
            raise _invalid(path, error) from error


def _invalid(path: str, reason: object) -> InvalidArgument:
    return InvalidArgument(f"{path!r} is not a valid backup manifest: {reason}. Nothing was changed")


class Backup:
    """A backup in progress: first the copies, then, once all names are known, the manifest.

    Args:
        store: Where backups are kept; not necessarily where the dataset is.
        directory: The folder of all backups.
        operation: The operation that retires the files.
        as_url: Whether to identify the backup by its URL, because it is on another filesystem.
    """

    def __init__(self, store: Store, directory: str, operation: str, *, as_url: bool = False) -> None:
        self._store, self._operation, self._as_url = store, operation, as_url
        self._now = dt.datetime.now(dt.UTC)
        self.path = f"{directory}/{self._now.strftime('%Y%m%dT%H%M%S')}-{operation}-{uuid.uuid4().hex[:8]}"
        self._retired: tuple[KnownFile, ...] = ()

    @property
    def name(self) -> str:
        """The path or URL of the backup, for callers."""
        return str(self._store.fs.unstrip_protocol(self.path)) if self._as_url else self.path

    def preserve(self, dataset: Store, root: str, retired: Sequence[FileEntry]) -> None:
        """Copy the files that will be retired."""
        known = []
        for entry in retired:
            path = relative(entry.path, root)
            known.append(KnownFile.of(dataset, entry, path))
            transfer(dataset, entry.path, self._store, f"{self.path}/{_FILES}/{path}")
        self._retired = tuple(known)
        folders = {posixpath.dirname(f"{self.path}/{_FILES}/{each.path}") for each in known}
        copies = [f"{self.path}/{_FILES}/{each.path}" for each in known]
        self._store.sync([*copies, *sorted(folders), self.path])

    def seal(self, dataset: Store, root: str, publish: Sequence[StagedFile]) -> None:
        """Write the manifest, with the files that replace the retired ones. This completes the backup."""
        staged = dataset.stat_many([file.path for file in publish])
        published = tuple(
            KnownFile.of(dataset, staged[file.path], relative(file.destination, root)) for file in publish
        )
        manifest = Manifest(self._operation, self._now.isoformat(), root, self._retired, published)
        self._store.make_dirs(self.path)
        self._store.write(f"{self.path}/{_MANIFEST}", manifest.to_bytes())
        self._store.sync([self.path])

    def discard(self) -> None:
        """Remove the backup, because the operation was not committed."""
        self._store.remove_tree(self.path)


def read_manifest(store: Store, path: str) -> Manifest:
    """The manifest of a backup.

    Raises:
        InvalidArgument: There is none. If the folder contains backups, the message lists the last ones.
    """
    location = f"{path}/{_MANIFEST}"
    try:
        return Manifest.from_bytes(store.read(location), location)
    except FileNotFoundError as error:
        folders = [f"{path}/{name}" for name in sorted(store.list_dirs(path))]
        complete = store.stat_many([f"{folder}/{_MANIFEST}" for folder in folders])
        backups = [store.url(folder) for folder in folders if f"{folder}/{_MANIFEST}" in complete]
        which = f"the folder of {len(backups):,} backups; pass one of them: " if len(backups) > 1 else ""
        which = "the folder of one; pass " if len(backups) == 1 else which
        more = "…, " if len(backups) > _SHOWN_BACKUPS else ""
        listed = f", but {which}{more}{quoted(backups[-_SHOWN_BACKUPS:])}" if backups else ""
        raise InvalidArgument(f"{path!r} is not a backup: it has no {_MANIFEST}{listed}") from error


def kept_file(path: str, file: KnownFile) -> str:
    """The path of a file in a backup."""
    return f"{path}/{_FILES}/{file.path}"


def check_known(store: Store, root: str, files: Sequence[KnownFile]) -> list[FileEntry]:
    """The current entries of the files; raises CommitConflict if one is gone or has changed."""
    found = store.stat_many([f"{root}/{file.path}" for file in files])
    for file in files:
        entry = found.get(f"{root}/{file.path}")
        if entry is None or KnownFile.of(store, entry, file.path) != file:
            how = "is gone" if entry is None else "has changed"
            raise CommitConflict(
                f"{file.path!r}, which the operation had written, {how}. Restoring the backup would undo later "
                "changes; restore later backups first. Nothing was changed"
            )
    return [found[f"{root}/{file.path}"] for file in files]


def transfer(source: Store, path: str, target: Store, destination: str) -> None:
    """Copy a file, possibly to another filesystem."""
    target.make_dirs(posixpath.dirname(destination))
    if source.same_files(target):
        source.copy(path, destination)
        return
    with source.open_input(path) as reader, target.open_output(destination) as writer:
        shutil.copyfileobj(reader, writer, _COPY_BYTES)

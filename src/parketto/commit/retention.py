"""Kept files: what commits have retired, for readers that hold a snapshot, and as the base of an undo.

    kept/
        7-1763542800-<id>/    what commit 7 has retired; may be removed after that time (Unix seconds)
            0, 1, ...         the files, in the order of the record
            manifest.json     what they are; a folder without one does not count

A manifest says all that is needed later, because records are folded after some time. It is there before the first
file leaves the dataset. Where files can be moved, a retired file is moved right into its folder; elsewhere it is
copied before it is deleted. See docs/internals/commit.md, "Retention".
"""

from __future__ import annotations

import datetime as dt
import logging
import math
import posixpath
import re
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from parketto.commit.record import KEPT, Publication, Record, check_relative, sealed, unsealed, unusable
from parketto.commit.twin import relative_to
from parketto.errors import CommitStateUnknown, InvalidArgument
from parketto.storage.store import FileEntry, Store

logger = logging.getLogger(__name__)

_FORMAT = "parketto kept files, version 1"
MANIFEST = "manifest.json"
_NAME = re.compile(r"(?P<number>[0-9]+)-(?P<until>[0-9]+)-(?P<id>[^/]+)")

#: Operations that only move rows to other files: an undo has little use, but readers must be able to finish.
MOVING_ROWS = frozenset({"compact", "optimize", "repartition", "unify_schema"})
GRACE_SECONDS = 15 * 60.0
RETENTION_SECONDS = 24 * 3600.0
# The rows are in another dataset, and the next commit, which would remove the files, may never come.
_NEVER_KEPT = frozenset({"delete-source"})


def check_retention(retention: Any, name: str = "retention") -> float | None:
    """Validate a retention time, or another one of that name; returns its seconds."""
    if retention is None:
        return None
    seconds = retention.total_seconds() if isinstance(retention, dt.timedelta) else retention
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
        raise InvalidArgument(
            f"{name} must be None, a timedelta, or a number of seconds of at least 0, got {retention!r}"
        )
    return float(seconds)


def retention_seconds(operation: str, retention: float | None = None) -> float:
    """How long the files that an operation retires are kept, by a setting or by default.

    >>> retention_seconds("compact"), retention_seconds("delete"), retention_seconds("delete", 60.0)
    (900.0, 86400.0, 60.0)
    """
    if operation in _NEVER_KEPT:
        return 0.0
    if retention is not None:
        return retention
    return GRACE_SECONDS if operation in MOVING_ROWS else RETENTION_SECONDS


def unix_time() -> float:
    """The time that decides what is expired, in seconds since the epoch."""
    return time.time()


def kept_until(seconds: float) -> int:
    """The time until which a commit of now keeps its files."""
    return math.ceil(unix_time() + seconds)


def kept_folder(number: int, until: int, identity: str) -> str:
    """The folder for the retired files of a commit, relative to the workspace."""
    return f"{KEPT}/{number}-{until}-{identity}"


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A retired file: its path in the dataset, its fingerprint there, and its name in the folder."""

    path: str
    fingerprint: str
    size_bytes: int
    name: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The retired files of a commit, and the commit itself: without its record, which may be folded.

    Attributes:
        folder: Where the files are, relative to the workspace.
        dataset: The identities of the dataset, before and after the commit.
        published: The files that replaced them.
        old_tree: After a swap, a directory of the dataset and where in the workspace its old tree is: files are
            there until they are parked.
    """

    folder: str
    number: int
    id: str
    operation: str
    at: str
    kept_until: int
    dataset: tuple[str, ...]
    files: tuple[KeptFile, ...]
    published: tuple[Publication, ...]
    old_tree: tuple[str, str] | None = None

    @classmethod
    def of(cls, record: Record, paths: Collection[str] | None = None) -> Manifest:
        """The manifest of a record that keeps its files, or only those of some paths."""
        assert record.kept is not None, "the record keeps its files"
        assert record.kept_until is not None, "the record keeps its files"
        match = _NAME.fullmatch(posixpath.basename(record.kept))
        assert match is not None, "the record was checked"
        files = tuple(
            KeptFile(old.path, old.fingerprint, old.size_bytes, posixpath.basename(old.parked))
            for old in record.retire
            if paths is None or old.path in paths
        )
        swap = None if record.swap is None else (record.swap.directory, record.swap.twin)
        return cls(
            record.kept,
            int(match["number"]),
            record.id,
            record.operation,
            record.at,
            record.kept_until,
            record.dataset,
            files,
            record.publish,
            swap,
        )

    def to_bytes(self) -> bytes:
        """Serialize as JSON with a checksum."""
        return sealed({"format": _FORMAT} | {name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def from_bytes(cls, content: bytes, path: str) -> Manifest:
        """Parse a manifest; raises CommitStateUnknown if it is damaged, or leads out of its folder."""
        found = unsealed(content, path)
        if found.pop("format", None) != _FORMAT:
            raise unusable(path, "another version of Parketto wrote it; use that version")
        try:
            manifest = cls(
                **found
                | {
                    "dataset": tuple(found["dataset"]),
                    "files": tuple(KeptFile(**each) for each in found["files"]),
                    "published": tuple(Publication(**each) for each in found["published"]),
                    "old_tree": found["old_tree"] and tuple(found["old_tree"]),
                }
            )
            for file in manifest.files:
                check_relative(file.path)
                check_relative(file.name)
        except (TypeError, KeyError, ValueError) as error:
            raise unusable(path, f"its content is invalid ({error})") from error
        return manifest


@dataclass(frozen=True)
class KeptFiles:
    """The kept files of one dataset. It can be pickled, and needs only a store and the path of the workspace."""

    store: Store
    workspace: str
    # Manifests never change.
    _known: dict[str, Manifest] = field(default_factory=dict, repr=False, compare=False)

    def find(self, path: str, fingerprint: str) -> FileEntry | None:
        """Where a retired file is now; None if it is not kept, or no longer.

        It may be moved once more, while its commit is in progress: if it is gone when it is opened, look again.

        Args:
            path: Its path in the dataset, relative to it.
            fingerprint: Its fingerprint there, as in a listing.
        """
        for manifest in self.manifests():
            for file in manifest.files:
                if (file.path, file.fingerprint) == (path, fingerprint):
                    return self._locate(manifest, file)
        return None

    def places(self) -> dict[tuple[str, str], FileEntry]:
        """Where all kept files are, by their paths in the dataset and their fingerprints there.

        Only for commits that are settled: while one is in progress, its files may be elsewhere.
        """
        return {
            (file.path, file.fingerprint): FileEntry(
                f"{self.workspace}/{manifest.folder}/{file.name}",
                file.size_bytes,
                file.fingerprint if self.store.atomic_move else "",  # a copy has another one
            )
            for manifest in self.manifests()
            for file in manifest.files
        }

    def manifests(self) -> Iterator[Manifest]:
        """What is kept, the last commit first: readers mostly look for files that were just retired."""
        found = [match for name in self.store.list_dirs(self._folder) if (match := _NAME.fullmatch(name))]
        for match in sorted(found, key=lambda match: int(match["number"]), reverse=True):
            if (manifest := self.manifest(match[0])) is not None:
                yield manifest

    def remove_expired(self, trash: str | None = None) -> int:
        """Remove the files that need not be kept any longer; returns the number of commits concerned.

        Where files are moved, an interrupted commit can need its retired files again, whatever their age. There
        the caller holds the lock, and all commits are settled.

        Args:
            trash: A folder that the caller removes later, without the lock. Files that can be moved go there.
        """
        names = self.expired()
        for name in names:
            folder = f"{self._folder}/{name}"
            if trash is not None and self.store.atomic_move:
                self.store.move(folder, f"{trash}/{name}")
            else:
                remove_kept(self.store, folder)
        if names:
            self.store.remove_empty_dir(self._folder)
            logger.debug("%s: no longer kept: %s", self.workspace, ", ".join(names))
        return len(names)

    def expired(self) -> list[str]:
        """The names of the folders that may be removed, from one listing."""
        now = unix_time()
        found = map(_NAME.fullmatch, self.store.list_dirs(self._folder))
        return [match[0] for match in found if match is not None and int(match["until"]) <= now]

    def older_than(self, seconds: float) -> list[str]:
        """The names of the folders whose files were retired that long ago; without a manifest, expired ones."""
        since, expired = unix_time() - seconds, self.expired()
        return [
            name
            for name in self.names()
            if (
                name in expired
                if (manifest := self.manifest(name)) is None
                else dt.datetime.fromisoformat(manifest.at).timestamp() <= since
            )
        ]

    def names(self) -> dict[str, int]:
        """The names of all folders, with the numbers of their commits."""
        found = map(_NAME.fullmatch, self.store.list_dirs(self._folder))
        return {match[0]: int(match["number"]) for match in found if match is not None}

    def remove(self, names: Iterable[str]) -> None:
        """Remove folders, of commits that are settled."""
        for name in names:
            remove_kept(self.store, f"{self._folder}/{name}")
        self.store.remove_empty_dir(self._folder)

    @property
    def _folder(self) -> str:
        return f"{self.workspace}/{KEPT}"

    def manifest(self, name: str) -> Manifest | None:
        """The manifest of a folder; None if it has none, or a damaged one."""
        if name not in self._known:
            path = f"{self._folder}/{name}/{MANIFEST}"
            try:
                self._known[name] = Manifest.from_bytes(self.store.read(path), path)
            except FileNotFoundError:
                return None
            except CommitStateUnknown as error:
                logger.warning("%s", error)
                return None
        return self._known[name]

    def _locate(self, manifest: Manifest, file: KeptFile) -> FileEntry | None:
        own = f"{self.workspace}/{manifest.folder}/{file.name}"
        places = [own]
        if manifest.old_tree is not None:
            directory, tree = manifest.old_tree
            # Between a swap and its parking it is in the old tree; it may be parked right after that look.
            places += [f"{self.workspace}/{tree}/{relative_to(file.path, directory)}", own]
        for place in places:
            entry = self.store.stat(place)
            # A copy has another fingerprint.
            if (
                entry is not None
                and entry.size_bytes == file.size_bytes
                and (not self.store.atomic_move or entry.fingerprint == file.fingerprint)
            ):
                return entry
        return None


def remove_kept(store: Store, folder: str) -> None:
    """Remove a folder of kept files. Its manifest goes first: what is left after a crash does not count."""
    store.remove(f"{folder}/{MANIFEST}")
    store.remove_tree(folder)

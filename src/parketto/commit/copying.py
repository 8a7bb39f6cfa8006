"""Apply a record where files cannot be moved: copy the staged files, then delete the originals.

Without locks, several processes may apply one record at once. The order makes that safe: publish all, retire all,
remove the staged files, and only then settle the commit. So a copy that starts too late finds nothing to copy.
Then everything is retired as well: the late process must not retire again, because later commits may have brought
files of the same names back.

Files to keep are copied first, so that old and new files are visible together no longer than without that. Their
manifest is created exclusively before the first of them is deleted: a process that comes later, and finds some of
them gone, does not change it.
"""

from __future__ import annotations

import contextlib
import logging
import posixpath
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from parketto.commit.record import Publication, Record, Retirement
from parketto.commit.retention import MANIFEST, Manifest, remove_kept
from parketto.commit.workspace import Workspace
from parketto.errors import CommitConflict
from parketto.storage.store import FileEntry

logger = logging.getLogger(__name__)

_PARALLEL_COPIES = 16  # threads that copy files

Step = TypeVar("Step")


class CopyingApplier:
    """Applies one record by copies and deletes.

    Args:
        workspace: The workspace that contains the record.
        number: The number of the record.
        record: The record to apply.
        first: No process has started to apply it; otherwise some steps may already be done.
        staged: The paths of all files that its owner has staged, if known.
    """

    def __init__(
        self,
        workspace: Workspace,
        number: int,
        record: Record,
        *,
        first: bool = False,
        staged: Iterable[str] | None = None,
    ) -> None:
        self._workspace, self._number, self._record = workspace, number, record
        self._store = workspace.store
        self._first, self._known = first, None if staged is None else list(staged)
        #: Whether the commit can no longer be undone: a file is deleted.
        self.irreversible = False

    def can_complete(self) -> bool:
        """Always true: undoing would not be safe."""
        return True

    def roll_forward(self) -> None:
        """Bring the dataset to the state after the operation."""
        keepable = self._keep()
        copied = self._each(self._publish, self._record.publish)
        if self._record.retire and all(copied):
            self._retire(keepable)

    def _each(self, act: Callable[[Step], bool], steps: Sequence[Step]) -> list[bool]:
        if len(steps) <= 1 or not self._store.parallel_copies:
            return [act(step) for step in steps]
        threads = min(len(steps), _PARALLEL_COPIES)
        with ThreadPoolExecutor(threads, thread_name_prefix="parketto-copy") as pool:
            return list(pool.map(act, steps))

    def _keep(self) -> set[str]:
        """Copy the files to keep; returns the paths of those that a manifest may list now."""
        if self._manifest is None or (not self._first and self._store.stat(self._manifest) is not None):
            return set()
        retire = self._record.retire
        self._store.make_dirs(posixpath.dirname(self._manifest))
        copied = self._each(self._copy_retired, retire)
        return {old.path for old, is_copied in zip(retire, copied, strict=True) if is_copied}

    def _copy_retired(self, old: Retirement) -> bool:
        """Copy a file to where it is kept; False if it is gone or replaced."""
        kept = f"{self._workspace.path}/{old.parked}"
        try:
            self._store.copy(self._live(old.path), kept, old.size_bytes, old.fingerprint)
        except FileNotFoundError:
            return False  # another process has retired it, or another writer has changed it
        return True

    def _create_manifest(self, paths: Collection[str]) -> None:
        if self._manifest is not None and paths:
            with contextlib.suppress(FileExistsError):  # the first process has found the most files
                self._store.create(self._manifest, Manifest.of(self._record, paths).to_bytes())

    @property
    def _manifest(self) -> str | None:
        kept = self._record.kept
        return None if kept is None else f"{self._workspace.path}/{kept}/{MANIFEST}"

    def _retire(self, keepable: Collection[str]) -> None:
        wanted = {self._live(old.path): old.fingerprint for old in self._record.retire}
        found = {entry.path: entry.fingerprint for entry in self._listed([*wanted])}
        same = [path for path, fingerprint in wanted.items() if found.get(path) == fingerprint]
        changed = [path for path in wanted if path not in set(same)]
        if changed and self._first and self._workspace.locks:
            # Another writer changed the file after validation, before the record.
            raise CommitConflict.over(changed[0], gone=changed[0] not in found)
        for path in changed:
            if path in found:
                logger.warning("another writer replaced %s while it was being retired; the new file is kept", path)
        # A file that is the same after the copy was the same during the copy.
        self._create_manifest([path for path in keepable if self._live(path) in set(same)])
        if not self._workspace.locks and self._workspace.log.is_settled(self._number):
            return  # by another process, while this one stalled
        self.irreversible = True
        self._store.remove_many(same)

    def clear(self) -> None:
        """Remove the staged files, so that no process publishes them again."""
        self.irreversible = True
        if self._known is not None:
            self._store.remove_many(self._known)
        else:
            for folder in (self._record.staging, *self._record.sweeps):
                self._store.remove_tree(f"{self._workspace.path}/{folder}")
        if not self._workspace.locks:
            self._abort_copies()

    def _abort_copies(self) -> None:
        """Abort multipart copies of other processes, which must not complete after later commits."""
        try:
            self._store.abort_copies({self._live(new.path): new.size_bytes for new in self._record.publish})
        except PermissionError as error:
            logger.warning("cannot look for unfinished copies in %s: %s", self._workspace.root, error)

    def roll_back(self) -> None:
        """Bring the dataset back to the state before the operation. The caller holds a lock."""
        if self._record.kept is not None:
            remove_kept(self._store, f"{self._workspace.path}/{self._record.kept}")
        for new in self._record.publish:
            found, staged = self._store.stat(self._live(new.path)), self._store.stat(self._staged(new))
            # An interrupted copy is shorter.
            if found is not None and staged is not None and found.size_bytes <= staged.size_bytes:
                self._store.remove(self._live(new.path))

    def _publish(self, new: Publication) -> bool:
        """Copy a staged file to its destination; False if it is no longer staged."""
        live = self._live(new.path)
        self._store.make_dirs(posixpath.dirname(live))
        try:
            self._store.copy(self._staged(new), live, new.size_bytes)
        except FileNotFoundError:
            if self._first and self._workspace.locks:
                raise
            logger.debug("%s was published by another process", live)
            return False
        return True

    def _listed(self, paths: list[str]) -> Iterable[FileEntry]:
        if len(paths) == 1:
            entry = self._store.stat(paths[0])
            return [] if entry is None else [entry]
        return self._store.list_files(self._workspace.root)

    def _live(self, path: str) -> str:
        return f"{self._workspace.root}/{path}"

    def _staged(self, new: Publication) -> str:
        return f"{self._workspace.path}/{new.staged}"

"""Reading the files of a snapshot, also those that commits have moved away since it was taken."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from parketto.storage.ranged import RangedFile
from parketto.storage.store import FileEntry, Store

_ATTEMPTS = 5  # a file may be moved twice during a commit, and back if the commit is undone
Result = TypeVar("Result")


class SnapshotStore(Store):
    """Reads files as a snapshot has listed them. It offers no other methods of a store.

    Args:
        store: Where the files are.
        find: Gets the path and the fingerprint of a listed file that is gone; returns where it is now, or None.
        moved: Where files are that are known to be gone, by path and fingerprint.
    """

    def __init__(
        self,
        store: Store,
        find: Callable[[str, str], FileEntry | None],
        moved: Mapping[tuple[str, str], FileEntry] | None = None,
    ) -> None:
        self._store, self._find = store, find
        self.often_cached, self.whole_file_bytes = store.often_cached, store.whole_file_bytes
        # Elsewhere a read is conditional, or a check would cost a request.
        self._checks = store.is_local_disk or not store.shared
        self._moved: dict[tuple[str, str], FileEntry] = dict(moved or {})

    def __reduce__(self) -> tuple[Any, ...]:
        return SnapshotStore, (self._store, self._find, self._moved)

    def read_range(self, path: str, start: int, end: int, fingerprint: str = "") -> bytes:
        """A byte range of a file."""
        return self._follow(
            path, fingerprint, lambda place, version: self._store.read_range(place, start, end, version)
        )

    def open_input(
        self, path: str, entry: FileEntry | None = None, tail: bytes = b"", block_bytes: int = 0
    ) -> Any:
        """A seekable binary file to read from; a remote one may be moved while it is open."""
        if entry is None:
            return self._store.open_input(path, entry, tail, block_bytes)
        size, known = entry.size_bytes, entry.fingerprint
        file = self._follow(
            path,
            known,
            lambda place, version: self._store.open_input(
                place, FileEntry(place, size, version), tail, block_bytes
            ),
        )
        if isinstance(file, RangedFile):
            return RangedFile(lambda start, end: self.read_range(path, start, end, known), size, tail, block_bytes)
        return file

    def _follow(self, path: str, fingerprint: str, read: Callable[[str, str], Result]) -> Result:
        missing = FileNotFoundError(path)
        for _ in range(_ATTEMPTS):
            if (moved := self._moved.get((path, fingerprint))) is not None:
                with contextlib.suppress(FileNotFoundError):
                    return read(moved.path, moved.fingerprint)
            result: list[Result] = []
            try:
                result.append(read(path, fingerprint))
            except FileNotFoundError as error:
                missing = error
            if result and not self._is_replaced(path, fingerprint):
                return result[0]
            found = self._find(path, fingerprint) if fingerprint else None
            if found is not None:
                _close(result)
                self._moved[path, fingerprint] = found
            elif result:
                return result[0]  # only touched, or replaced by a program that keeps nothing
            elif moved is None:
                raise missing
            else:
                del self._moved[path, fingerprint]
        raise missing

    def _is_replaced(self, path: str, fingerprint: str) -> bool:
        """Whether another file has the path now. It is looked at after the read, so that no change is missed."""
        if not (self._checks and fingerprint):
            return False
        entry = self._store.stat(path)
        return entry is None or entry.fingerprint != fingerprint


def _close(opened: list[Any]) -> None:
    for file in opened:
        if hasattr(file, "close"):
            file.close()

"""`memory://` as a store: files that live as long as this process."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa

from parketto.storage.locks import Lock, ProcessLock
from parketto.storage.store import FileEntry, Store


class MemoryStore(Store):
    """`memory://`: one process, one dictionary of files."""

    shared = False
    has_locks = True
    whole_file_bytes = 0
    _creating = threading.Lock()

    def create(self, path: str, content: bytes) -> None:
        with self._creating:
            super().create(path, content)

    def creates_exclusively(self, folder: str) -> bool:  # noqa: ARG002
        return True

    def read(self, path: str) -> bytes:
        return bytes(self.fs.cat_file(path))

    def open_input(
        self,
        path: str,
        entry: FileEntry | None = None,  # noqa: ARG002
        tail: bytes = b"",  # noqa: ARG002
        block_bytes: int = 0,  # noqa: ARG002
    ) -> Any:
        # The filesystem returns one file object per path, so all callers would share its position.
        return pa.BufferReader(self.read(path))

    def read_range(self, path: str, start: int, end: int, fingerprint: str = "") -> bytes:  # noqa: ARG002
        return self.read(path)[start:end]

    def url(self, path: str) -> str:
        return f"memory:/{path}"

    def try_lock(self, path: str) -> Lock | None:
        return ProcessLock.attempt(path)

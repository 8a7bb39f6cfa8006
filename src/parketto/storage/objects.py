"""Object stores: no folders and no renames, but exclusive creation of objects."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from parketto.storage.ranged import RangedFile
from parketto.storage.store import HTTP_PRECONDITION_FAILED, FileEntry, Store, http_status, refuse_empty

_CONFLICT = 409
_CREATE_ATTEMPTS = 6
_FIRST_PAUSE_SECONDS = 0.05  # doubled after each attempt: about two seconds in total
_PARALLEL_REQUESTS = 16

# Whether a bucket supports exclusive creation, by filesystem and bucket: services do not advertise it.
_exclusive: dict[tuple[str, str], bool] = {}


class ObjectStore(Store):
    """Objects in buckets (gcsfs, adlfs; `S3Store` is optimised for S3).

    Folders are key prefixes: creating or removing one makes no request, and never creates or removes a bucket.
    """

    has_folders = False
    parallel_copies = True

    def create(self, path: str, content: bytes) -> None:
        refuse_empty(path, content)
        pause = _FIRST_PAUSE_SECONDS
        for attempt in range(1, _CREATE_ATTEMPTS + 1):
            try:
                self._put_new(path, content)
            except OSError as error:
                status = http_status(error)
                if isinstance(error, FileExistsError) or status == HTTP_PRECONDITION_FAILED:
                    raise FileExistsError(path) from error
                # Two requests conflicted: possibly neither succeeded, so the file may not exist.
                if status != _CONFLICT or attempt == _CREATE_ATTEMPTS:
                    raise
            else:
                return
            time.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - no secret
            pause *= 2

    def _put_new(self, path: str, content: bytes) -> None:
        """Create an object with one conditional request."""
        self.fs.pipe_file(path, content, mode="create")

    def creates_exclusively(self, folder: str) -> bool:
        bucket = (str(getattr(self.fs, "_fs_token", id(self.fs))), folder.lstrip("/").partition("/")[0])
        if bucket not in _exclusive:
            try:
                # Named like a staging folder: if this process dies now, cleanup removes it.
                _exclusive[bucket] = self._probe(f"{folder}/tx-{uuid.uuid4().hex}/probe")
            except PermissionError:
                return True  # a caller with read access only creates nothing
        return _exclusive[bucket]

    def _probe(self, path: str) -> bool:
        try:
            self.create(path, b"first")  # also raises if a lost response caused a retry
            self.create(path, b"second")
        except FileExistsError:
            return True
        finally:
            self.remove(path)
        return False

    def open_input(
        self, path: str, entry: FileEntry | None = None, tail: bytes = b"", block_bytes: int = 0
    ) -> Any:
        entry = self.stat(path) if entry is None else entry
        if entry is None:
            raise FileNotFoundError(path)
        fingerprint = entry.fingerprint
        return RangedFile(
            lambda start, end: self.read_range(path, start, end, fingerprint), entry.size_bytes, tail, block_bytes
        )

    def url(self, path: str) -> str:
        return str(self.fs.unstrip_protocol(path))

    def stat_many(self, paths: Sequence[str]) -> dict[str, FileEntry]:
        if len(paths) <= 1 or len(paths) > self.stat_one_by_one:
            return super().stat_many(paths)
        with ThreadPoolExecutor(len(paths), thread_name_prefix="parketto-stat") as pool:
            found = dict(zip(paths, pool.map(self.stat, paths), strict=True))
        return {path: entry for path, entry in found.items() if entry is not None}

    def remove_many(self, paths: Iterable[str]) -> None:
        with ThreadPoolExecutor(_PARALLEL_REQUESTS, thread_name_prefix="parketto-remove") as pool:
            list(pool.map(self.remove, paths))

    def remove_tree(self, path: str) -> None:
        self.remove_many([entry.path for entry in self.list_files(path)])

    def remove_empty_dir(self, path: str) -> None:
        pass

    def make_dirs(self, path: str) -> None:
        pass

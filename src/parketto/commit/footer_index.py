"""The footer index: row counts, bounds and NULL counts of data files, in a few files in the workspace.

    .events.parketto/
        index/<id>.footers    a segment: one row per file, with its bounds

A row is used only for a file of the same size and fingerprint. So the index can be missing, stale or damaged: then
footers are read. Segments are written after a commit is final, never change, and are folded into larger ones.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Callable, Container, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from parketto.commit.index_rows import KEYS, NO_ROWS, column_of, concatenated, is_of_row_groups, keys_of
from parketto.commit.workspace import INDEX
from parketto.display import counted
from parketto.errors import ParkettoError
from parketto.planning.naming import time_ordered_id
from parketto.runtime.arrays import integers
from parketto.storage.store import FileEntry, Store

logger = logging.getLogger(__name__)

#: Datasets with fewer files have no index: reading their footers is as fast.
MIN_FILES = 64
#: Footers of published files that a commit reads for the index.
MAX_PUBLISHED = 1000
_SUFFIX = ".footers"
# The version of the format, and a checksum of the rest.
_MAGIC = b"parketto footers, version 2\n"
_DIGEST_BYTES = 16
_FOLDED_AT = 8  # segments
_DAMAGE = (OSError, ParkettoError, pa.ArrowException, ValueError, KeyError, IndexError)


class FooterIndex:
    """The index of one dataset.

    Args:
        store: Where it is.
        workspace: The dataset's workspace.
    """

    def __init__(self, store: Store, workspace: str) -> None:
        self._store, self.folder = store, f"{workspace}/{INDEX}"

    def load(self, columns: Container[str] | None = (), *, row_groups: bool = False) -> pa.Table:
        """All rows, with the bounds of some columns (None: of all). What cannot be read is left out.

        Args:
            columns: The columns.
            row_groups: Whether the bounds of row groups are loaded, too.
        """
        found = [self._read(entry.path, columns, row_groups=row_groups) for entry in self._segments()]
        return concatenated([NO_ROWS, *(each for each in found if each is not None)])

    def add(self, rows: pa.Table, current: Callable[[], pa.Table | None] = lambda: None) -> None:
        """Write rows to a new segment, and fold segments if there are many.

        Args:
            rows: The rows.
            current: Returns the keys of all current files: only their rows are kept by folding. None keeps all.
        """
        if not rows.num_rows:
            return
        self._store.make_dirs(self.folder)
        self._store.create(f"{self.folder}/{time_ordered_id()}{_SUFFIX}", _sealed(rows))
        segments = self._segments()
        if len(segments) > _FOLDED_AT:
            self._fold(segments, current())

    @property
    def is_empty(self) -> bool:
        """Whether it has no segments."""
        return not self._segments()

    def clear(self) -> None:
        """Remove all rows."""
        self._store.remove_many([entry.path for entry in self._segments()])
        self._store.remove_empty_dir(self.folder)

    def _segments(self) -> list[FileEntry]:
        """The segments, newest first."""
        try:
            found = list(self._store.list_files(self.folder))
        except OSError:
            return []
        return sorted((each for each in found if each.path.endswith(_SUFFIX)), key=lambda e: e.path, reverse=True)

    def _read(self, path: str, columns: Container[str] | None, *, row_groups: bool) -> pa.Table | None:
        try:
            return _unsealed(self._store.read(path), columns, row_groups=row_groups)
        except FileNotFoundError:
            return None  # folded meanwhile
        except _DAMAGE as error:
            logger.debug("ignoring %s: %r", path, error)
            return None

    def _fold(self, segments: Sequence[FileEntry], current: pa.Table | None) -> None:
        """Fold the newest segments, and older ones as long as these are not much larger, into one."""
        number = _FOLDED_AT
        total = sum(entry.size_bytes for entry in segments[:number])
        while number < len(segments) and segments[number].size_bytes < 2 * total:
            total += segments[number].size_bytes
            number += 1
        folded = segments[:number]
        found = [self._read(entry.path, None, row_groups=True) for entry in folded]
        rows = _newest(concatenated([NO_ROWS, *(each for each in found if each is not None)]))
        if current is not None:
            rows = rows.filter(pc.is_in(keys_of(rows), keys_of(current)))
        if rows.num_rows:
            self._store.create(f"{self.folder}/{time_ordered_id()}{_SUFFIX}", _sealed(rows))
        self._store.remove_many([entry.path for entry in folded])
        logger.debug("folded %s of %s", counted(number, "segment"), self.folder)


def _newest(rows: pa.Table) -> pa.Table:
    """The first row of each path."""
    numbered = pa.table({"path": rows["path"], "at": integers(range(rows.num_rows))})
    first = numbered.group_by("path", use_threads=False).aggregate([("at", "min")])["at_min"]
    return rows.take(first.sort())


def _sealed(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(sink, rows.schema, options=options) as writer:
        writer.write_table(rows.combine_chunks())
    content: bytes = sink.getvalue().to_pybytes()
    return _MAGIC + _digest(content) + content


def _unsealed(sealed: bytes, columns: Container[str] | None, *, row_groups: bool) -> pa.Table:
    start = len(_MAGIC) + _DIGEST_BYTES
    content = pa.py_buffer(sealed).slice(start)
    if not sealed.startswith(_MAGIC) or sealed[len(_MAGIC) : start] != _digest(content):
        raise ValueError("it is damaged, or of another version")
    with pa.ipc.open_file(content) as reader:
        names = reader.schema.names
    wanted = [
        at
        for at, name in enumerate(names)
        if (column := column_of(name)) is None
        or ((columns is None or column in columns) and (row_groups or not is_of_row_groups(name)))
    ]
    with pa.ipc.open_file(content, options=pa.ipc.IpcReadOptions(included_fields=wanted)) as reader:
        found: pa.Table = reader.read_all()
    if found.schema.names[: len(KEYS)] != KEYS.names:
        raise ValueError("it has no keys")
    return found


def _digest(content: Any) -> bytes:
    found: bytes = hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()
    return found


@contextlib.contextmanager
def best_effort(folder: str) -> Any:
    """Log errors instead of raising them: without the index, later operations read footers."""
    try:
        yield
    except _DAMAGE as error:
        logger.warning("could not update the footer index in %s: %s", folder, error)

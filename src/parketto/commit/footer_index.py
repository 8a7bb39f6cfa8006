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
from collections.abc import Callable, Container, Iterable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from parketto.commit.workspace import INDEX
from parketto.display import counted
from parketto.errors import ParkettoError
from parketto.parquet.dataset_schema import layout_key
from parketto.parquet.file_info import FileInfo
from parketto.planning.naming import time_ordered_id
from parketto.runtime.arrays import array_of, integers
from parketto.storage.listing import relative
from parketto.storage.store import FileEntry, Store

logger = logging.getLogger(__name__)

#: Datasets with fewer files have no index: reading their footers is as fast.
MIN_FILES = 64
#: The first columns of a file, whose bounds are kept.
MAX_COLUMNS = 32
#: Footers of published files that a commit reads for the index.
MAX_PUBLISHED = 1000
#: The coarsest resolution of modification times.
SETTLED_SECONDS = 2.0
_SUFFIX = ".footers"
# The version of the format, and a checksum of the rest.
_MAGIC = b"parketto footers, version 1\n"
_DIGEST_BYTES = 16
_FOLDED_AT = 8  # segments
_MAX_BOUND = 200  # characters or bytes of a bound
_KINDS: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int": pa.int64(),
    "uint": pa.uint64(),
    "float": pa.float64(),
    "text": pa.string(),
    "binary": pa.binary(),
}
_KEYS = pa.schema(
    {
        "path": pa.string(),
        "fingerprint": pa.string(),
        "size": pa.int64(),
        "rows": pa.int64(),
        "layout": pa.string(),
    }
)
_NO_ROWS = pa.table([array_of([], kind) for kind in _KEYS.types], schema=_KEYS)
_SEPARATOR = array_of(["\0"], pa.string())[0]
_DAMAGE = (OSError, ParkettoError, pa.ArrowException, ValueError, KeyError, IndexError)


class FooterIndex:
    """The index of one dataset.

    Args:
        store: Where it is.
        workspace: The dataset's workspace.
    """

    def __init__(self, store: Store, workspace: str) -> None:
        self._store, self.folder = store, f"{workspace}/{INDEX}"

    def load(self, columns: Container[str] | None = ()) -> pa.Table:
        """All rows, with the bounds of some columns (None: of all). What cannot be read is left out."""
        found = [self._read(entry.path, columns) for entry in self._segments()]
        return concatenated([_NO_ROWS, *(each for each in found if each is not None)])

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

    def _read(self, path: str, columns: Container[str] | None) -> pa.Table | None:
        try:
            return _unsealed(self._store.read(path), columns)
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
        tables = [each for entry in folded if (each := self._read(entry.path, None)) is not None]
        rows = _newest(concatenated([_NO_ROWS, *tables]))
        if current is not None:
            rows = rows.filter(pc.is_in(keys_of(rows), keys_of(current)))
        if rows.num_rows:
            self._store.create(f"{self.folder}/{time_ordered_id()}{_SUFFIX}", _sealed(rows))
        self._store.remove_many([entry.path for entry in folded])
        logger.debug("folded %s of %s", counted(number, "segment"), self.folder)


def index_rows(files: Iterable[FileInfo], root: str, columns: Container[str] = ()) -> pa.Table:
    """The rows of files, as their own footers describe them.

    Args:
        files: The files.
        root: The dataset.
        columns: The columns whose bounds are kept besides the first ones, as far as they were read.
    """
    keys: dict[str, list[Any]] = {name: [] for name in _KEYS.names}
    bounds: dict[str, list[Any]] = {}
    # Layouts by ids, with the names of the first columns, and a file that keeps the objects.
    layouts: dict[tuple[int, int], tuple[str, frozenset[str], FileInfo]] = {}
    number = -1
    for number, each in enumerate(files):
        file = each.stored
        known = (id(file.schema), id(file.traits))
        if known not in layouts:
            assert file.schema is not None, "a footer always has a schema"
            digest = hashlib.sha256(repr(layout_key(file)).encode()).hexdigest()[:16]
            layouts[known] = digest, frozenset(file.schema.names[:MAX_COLUMNS]), file
        layout, leading, _ = layouts[known]
        row = (path_text(file.path, root), file.fingerprint, file.size_bytes, file.num_rows, layout)
        for values, value in zip(keys.values(), row, strict=True):
            values.append(value)
        for name in file.row_groups[0].columns if file.row_groups else ():
            if name not in leading and name not in columns:
                continue
            for key, value in _bounds_of(file, name):
                values = bounds.setdefault(key, [])
                values += [None] * (number - len(values))
                values.append(value)
    columns = [array_of(values, kind) for values, kind in zip(keys.values(), _KEYS.types, strict=True)]
    for key, values in bounds.items():
        columns.append(array_of([*values, *[None] * (number + 1 - len(values))], _type_of(key)))
    return pa.table(columns, names=[*_KEYS.names, *bounds])


def _bounds_of(file: FileInfo, name: str) -> Iterable[tuple[str, Any]]:
    stats = file.column_stats(name)
    yield f"nulls::{name}", stats.null_count
    if stats.min is not None and (kind := _kind(stats.min)) is not None and kind == _kind(stats.max):
        yield f"min:{kind}:{name}", stats.min
        yield f"max:{kind}:{name}", stats.max


def _kind(value: Any) -> str | None:
    """The kind of a bound that a row can hold exactly; None: it is not kept."""
    match value:
        case bool():
            return "bool"
        case int():
            return "int" if -(2**63) <= value < 2**63 else "uint" if 0 <= value < 2**64 else None
        case float():
            return "float"
        case str() | bytes():
            return None if len(value) > _MAX_BOUND else "text" if isinstance(value, str) else "binary"
        case Decimal():
            digits, exponent = value.as_tuple()[1:]
            exact = isinstance(exponent, int) and -38 <= exponent <= 0 and len(digits) <= 38
            return f"decimal{-exponent}" if exact and isinstance(exponent, int) else None
    return None


def _type_of(key: str) -> pa.DataType:
    end, kind, _ = key.split(":", 2)
    if end == "nulls":
        return pa.int64()
    return _KINDS[kind] if kind in _KINDS else pa.decimal128(38, int(kind.removeprefix("decimal")))


def column_of(key: str) -> str | None:
    """The column that a field of an index row is about; None if it is about the whole file."""
    parts = key.split(":", 2)
    return parts[2] if len(parts) == 3 else None


def path_text(path: str, root: str) -> str:
    """A path in the dataset as a row holds it. Names of files may be no valid UTF-8."""
    return relative(path, root).encode(errors="backslashreplace").decode()


def keys_of(rows: pa.Table) -> pa.ChunkedArray:
    """What identifies a version of a file."""
    return pc.binary_join_element_wise(
        rows["path"], rows["fingerprint"], rows["size"].cast(pa.string()), _SEPARATOR
    )


def entry_keys(entries: Sequence[FileEntry], root: str) -> pa.Table:
    """The path, fingerprint and size of listed files, as index rows have them."""
    return pa.table(
        {
            "path": array_of([path_text(entry.path, root) for entry in entries], pa.string()),
            "fingerprint": array_of([entry.fingerprint for entry in entries], pa.string()),
            "size": array_of([entry.size_bytes for entry in entries], pa.int64()),
        }
    )


def has_version(entry: FileEntry) -> bool:
    """Whether a fingerprint changes with the content; some filesystems list sizes only."""
    return bool(entry.fingerprint) and not entry.fingerprint.endswith(":None")


def lasting(rows: pa.Table, entries: Sequence[FileEntry], begun: float) -> pa.Table:
    """The rows of those files whose fingerprint will change with their content.

    The modification time of a file that was just written may stay the same if it is written again.

    Args:
        rows: The rows of listed files.
        entries: These files, in the same order.
        begun: A time before they were listed, in seconds since the epoch.
    """
    line = begun - SETTLED_SECONDS
    kept = [has_version(entry) and (entry.modified is None or entry.modified < line) for entry in entries]
    return rows.filter(array_of(kept, pa.bool_()))


def concatenated(tables: Sequence[pa.Table]) -> pa.Table:
    """The rows of tables whose bounds may be of different columns."""
    return pa.concat_tables(tables, promote_options="default")


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


def _unsealed(sealed: bytes, columns: Container[str] | None) -> pa.Table:
    start = len(_MAGIC) + _DIGEST_BYTES
    content = pa.py_buffer(sealed).slice(start)
    if not sealed.startswith(_MAGIC) or sealed[len(_MAGIC) : start] != _digest(content):
        raise ValueError("it is damaged, or of another version")
    with pa.ipc.open_file(content) as reader:
        names = reader.schema.names
    wanted = [
        at
        for at, name in enumerate(names)
        if (column := column_of(name)) is None or columns is None or column in columns
    ]
    with pa.ipc.open_file(content, options=pa.ipc.IpcReadOptions(included_fields=wanted)) as reader:
        found: pa.Table = reader.read_all()
    if found.schema.names[: len(_KEYS)] != _KEYS.names:
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

"""Finds damage in a Parquet file: checks its footer, its checksums, decoding, and statistics against values."""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from parketto.errors import FooterError, UnreadableFile
from parketto.parquet.bounds import row_group_bounds
from parketto.parquet.file_info import FileInfo, FooterReader, footer_length, read_tail
from parketto.parquet.footer import MAGIC, Footer, parse_footer, read_exactly
from parketto.parquet.schema import Leaf
from parketto.parquet.structure import BYTE_ARRAY, Problem, check_pages, column_name, footer_problems
from parketto.runtime.batches import decoded_bytes
from parketto.runtime.task import Worker
from parketto.storage.store import FileEntry, Store

_MAX_BATCH_ROWS = 32 * 1024  # rows decoded at a time
_MAX_STRING_ROWS = 4 * 1024  # of variable-length values: one may be far longer than those before
_MIN_BATCH_ROWS = 64
_STRING_TYPES = frozenset({pa.string(), pa.binary(), pa.large_string(), pa.large_binary()})
_PROBE_ROWS = 128  # decoded first, to measure the bytes per row of a column
_READ_BUFFER = 1024 * 1024
_MIN_FILE_BYTES = 12  # two magic numbers and the footer length
_ENCRYPTED_MAGIC = b"PARE"
# Errors of stores and Arrow on unreadable bytes. Lack of memory and lost connections are not damage.
_UNREADABLE = (pa.ArrowException, OSError, UnicodeError, FooterError)
_NOT_DAMAGE = (MemoryError, FileNotFoundError, ConnectionError, TimeoutError, pa.ArrowCancelled)


@dataclass
class Findings:
    """The problems of a file, and how much of it was checked."""

    problems: list[Problem] = field(default_factory=list)
    #: The number of decoded column chunks, and of their pages.
    columns: int = 0
    pages: int = 0


class FooterCheck:
    """The footer of a file, checked against the file size and its own schema.

    Args:
        store: The store of the file.
        entry: The file.
        read_head: Also read the first bytes of a large file, which costs another request.
    """

    def __init__(self, store: Store, entry: FileEntry, *, read_head: bool) -> None:
        self.entry = entry
        self.problems: list[Problem] = []
        self.footer: Footer | None = None
        self._tail = b""
        with _recording(lambda reason: self.problems.append(Problem(None, None, reason))):
            self._read(store, read_head=read_head)

    @cached_property
    def info(self) -> FileInfo:
        """The file as Arrow describes it, with all bounds. Only for files without problems."""
        return FooterReader(None, stats_columns=None).describe(self.entry, pa.py_buffer(self._tail))

    @cached_property
    def metadata(self) -> pq.FileMetaData:
        """The footer as Arrow reads it. Only for files without problems."""
        return pq.read_metadata(pa.BufferReader(self._tail))

    def _read(self, store: Store, *, read_head: bool) -> None:
        size = self.entry.size_bytes
        if size < _MIN_FILE_BYTES:
            raise FooterError("the file is empty" if not size else f"{size} bytes are too few for a Parquet file")
        self._tail = tail = read_tail(store, self.entry)
        if tail[-4:] == _ENCRYPTED_MAGIC:
            raise FooterError("it is encrypted and cannot be checked")
        if tail[-4:] != MAGIC:
            raise FooterError("it does not end with PAR1: it is truncated, or not a Parquet file")
        length = footer_length(tail)
        if length > size - _MIN_FILE_BYTES:
            raise FooterError(f"a footer of {length} bytes does not fit into a file of {size} bytes")
        if len(tail) == size or read_head:
            head = tail[:4] if len(tail) == size else store.read_range(self.entry.path, 0, 4)
            if head != MAGIC:
                raise FooterError("it does not begin with PAR1: it is damaged, or not a Parquet file")
        self.footer = parse_footer(tail[-8 - length : -8], size)
        self.problems += footer_problems(self.footer)
        if self.problems:
            return
        try:
            self.info  # noqa: B018 - what Arrow cannot read is a problem, too
        except UnreadableFile as error:  # not because of encryption: its own fields rule that out
            raise FooterError("its footer is damaged: Arrow cannot read all of it") from error


class PageCheck:
    """Checks the pages of a file whose footer has no problems: checksums, and whether they can be decoded.

    Args:
        source: The open file.
        check: Its checked footer.
        worker: The resources of the task.
    """

    def __init__(self, source: Any, check: FooterCheck, worker: Worker) -> None:
        assert check.footer is not None, "the footer locates the pages"
        self._footer, self._check, self._worker = check.footer, check, worker
        self._source: Any = source if worker.store.often_cached else _CachedRange(source, worker.run_bytes)
        self._only_dictionary = False
        self._widths: dict[tuple[int, ...], float] = {}
        leaves = enumerate(self._footer.leaves)
        # The leaves of a nested column are decoded together: their list boundaries must agree.
        self._columns = [
            tuple(position for position, _ in found)
            for _, found in groupby(leaves, lambda leaf: leaf[1].path[0] if len(leaf[1].path) > 1 else leaf[0])
        ]

    def row_group(self, number: int) -> Findings:
        """Check all columns of a row group."""
        found = Findings()
        if self._footer.row_groups[number].num_rows:
            for leaves in self._columns:
                self._column(number, leaves, found)
        return found

    def _column(self, number: int, leaves: tuple[int, ...], found: Findings) -> None:
        self._cache_columns(number, leaves)
        sound = []
        for leaf in leaves:
            self._worker.check_cancelled()
            with self._recording(number, leaf, found):
                pages = check_pages(self._source, self._footer, number, leaf)
                found.pages += pages.number
                sound.append(leaf)
                self._only_dictionary = pages.only_dictionary
        found.columns += len(leaves)
        if not sound:
            return
        before = len(found.problems)
        with self._recording(number, None if len(sound) > 1 else sound[0], found):
            self._decode(number, tuple(sound))
        if len(found.problems) > before and len(sound) > 1:
            self._blame(number, sound, found)

    def _blame(self, number: int, leaves: Sequence[int], found: Findings) -> None:
        """Name the leaves of a nested column that cannot be decoded, or the whole column if each of them can."""
        whole, before = found.problems.pop(), len(found.problems)
        for leaf in leaves:
            with self._recording(number, leaf, found):
                self._decode(number, (leaf,))
        if len(found.problems) == before:
            name = self._footer.leaves[leaves[0]].path[0].decode(errors="replace")
            found.problems.append(whole._replace(column=name))

    def _cache_columns(self, number: int, leaves: Sequence[int]) -> None:
        if isinstance(self._source, _CachedRange):
            chunks = [self._footer.row_groups[number].columns[leaf] for leaf in leaves]
            start = min(chunk.start for chunk in chunks)
            self._source.load(start, max(chunk.start + chunk.size for chunk in chunks) - start)

    @cached_property
    def _dense(self) -> pq.ParquetFile:
        return self._open([])

    @cached_property
    def _encoded(self) -> pq.ParquetFile:
        """The file with strings as dictionaries: few entries can decode to gigabytes of values."""
        return self._open(list(self._string_names.values()))

    def _open(self, dictionaries: list[str]) -> pq.ParquetFile:
        return pq.ParquetFile(
            self._source,
            metadata=self._check.metadata,
            pre_buffer=False,
            buffer_size=_READ_BUFFER,
            read_dictionary=dictionaries,
        )

    def _decode(self, number: int, leaves: tuple[int, ...]) -> None:
        declared = _DeclaredStats.of(self._check.info, number, self._flat_names.get(leaves[0]))
        rows, expected = 0, self._footer.row_groups[number].num_rows
        for batch in self._batches(number, leaves):
            self._worker.check_cancelled()
            rows += batch.num_rows
            for array in batch.columns:
                array.validate(full=True)
                declared.compare(array)
        if rows != expected:
            raise FooterError(f"{rows} rows were decoded, the footer declares {expected}")
        declared.finish()

    @cached_property
    def _flat_names(self) -> dict[int, str]:
        """The unique names of leaves that are top-level columns: only these have statistics."""
        counts = Counter(leaf.path for leaf in self._footer.leaves)
        return {
            position: leaf.path[0].decode(errors="replace")
            for position, leaf in enumerate(self._footer.leaves)
            if len(leaf.path) == 1 and counts[leaf.path] == 1
        }

    @cached_property
    def _string_names(self) -> dict[int, str]:
        """Of these, strings and binary values, which Arrow can keep as dictionaries."""
        schema = self._check.info.schema
        assert schema is not None, "a footer always has a schema"
        kinds = {item.name: item.type for item in schema}
        return {position: name for position, name in self._flat_names.items() if kinds.get(name) in _STRING_TYPES}

    def _batches(self, number: int, leaves: tuple[int, ...]) -> Iterator[pa.RecordBatch]:
        def batches(rows: int) -> Iterator[pa.RecordBatch]:
            # By position: names may be duplicates, and those with a dot are ambiguous.
            return iter(
                parquet.reader.iter_batches(
                    rows, row_groups=[number], column_indices=list(leaves), use_threads=False
                )
            )

        group = self._footer.row_groups[number]
        variable = any(_is_byte_array(self._footer.leaves[leaf]) for leaf in leaves)
        encoded = self._only_dictionary and leaves[0] in self._string_names
        parquet = self._encoded if encoded else self._dense
        width = self._widths.get(leaves, 1.0)
        if group.num_rows > _PROBE_ROWS:
            # Footers do not record decoded sizes: a dictionary can turn a kilobyte into a gigabyte.
            probe = next(batches(_PROBE_ROWS), None)
            if probe is not None and probe.num_rows:
                width = max(width, decoded_bytes(probe) / probe.num_rows)
        max_rows = _MAX_BATCH_ROWS if encoded or not variable else _MAX_STRING_ROWS
        for batch in batches(int(min(max(self._worker.batch_bytes / width, _MIN_BATCH_ROWS), max_rows))):
            if batch.num_rows:
                width = self._widths[leaves] = max(width, decoded_bytes(batch) / batch.num_rows)
            yield batch

    @contextlib.contextmanager
    def _recording(self, number: int, leaf: int | None, found: Findings) -> Iterator[None]:
        name = None if leaf is None else column_name(self._footer.leaves[leaf])
        with _recording(lambda reason: found.problems.append(Problem(number, name, reason))):
            yield


def _is_byte_array(leaf: Leaf) -> bool:
    """Whether values have variable length."""
    return leaf.physical_type == BYTE_ARRAY


class _DeclaredStats:
    """Compares the footer's statistics of a column in a row group with the decoded values."""

    def __init__(self, null_count: int | None, bounds: tuple[pa.Scalar, pa.Scalar] | None) -> None:
        self._null_count, self._bounds = null_count, bounds
        self._nulls = 0

    @classmethod
    def of(cls, file: FileInfo, number: int, name: str | None) -> _DeclaredStats:
        group = file.row_groups[number]
        if name is None or name not in group.columns:
            return cls(None, None)
        bounds = None if (name, 0) in file.traits.int96 else row_group_bounds(file, group, name)
        return cls(group.columns[name].null_count, bounds)

    def compare(self, array: pa.Array) -> None:
        self._nulls += array.null_count
        if self._bounds is None or array.null_count == len(array):
            return
        if isinstance(array, pa.DictionaryArray):
            array = array.unique().dictionary_decode()
        low, high = self._bounds
        try:
            found = pc.min_max(array)
            outside = pc.less(found["min"], low).as_py() or pc.greater(found["max"], high).as_py()
        except (pa.ArrowNotImplementedError, pa.ArrowTypeError):  # Arrow does not compare every type
            self._bounds = None
            return
        if outside:
            raise FooterError("values are outside of the bounds (min and max) in the footer")

    def finish(self) -> None:
        if self._null_count is not None and self._nulls != self._null_count:
            raise FooterError(f"{self._nulls} nulls were decoded, the footer declares {self._null_count}")


class _CachedRange(io.RawIOBase):
    """A remote file with one range cached in memory, so that bytes read twice are fetched once."""

    def __init__(self, source: Any, limit: int) -> None:
        self._source, self._limit = source, limit
        self._start, self._cached, self._position = 0, b"", 0

    def load(self, start: int, size: int) -> None:
        """Fetch a range, unless it is larger than the limit."""
        self._cached = b""
        with contextlib.suppress(FooterError, OSError):  # reading these bytes raises it again
            if size <= self._limit:
                self._start, self._cached = start, read_exactly(self._source, start, size)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END:
            self._position = self._source.seek(offset, whence)
        else:
            self._position = offset + (self._position if whence == io.SEEK_CUR else 0)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        at = self._position - self._start
        if 0 <= at < len(self._cached):
            found = self._cached[at : at + len(buffer)]
        else:
            self._source.seek(self._position)
            found = self._source.read(len(buffer))
        buffer[: len(found)] = found
        self._position += len(found)
        return len(found)


@contextlib.contextmanager
def _recording(record: Callable[[str], None]) -> Iterator[None]:
    """Record why bytes cannot be read, instead of raising."""
    try:
        yield
    except _NOT_DAMAGE:
        raise
    except _UNREADABLE as error:
        record(" ".join(str(error).split()).rstrip(".") or type(error).__name__)


def find_damage(
    store: Store, entry: FileEntry, worker: Worker, row_groups: Sequence[int] | None = None
) -> Findings:
    """All damage in a file, checked page by page.

    Args:
        store: The store of the file.
        entry: The file.
        worker: The resources of the task.
        row_groups: The numbers of the row groups to decode; None decodes all.
    """
    check = FooterCheck(store, entry, read_head=True)
    found = Findings(list(check.problems))
    if found.problems or check.footer is None:
        return found
    numbers = range(len(check.footer.row_groups)) if row_groups is None else row_groups
    with (
        _recording(lambda reason: found.problems.append(Problem(None, None, reason))),
        store.open_input(entry.path) as source,
    ):
        pages = PageCheck(source, check, worker)
        for number in numbers:
            part = pages.row_group(number)
            found.problems += part.problems
            found.columns += part.columns
            found.pages += part.pages
    return found


def refuse_damage(file: FileInfo, worker: Worker, row_groups: Sequence[int] | None = None) -> None:
    """Decode some or all row groups of a file; raise if one is damaged.

    Raises:
        UnreadableFile: A row group is damaged. The message names the file and the column.
    """
    for problem in find_damage(worker.store, file.entry, worker, row_groups).problems:
        raise UnreadableFile(file.path, describe_problem(problem), problem.column)


def describe_problem(problem: Problem) -> str:
    """A problem as one line of text.

    >>> describe_problem(Problem(2, "price", "the page at byte 4 does not match its checksum (CRC-32)"))
    "row group 2, column 'price': the page at byte 4 does not match its checksum (CRC-32)"
    """
    location = [] if problem.row_group is None else [f"row group {problem.row_group}"]
    location += [] if problem.column is None else [f"column {problem.column!r}"]
    return f"{', '.join(location)}: {problem.reason}" if location else problem.reason
